"""Statements: primitives on lines of their own, checks, branches and loops become ops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from tilelink.errors import Loc, Note
from tilelink.frontend import primitives, raw
from tilelink.frontend.expressions import call_of_language, check_allowed, unsupported
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.scope import Builtin, Language, Primitive
from tilelink.frontend.source import bound_names
from tilelink.frontend.values import (
    Environment,
    TileIndex,
    TileTuple,
    Value,
    Variable,
    after_branches,
    at_loop_head,
    constant_of,
    is_index,
    named,
    root,
)
from tilelink.frontend.wording import count
from tilelink.frontend.words import WHILE_TEST, tile_alias
from tilelink.ir.formula import Const, Formula
from tilelink.ir.program import Bounds, Check, Expr, Holder, If, Let, Loop, Op, Param, Tile, Tiles, walk
from tilelink.ir.shape import RANK_AXIS


def lower_block(state: Lowering, statements: list[ast.stmt]) -> None:
    """Appends the ops of some statements to the current block.

    Raises:
        TilelinkError: TL111 and TL120 to TL153.
    """
    for statement in statements:
        handler = _HANDLERS.get(type(statement))
        if handler is None:
            unsupported(state, statement)
        handler(state, statement)


# -------------------------------------------------------------------------------------------------- lines by themselves
def _line(state: Lowering, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return
    if not isinstance(node.value, ast.Call):
        if isinstance(node.value, (ast.Yield, ast.YieldFrom, ast.Await)):
            unsupported(state, node.value)
        why = "an expression computes; nothing keeps its value"
        state.fail("TL131", node, "a line without effect", why, "assign it to a name, or take it out")
    found = state.look_up(node.value.func)
    called = ast.unparse(node.value.func)
    if isinstance(found, Primitive):
        if primitives.PRIMITIVES[found.name].kind == "effect":
            primitives.invoke(state, node.value, found.name)
            return
        called = f"tl.{found.name}"
    elif isinstance(found, Language):
        if found.path in ("tl.device_assert", "tl.static_assert"):
            _check(state, node, node.value.args[0] if node.value.args else node.value, node.value.args[1:])
            return
        if found.path == "tl.device_print":
            value = call_of_language(state, node.value, found.name).expr()
            state.ops.append(Let(target=(), value=value, loc=state.loc(node)))
            return
        if raw.effect(state, node.value, found.name):
            return
        check_allowed(state, node.value, found)
        called = f"tl.{found.name}"
    why = "its value is not kept, and it has no other effect"
    state.fail("TL131", node, f"`{called}` on a line of its own", why, "assign its value to a name, or take it out")


def _check(state: Lowering, node: ast.stmt, test: ast.expr, message: list[ast.expr]) -> None:
    condition = state.lower(test).expr()
    text = constant_of(message[0]) if message else ast.unparse(test)
    if not isinstance(text, str):
        why = "a kernel carries fixed texts"
        state.fail("TL135", message[0], "the message of a check is computed", why, "write a plain string")
    state.ops.append(Check(condition=condition, text=text, loc=state.loc(node)))


def _if(state: Lowering, node: ast.If) -> None:
    test = state.lower(node.test)
    if test.rank > 0:
        why = "one branch is taken for the whole block"
        hint = "choose by element with `tl.where`, or reduce the test to one value with `tl.max`"
        state.fail("TL142", node.test, "an `if` on a block of values", why, hint)
    before, static = state.env, test.rank == 0 and state.static(test)
    blocks, paths = list[tuple[Op, ...]](), list[Environment]()
    for statements in (node.body, node.orelse):
        state.env = before.copy()
        with state.block() as ops:
            lower_block(state, statements)
        blocks.append(tuple(ops))
        paths.append(state.env)
    body, orelse = blocks
    inner = frozenset(o.name for o in walk((*body, *orelse)) if isinstance(o, (Bounds, Holder)))
    state.env, lost = after_branches(paths[0], paths[1], state.said, inner, test, static=static)
    for name in sorted(lost):
        state.lose(name, paths[0].get(name) or paths[1].get(name), state.loc(node))
    state.ops.append(If(test=test.expr(), body=body, orelse=orelse, loc=state.loc(node)))


# ----------------------------------------------------------------------------------------------------------- assignments
def _assign(state: Lowering, node: ast.Assign) -> None:
    """`a = value`, `a, b = value`, `a = b = value`."""
    if len(node.targets) == 1:
        _to_target(state, node.targets[0], node.value, node)
        return
    first = next((t for t in node.targets if isinstance(t, ast.Name)), None)
    if first is None:
        state.fail("TL111", node, "several targets in a tile program", "none of them is a name", "assign line by line")
    _to_target(state, first, node.value, node)
    for other in (t for t in node.targets if t is not first):
        _to_target(state, other, ast.copy_location(ast.Name(first.id, ast.Load()), first), node)


def _annotated(state: Lowering, node: ast.AnnAssign) -> None:
    """`a: int = value`."""
    if node.value is None:
        why = "a name is bound by what is assigned to it"
        state.fail("TL111", node, "an annotation without a value", why, "assign a value")
    _to_target(state, node.target, node.value, node)


def _augmented(state: Lowering, node: ast.AugAssign) -> None:
    """`a += value`, written out."""
    target = node.target
    if not isinstance(target, ast.Name):
        _bad_target(state, target)
    read = ast.copy_location(ast.Name(target.id, ast.Load()), target)
    _to_target(state, target, ast.copy_location(ast.BinOp(read, node.op, node.value), node), node)


def _to_target(state: Lowering, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    names = [e if isinstance(e, ast.Name) else _bad_target(state, e) for e in parts]
    for name in names:
        _check_target(state, name)
    found = state.look_up(value.func) if isinstance(value, ast.Call) else None
    word = found.name if isinstance(found, Primitive) else None
    if isinstance(value, ast.Call) and word is not None and primitives.PRIMITIVES[word].kind == "domain":
        _domain(state, names, primitives.invoke(state, value, word), value, alone=isinstance(target, ast.Name))
    elif isinstance(target, ast.Name):
        _to_name(state, target, value, node, word)
    else:
        _to_names(state, names, value, node)


def _check_target(state: Lowering, target: ast.Name) -> None:
    if target.id in state.params:
        why = "a parameter stands for one tensor throughout the program"
        state.fail("TL126", target, f"the tensor `{target.id}` is assigned", why, "use another name")


def _bad_target(state: Lowering, target: ast.expr) -> NoReturn:
    if isinstance(target, ast.Starred):
        unsupported(state, target)
    hint = "write `tl.tile_store(...)` to change a tensor; assign blocks to plain names"
    state.fail("TL111", target, f"assignment to `{ast.unparse(target)}` in a tile program", "blocks are values", hint)


def _to_name(state: Lowering, target: ast.Name, value: ast.expr, node: ast.stmt, word: str | None) -> None:
    if isinstance(value, ast.Call) and word is not None:
        # The op has the name itself, unless other lines bind that too.
        once = target.id in state.once
        lowered = primitives.value_of(state, value, word, target.id if once else None)
        _bind_value(state, target, lowered, name=lowered.text)
        if not once:
            state.keep(target.id, state.loc(value))
    elif (alias := tile_alias(state, value)) is not None:
        state.bind(target.id, alias, target)
    else:
        lowered = state.lower(value)
        state.ops.append(Let(target=(state.said(target.id),), value=lowered.expr(), loc=state.loc(node)))
        _bind_value(state, target, lowered)


def _to_names(state: Lowering, names: list[ast.Name], value: ast.expr, node: ast.stmt) -> None:
    alias = tile_alias(state, value)
    if isinstance(alias, TileTuple):
        _fits(state, node, len(names), len(alias.vars), f"`{ast.unparse(value)}`")
        for name, var in zip(names, alias.vars, strict=True):
            state.bind(name.id, state.env[var], name)
        return
    written = isinstance(value, (ast.Tuple, ast.List))
    if written:
        _fits(state, node, len(names), len(value.elts), "the right side")
        if _independent(names, value.elts):
            for name, element in zip(names, value.elts, strict=True):
                _to_target(state, name, element, node)
            return
    made = state.lower(value)
    if written:
        # Without the parentheses: `a, b = b, a` is how a person writes it.
        values, expr = [*made.entries], replace(made.expr(), text=", ".join(v.text for v in made.entries))
    else:
        if made.length is not None and made.length >= 0:
            _fits(state, node, len(names), made.length, f"`{ast.unparse(value)}`")
        entry = made if made.length is None else replace(made, length=None, entries=())
        values, expr = [entry for _ in names], made.expr()
        if len(made.entries) == len(names):
            values = [replace(entry, rank=p.rank) for p in made.entries]
    state.ops.append(Let(target=tuple(state.said(n.id) for n in names), value=expr, loc=state.loc(node)))
    static = [v.rank == 0 and state.static(v) for v in values]  # before the names are bound: they may be among theirs
    for name, one, known in zip(names, values, static, strict=True):
        _bind_value(state, name, one, static=known)


def _fits(state: Lowering, node: ast.stmt, names: int, values: int, what: str) -> None:
    if names != values:
        message = f"{names} names for {values} values"
        state.fail("TL151", node, message, f"{what} has {values}", "write one name for each")


def _independent(names: list[ast.Name], values: list[ast.expr]) -> bool:
    """No value needs a name that is assigned before it: the assignments may follow one another."""
    earlier: set[str] = set()
    for name, value in zip(names, values, strict=True):
        if earlier & {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}:
            return False
        earlier.add(name.id)
    return len(earlier) == len(names)


def _bind_value(
    state: Lowering, target: ast.Name, value: Value, *, static: bool | None = None, name: str | None = None
) -> None:
    """Gives a name the value that an op has just assigned to it. `static`: see `Variable`; None: by what names are now.
    `name`: what the ops call it, if they do not call it as lines that assign it do."""
    known = value.rank == 0 and state.static(value) if static is None else static
    called = value.called(state.said(target.id) if name is None else name)
    state.bind(target.id, Variable(called, state.loc(target), static=known), target)


# ----------------------------------------------------------------------------------------------------------- the domain
def _domain(state: Lowering, names: list[ast.Name], param: Param, node: ast.Call, *, alone: bool) -> None:
    """Binds the indices of the program's tile; `alone`: to one name for all of them, if there are several."""
    axes = param.shape.axes
    whole = alone and len(axes) != 1
    written = [None if n.id == "_" else n.id for n in names]
    if whole:
        written = [state.fresh(f"{names[0].id}_{a.name.lower()}") for a in axes]
    if len(written) != len(axes):
        why = f"`{param.name}` is `{param.shape}`"
        why += "; axes behind `...` have no index" if param.shape.rest is not None else ""
        hint = f"write {len(axes)}; `_` for one that you do not need"
        state.fail("TL151", node, f"{len(names)} names for {count(len(axes), 'axis', 'axes')}", why, hint)
    kept = [n for n in written if n]
    if len(set(kept)) < len(kept):
        why = "every axis has an index of its own"
        state.fail("TL151", node, "one name for two axes", why, "use different names")
    if state.domain is not None:
        why, note = "a program runs for the tiles of one tensor", Note("the first is here", state.domain.loc)
        state.fail("TL150", node, "a second `tl.tile_id`", why, "walk other tensors with `tl.tiles`", (note,))
    if state.around:
        why = "every run of the program is for one tile"
        state.fail("TL150", node, "`tl.tile_id` in a branch or a loop", why, "write it at the top of the program")
    if not param.shape.axes:
        why = f"`{param.name}` is `{param.shape}`; axes behind `...` have no index"
        state.fail("TL151", node, "no axis to take a tile of", why, "name an axis in the signature")
    state.domain = Tile(names=tuple(written), param=param.name, loc=state.loc(node))
    state.ops.append(state.domain)
    for number, name in enumerate(written):
        if name is not None:
            _bind_index(state, name, param, number, names[0], name)
    if whole:
        state.bind(names[0].id, TileTuple(tuple(kept), state.loc(node)), names[0])


def _bind_index(state: Lowering, name: str, param: Param, number: int, target: ast.Name, var: str) -> None:
    """A name for an index of an axis: a tile, or a position if the axis is walked singly. `var`: what the ops call it."""
    axis, loc = param.shape.axes[number], state.loc(target)
    if axis.unit:
        found = root(var, loc, dim=axis.name, coordinate=axis.name == RANK_AXIS)
    else:
        found = TileIndex(var, axis.name, param.name, number, loc)
    state.bind(name, found, target)


# ---------------------------------------------------------------------------------------------------------------- loops
def _for(state: Lowering, node: ast.For) -> None:
    _no_else(state, node)
    target = node.target
    if not isinstance(target, ast.Name):
        why = "a loop gives one index at a time"
        state.fail("TL111", target, f"a loop into `{ast.unparse(target)}` in a tile program", why, "write one name")
    _check_target(state, target)
    if is_index(old := state.env.get(target.id)):
        state.bound_again(target.id, old.loc, target)
    if isinstance(node.iter, ast.Call):
        found = state.look_up(node.iter.func)
        if isinstance(found, Primitive) and found.name == "tiles":
            _tiles(state, node, node.iter, target)
            return
        if found == Builtin("range") or (isinstance(found, Language) and found.path in ("tl.range", "tl.static_range")):
            _range(state, node, node.iter, target)
            return
    message = f"a loop over `{ast.unparse(node.iter)}` in a tile program"
    hint = "write `tl.tiles(...)`, `range(...)`, `tl.range(...)` or `tl.static_range(...)`"
    state.fail("TL111", node.iter, message, "a loop walks tiles or counts", hint)


def _no_else(state: Lowering, node: ast.For | ast.While) -> None:
    if node.orelse:
        what, why = "`else` of a loop in a tile program", "a loop has no `break`"
        state.fail("TL111", node.orelse[0], what, why, "write it after the loop")


def _tiles(state: Lowering, node: ast.For, call: ast.Call, target: ast.Name) -> None:
    walk: Tiles = primitives.invoke(state, call, "tiles")
    param = state.params[walk.param]
    axis = param.shape.axes[walk.axis]
    var = state.loop_variable(target.id, (axis, walk.limited))

    def bind() -> None:
        _bind_index(state, target.id, param, walk.axis, target, var)

    limits = (e for e in (walk.start, walk.stop, *(walk.part or ())) if e is not None)
    positional = all(e.positional for e in limits) and not axis.by_table
    body = _body(state, node, target.id, var, bind, positional=positional)
    said = target.id if var != target.id else None
    state.ops.append(replace(walk, var=var, body=body, said=said, loc=state.loc(node)))


def _range(state: Lowering, node: ast.For, call: ast.Call, target: ast.Name) -> None:
    header = state.lower(call)
    loc, var = state.loc(target), state.loop_variable(target.id, "range")
    limits = _limits(call, header.entries)
    kept = any(target.id in bound_names(s) for s in node.body)

    def bind() -> None:
        counted = root(var, loc) if header.positional else Variable(named(var, positional=False), loc)
        state.bind(target.id, counted, target)

    body = _body(state, node, target.id, var, bind, positional=header.positional, kept=loc if kept else None)
    text = Expr(f"for {var} in {header.text}", header.names, False, header.positional)
    state.ops.append(Loop(header=text, target=var, body=body, limits=limits, loc=state.loc(node)))


def _limits(call: ast.Call, given: Sequence[Value]) -> tuple[Formula, Formula, int] | None:
    """Where a range begins, where it stops, and its step, as far as positions say."""
    steps = [*call.args[2:], *(k.value for k in call.keywords if k.arg == "step")]
    step = constant_of(steps[0]) if steps else 1
    if not given or any(k.arg in ("arg1", "arg2") for k in call.keywords):
        return None
    start, stop = (v.formula for v in given[:2]) if len(given) > 1 else (Const(0), given[0].formula)
    if not isinstance(step, int) or not step or start is None or stop is None:
        return None
    return start, stop, int(step)


def _while(state: Lowering, node: ast.While) -> None:
    """A `while`; its test may use what the loop changes."""
    _no_else(state, node)
    tests: list[Value] = []

    def bind() -> None:
        with state.under(WHILE_TEST):
            tests.append(state.lower(node.test))

    body = _body(state, node, None, None, bind, positional=False)
    test = tests[-1]
    header = Expr(f"while {test.text}", test.names, False, test.positional, test.formula)
    state.ops.append(Loop(header=header, target=None, body=body, limits=None, loc=state.loc(node)))


def _body(
    state: Lowering, node: ast.For | ast.While, target: str | None, var: str | None, bind: Callable[[], None],
    *, positional: bool, kept: Loc | None = None,
) -> tuple[Op, ...]:  # fmt: skip
    """The ops of a body, lowered again until what names mean at its head no longer changes. `kept`: its lines assign the
    name of its variable, too; where that is bound."""
    mark, before = state.mark(), {n: b for n, b in state.env.items() if n != target}
    while True:
        state.rewind(mark)
        state.env = dict(before)
        bind()
        with state.block(var) as ops:
            if target is not None and kept is not None:
                state.keep(target, kept)
            lower_block(state, node.body)
        after = at_loop_head(before, state.env, state.said, positional=positional)
        if after == before:
            break
        before = after
    for name, binding in state.env.items():
        if name not in before:
            state.lose(name, binding, state.loc(node))
    state.env = before
    return tuple(ops)


_HANDLERS: Mapping[type[ast.stmt], Callable[[Lowering, Any], None]] = {
    ast.Pass: lambda _state, _node: None,
    ast.Expr: _line,
    ast.Assert: lambda state, node: _check(state, node, node.test, [] if node.msg is None else [node.msg]),
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.For: _for,
    ast.While: _while,
}
