"""Statements: assignments, loops, branches and primitives become ops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NoReturn

from tilelink.errors import Note
from tilelink.frontend import primitives, raw
from tilelink.frontend.expressions import check_known
from tilelink.frontend.indices import tile_alias
from tilelink.frontend.loops import for_loop, while_loop
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.merging import after_branches
from tilelink.frontend.scope import Language, Primitive
from tilelink.frontend.unsupported import construct, refused
from tilelink.frontend.values import TileIndex, TileTuple, Value, Variable, constant_of, root
from tilelink.frontend.wording import count
from tilelink.ir.program import Bounds, Check, Expr, Holder, If, Let, Param, Tile, walk
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


def unsupported(state: Lowering, node: ast.AST) -> NoReturn:
    called, hint = construct(node)
    why = "a tile program becomes a GPU kernel; it is read, not run"
    state.fail("TL111", node, f"{called} in a tile program", why, hint)


def _nothing(state: Lowering, node: ast.stmt) -> None:
    del state, node


# -------------------------------------------------------------------------------------------------- lines by themselves
def _line(state: Lowering, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return
    if not isinstance(node.value, ast.Call):
        if type(node.value) in (ast.Yield, ast.YieldFrom, ast.Await):
            unsupported(state, node.value)
        why = "an expression computes; nothing keeps its value"
        state.fail("TL131", node, "a line without effect", why, "assign it to a name, or take it out")
    found = state.look_up(node.value.func)
    if isinstance(found, Primitive) and primitives.PRIMITIVES[found.name].kind == "effect":
        primitives.invoke(state, node.value, found.name)
        return
    if isinstance(found, Language) and found.path in ("tl.device_assert", "tl.static_assert"):
        _check(state, node, node.value.args[0] if node.value.args else node.value, node.value.args[1:])
        return
    if isinstance(found, Language):
        check_known(state, node.value.func, found)
    if isinstance(found, Language) and raw.effect(state, node.value, found.name):
        return
    if isinstance(found, Language) and (reason := refused(found.name)):
        state.fail("TL123", node, f"`{found.path}` in a tile program", *reason)
    called = f"tl.{found.name}" if isinstance(found, (Primitive, Language)) else ast.unparse(node.value.func)
    why = "its value is not kept, and it has no other effect"
    state.fail("TL131", node, f"`{called}` on a line of its own", why, "assign its value to a name, or take it out")


def _assert(state: Lowering, node: ast.Assert) -> None:
    _check(state, node, node.test, [] if node.msg is None else [node.msg])


def _check(state: Lowering, node: ast.stmt, test: ast.expr, message: list[ast.expr]) -> None:
    condition = state.lower(test).expr()
    text = constant_of(message[0]) if message else ast.unparse(test)
    if not isinstance(text, str):
        why = "a kernel carries fixed texts"
        state.fail("TL135", message[0], "the message of a check is computed", why, "write a plain string")
    state.ops.append(Check(condition=condition, text=text, loc=state.loc(node)))


# ----------------------------------------------------------------------------------------------------------- assignment
def _assign(state: Lowering, node: ast.Assign) -> None:
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
    if node.value is None:
        why = "a name is bound by what is assigned to it"
        state.fail("TL111", node, "an annotation without a value", why, "assign a value")
    _to_target(state, node.target, node.value, node)


def _augmented(state: Lowering, node: ast.AugAssign) -> None:
    target = node.target
    if not isinstance(target, ast.Name):
        _bad_target(state, target)
    read = ast.copy_location(ast.Name(target.id, ast.Load()), target)
    _to_target(state, target, ast.copy_location(ast.BinOp(read, node.op, node.value), node), node)


def _to_target(state: Lowering, target: ast.expr, value: ast.expr, node: ast.stmt) -> None:
    if isinstance(target, ast.Name):
        _to_name(state, target, value, node)
    elif isinstance(target, (ast.Tuple, ast.List)):
        names = [e if isinstance(e, ast.Name) else _bad_target(state, e) for e in target.elts]
        _to_names(state, names, value, node)
    else:
        _bad_target(state, target)


def _bad_target(state: Lowering, target: ast.expr) -> NoReturn:
    if isinstance(target, ast.Starred):
        unsupported(state, target)
    hint = "write `tl.tile_store(...)` to change a tensor; assign blocks to plain names"
    state.fail("TL111", target, f"assignment to `{ast.unparse(target)}` in a tile program", "blocks are values", hint)


def _to_name(state: Lowering, target: ast.Name, value: ast.expr, node: ast.stmt) -> None:
    state.check_target(target)
    found = state.look_up(value.func) if isinstance(value, ast.Call) else None
    if isinstance(value, ast.Call) and isinstance(found, Primitive):
        if primitives.PRIMITIVES[found.name].kind == "domain":
            _domain_to_name(state, target, primitives.invoke(state, value, found.name), value)
        else:
            _of_op(state, target, value, found.name)
        return
    alias = tile_alias(state, value)
    if alias is not None:
        state.bind(target.id, alias, target)
        return
    lowered = state.lower(value)
    state.ops.append(Let(target=(state.said(target.id),), value=lowered.expr(), loc=state.loc(node)))
    bind_value(state, target, lowered)


def _of_op(state: Lowering, target: ast.Name, value: ast.Call, primitive: str) -> None:
    """A name for what a primitive gives. Of a name that other lines bind too, its op has another one."""
    once = state.bound_once(target.id)
    lowered = primitives.value_of(state, value, primitive, target.id if once else None)
    bind_value(state, target, lowered, name=lowered.text)
    if not once:
        state.keep(target.id, state.loc(value))


def _to_names(state: Lowering, names: list[ast.Name], value: ast.expr, node: ast.stmt) -> None:
    for name in names:
        state.check_target(name)
    found = state.look_up(value.func) if isinstance(value, ast.Call) else None
    if (
        isinstance(value, ast.Call)
        and isinstance(found, Primitive)
        and primitives.PRIMITIVES[found.name].kind == "domain"
    ):
        _domain_to_names(state, names, primitives.invoke(state, value, found.name), value)
        return
    alias = tile_alias(state, value)
    if isinstance(alias, TileTuple):
        _fits(state, node, len(names), len(alias.vars), f"`{ast.unparse(value)}`")
        for name, var in zip(names, alias.vars, strict=True):
            state.bind(name.id, state.env[var], name)
        return
    if isinstance(value, (ast.Tuple, ast.List)):
        _fits(state, node, len(names), len(value.elts), "the right side")
        if _one_by_one(names, value.elts):
            for name, element in zip(names, value.elts, strict=True):
                _to_name(state, name, element, node)
            return
        _together(state, names, [state.lower(e) for e in value.elts], node)
        return
    lowered = state.lower(value)
    if lowered.length is not None and lowered.length >= 0:
        _fits(state, node, len(names), lowered.length, f"`{ast.unparse(value)}`")
    state.ops.append(Let(target=tuple(state.said(n.id) for n in names), value=lowered.expr(), loc=state.loc(node)))
    for name in names:
        bind_value(state, name, replace(lowered, length=None))


def _fits(state: Lowering, node: ast.stmt, names: int, values: int, what: str) -> None:
    if names != values:
        why = f"{what} has {values}"
        state.fail("TL151", node, f"{names} names for {values} values", why, "write one name for each")


def _one_by_one(names: list[ast.Name], values: list[ast.expr]) -> bool:
    """No value needs a name that is assigned before it: the assignments may follow one another."""
    earlier: set[str] = set()
    for name, value in zip(names, values, strict=True):
        if earlier & {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}:
            return False
        earlier.add(name.id)
    return len(earlier) == len(names)


def _together(state: Lowering, names: list[ast.Name], values: list[Value], node: ast.stmt) -> None:
    made = ast.Tuple([v.node for v in values], ast.Load())
    used = tuple(dict.fromkeys(n for v in values for n in v.names))
    vector, positional = any(v.rank != 0 for v in values), all(v.positional for v in values)
    # Without the parentheses: `a, b = b, a` is how a person writes it.
    expr = Expr(", ".join(ast.unparse(e) for e in made.elts), used, vector, positional)
    state.ops.append(Let(target=tuple(state.said(n.id) for n in names), value=expr, loc=state.loc(node)))
    static = [_is_static(state, v) for v in values]
    for name, value, known in zip(names, values, static, strict=True):
        bind_value(state, name, value, static=known)


def bind_value(
    state: Lowering, target: ast.Name, value: Value, *, static: bool | None = None, name: str | None = None
) -> None:
    """Gives a name the value that an op has just assigned to it. `static`: see `Variable`; None: by what names are now.
    `name`: what the ops call it, if they do not call it as lines that assign it do."""
    made = Variable(
        state.said(target.id) if name is None else name,
        state.loc(target),
        value.rank,
        value.positional,
        value.formula,
        value.length,
        value.coordinate,
        wrapped=value.wrapped,
        static=_is_static(state, value) if static is None else static,
        only_if=value.only_if,
    )
    state.bind(target.id, made, target)


def _is_static(state: Lowering, value: Value) -> bool:
    """Made of constants alone, so the compiler knows it."""
    for name in value.names:
        binding = state.env.get(name)
        if isinstance(binding, Variable) and not binding.static:
            return False
        if binding is None and name not in state.globals:
            return False
    return value.rank == 0 and not any(isinstance(n, ast.Call) for n in ast.walk(value.node))


# ----------------------------------------------------------------------------------------------------------- the domain
def _domain_to_name(state: Lowering, target: ast.Name, param: Param, node: ast.Call) -> None:
    axes = param.shape.axes
    if len(axes) == 1:
        _bind_domain(state, param, [None if target.id == "_" else target.id], node, target)
        return
    names = [state.fresh(f"{target.id}_{a.name.lower()}") for a in axes]
    _bind_domain(state, param, list(names), node, target)
    state.bind(target.id, TileTuple(tuple(names), state.loc(node)), target)


def _domain_to_names(state: Lowering, names: list[ast.Name], param: Param, node: ast.Call) -> None:
    axes = param.shape.axes
    if len(names) != len(axes):
        rest = "; axes behind `...` have no index" if param.shape.rest is not None else ""
        why = f"`{param.name}` is `{param.shape}`{rest}"
        hint = f"write {len(axes)}; `_` for one that you do not need"
        message = f"{len(names)} names for {count(len(axes), 'axis', 'axes')}"
        state.fail("TL151", node, message, why, hint)
    written = [None if n.id == "_" else n.id for n in names]
    if len(set(names_ := [n for n in written if n])) < len(names_):
        why = "every axis has an index of its own"
        state.fail("TL151", node, "one name for two axes", why, "use different names")
    _bind_domain(state, param, written, node, names[0])


def _bind_domain(state: Lowering, param: Param, names: list[str | None], node: ast.Call, target: ast.Name) -> None:
    if state.domain is not None:
        why = "a program runs for the tiles of one tensor"
        note = Note("the first is here", state.domain.loc)
        state.fail("TL150", node, "a second `tl.tile_id`", why, "walk other tensors with `tl.tiles`", (note,))
    if state.nested:
        why = "every run of the program is for one tile"
        state.fail("TL150", node, "`tl.tile_id` in a branch or a loop", why, "write it at the top of the program")
    if not param.shape.axes:
        why = f"`{param.name}` is `{param.shape}`; axes behind `...` have no index"
        state.fail("TL151", node, "no axis to take a tile of", why, "name an axis in the signature")
    state.domain = Tile(names=tuple(names), param=param.name, loc=state.loc(node))
    state.ops.append(state.domain)
    for axis_number, name in enumerate(names):
        if name is not None:
            bind_index(state, name, param, axis_number, target)


def bind_index(state: Lowering, name: str, param: Param, number: int, target: ast.Name, var: str | None = None) -> None:
    """A name for an index of an axis: a tile, or a position if the axis is walked singly. `var`: what the ops call it, if not
    so."""
    var = name if var is None else var
    axis, loc = param.shape.axes[number], state.loc(target)
    if axis.unit:
        coordinate = axis.name == RANK_AXIS
        state.bind(name, root(var, loc, dim=axis.name, coordinate=coordinate), target)
    else:
        state.bind(name, TileIndex(var, axis.name, param.name, number, loc), target)


# --------------------------------------------------------------------------------------------------- branches and loops
def _if(state: Lowering, node: ast.If) -> None:
    test = state.lower(node.test)
    if test.rank > 0:
        why = "one branch is taken for the whole block"
        hint = "choose by element with `tl.where`, or reduce the test to one value with `tl.max`"
        state.fail("TL142", node.test, "an `if` on a block of values", why, hint)
    before, static = dict(state.env), _is_static(state, test)
    body = _branch(state, node.body)
    after_body, state.env = state.env, before.copy()
    orelse = _branch(state, node.orelse)
    after_orelse = state.env
    inner = frozenset(o.name for o in walk((*body, *orelse)) if isinstance(o, (Bounds, Holder)))
    state.env, lost = after_branches(
        after_body, after_orelse, state.said, inner, positional=test.positional, test=test.formula, static=static
    )
    for name in sorted(lost):
        state.lose(name, after_body.get(name) or after_orelse.get(name), state.loc(node))
    state.ops.append(If(test=test.expr(), body=body, orelse=orelse, loc=state.loc(node)))


def _branch(state: Lowering, statements: list[ast.stmt]) -> tuple[Any, ...]:
    with state.block() as ops:
        lower_block(state, statements)
    return tuple(ops)


def _for(state: Lowering, node: ast.For) -> None:
    for_loop(state, node, lower_block, bind_index)


def _while(state: Lowering, node: ast.While) -> None:
    while_loop(state, node, lower_block)


_HANDLERS: Mapping[type[ast.stmt], Callable[[Lowering, Any], None]] = MappingProxyType(
    {
        ast.Pass: _nothing,
        ast.Expr: _line,
        ast.Assert: _assert,
        ast.Assign: _assign,
        ast.AnnAssign: _annotated,
        ast.AugAssign: _augmented,
        ast.If: _if,
        ast.For: _for,
        ast.While: _while,
    }
)
