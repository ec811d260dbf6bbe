"""Statements: primitives on lines of their own, checks, branches and loops become ops."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tilelink.errors import Loc
from tilelink.frontend import assignments, primitives, raw
from tilelink.frontend.bounds import by_table
from tilelink.frontend.expressions import call_of_language, check_known, unsupported
from tilelink.frontend.lowering import Lowering
from tilelink.frontend.refusals import refused
from tilelink.frontend.scope import Builtin, Language, Primitive
from tilelink.frontend.source import bound_names
from tilelink.frontend.values import (
    Environment,
    Value,
    Variable,
    after_branches,
    at_loop_head,
    constant_of,
    is_index,
    named,
    root,
)
from tilelink.frontend.words import WHILE_TEST
from tilelink.ir.formula import Const, Formula
from tilelink.ir.program import Bounds, Check, Expr, Holder, If, Let, Loop, Op, Tiles, walk


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
        check_known(state, node.value.func, found)
        if found.path == "tl.device_print":
            state.ops.append(
                Let(target=(), value=call_of_language(state, node.value, found.name).expr(), loc=state.loc(node))
            )
            return
        if raw.effect(state, node.value, found.name):
            return
        if reason := refused(found.name):
            state.fail("TL123", node, f"`{found.path}` in a tile program", *reason)
        called = f"tl.{found.name}"
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


# ---------------------------------------------------------------------------------------------------------------- loops
def _for(state: Lowering, node: ast.For) -> None:
    """A `for` over `tl.tiles`, `range`, `tl.range` or `tl.static_range`."""
    _no_else(state, node)
    target = node.target
    if not isinstance(target, ast.Name):
        why = "a loop gives one index at a time"
        state.fail("TL111", target, f"a loop into `{ast.unparse(target)}` in a tile program", why, "write one name")
    state.check_target(target)
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
    why, hint = (
        "a loop walks tiles or counts",
        "write `tl.tiles(...)`, `range(...)`, `tl.range(...)` or `tl.static_range(...)`",
    )
    state.fail("TL111", node.iter, f"a loop over `{ast.unparse(node.iter)}` in a tile program", why, hint)


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
        assignments.bind_index(state, target.id, param, walk.axis, target, var)

    limits = (e for e in (walk.start, walk.stop, *(walk.part or ())) if e is not None)
    positional = all(e.positional for e in limits) and not by_table(axis)
    body = _body(state, node, target.id, var, bind, positional=positional)
    said = target.id if var != target.id else None
    state.ops.append(replace(walk, var=var, body=body, said=said, loc=state.loc(node)))


def _range(state: Lowering, node: ast.For, call: ast.Call, target: ast.Name) -> None:
    header = state.lower(call)
    loc, var = state.loc(target), state.loop_variable(target.id, "range")
    limits = _limits(state, call)
    kept = any(target.id in bound_names(s) for s in node.body)

    def bind() -> None:
        counted = root(var, loc) if header.positional else Variable(named(var, positional=False), loc)
        state.bind(target.id, counted, target)

    body = _body(state, node, target.id, var, bind, positional=header.positional, kept=loc if kept else None)
    text = Expr(f"for {var} in {header.text}", header.names, False, header.positional)
    state.ops.append(Loop(header=text, target=var, body=body, limits=limits, loc=state.loc(node)))


def _limits(state: Lowering, call: ast.Call) -> tuple[Formula, Formula, int] | None:
    """Where a range begins, where it stops, and its step, as far as positions say."""
    names = ("stop",) if len(call.args) == 1 else ("start", "stop", "step")
    given = dict(zip(names, call.args, strict=False))
    given |= {str(k.arg): k.value for k in call.keywords if k.arg in ("start", "stop", "step")}
    step = constant_of(given["step"]) if "step" in given else 1
    mark = state.mark()
    start, stop = (state.lower(given[end]).formula if end in given else Const(0) for end in ("start", "stop"))
    state.rewind(mark)  # whatever they need stands there, from the header
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


_HANDLERS: Mapping[type[ast.stmt], Callable[[Lowering, Any], None]] = MappingProxyType(
    {
        ast.Pass: lambda _state, _node: None,
        ast.Expr: _line,
        ast.Assert: _assert,
        ast.Assign: assignments.assign,
        ast.AnnAssign: assignments.annotated,
        ast.AugAssign: assignments.augmented,
        ast.If: _if,
        ast.For: _for,
        ast.While: _while,
    }
)
