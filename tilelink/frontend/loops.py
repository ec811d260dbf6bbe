"""Loops: `tl.tiles`, `range` and its relatives, `while`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeAlias

from tilelink.errors import Loc
from tilelink.frontend import primitives
from tilelink.frontend.bounds import Walk
from tilelink.frontend.lowering import Lowering, is_index
from tilelink.frontend.merging import Environment, at_loop_head
from tilelink.frontend.scope import Builtin, Language, Primitive
from tilelink.frontend.source import bound_names
from tilelink.frontend.values import Value, Variable, constant_of, root
from tilelink.frontend.words import WHILE_TEST
from tilelink.ir.formula import Const, Formula
from tilelink.ir.program import Expr, Loop, Op, Param, Tiles

Block: TypeAlias = Callable[[Lowering, list[ast.stmt]], None]
BindIndex: TypeAlias = Callable[[Lowering, str, Param, int, ast.Name, str], None]
_RANGES = ("tl.range", "tl.static_range")


def _no_else(state: Lowering, node: ast.For | ast.While) -> None:
    if node.orelse:
        what, why = "`else` of a loop in a tile program", "a loop has no `break`"
        state.fail("TL111", node.orelse[0], what, why, "write it after the loop")


def for_loop(state: Lowering, node: ast.For, block: Block, bind_index: BindIndex) -> None:
    """A `for` over `tl.tiles`, `range`, `tl.range` or `tl.static_range`."""
    _no_else(state, node)
    target = _target(state, node)
    found = state.look_up(node.iter.func) if isinstance(node.iter, ast.Call) else None
    if isinstance(node.iter, ast.Call) and isinstance(found, Primitive) and found.name == "tiles":
        _tiles(state, node, node.iter, target, block, bind_index)
    elif isinstance(node.iter, ast.Call) and _is_range(found):
        _range(state, node, node.iter, target, block)
    else:
        why = "a loop walks tiles or counts"
        hint = "write `tl.tiles(...)`, `range(...)`, `tl.range(...)` or `tl.static_range(...)`"
        state.fail("TL111", node.iter, f"a loop over `{ast.unparse(node.iter)}` in a tile program", why, hint)


def _is_range(found: object) -> bool:
    return (isinstance(found, Builtin) and found.name == "range") or (
        isinstance(found, Language) and found.path in _RANGES
    )


def _target(state: Lowering, node: ast.For) -> ast.Name:
    target = node.target
    if not isinstance(target, ast.Name):
        why = "a loop gives one index at a time"
        state.fail("TL111", target, f"a loop into `{ast.unparse(target)}` in a tile program", why, "write one name")
    state.check_target(target)
    if is_index(old := state.env.get(target.id)):
        state.bound_again(target.id, old.loc, target)
    return target


def _tiles(
    state: Lowering, node: ast.For, call: ast.Call, target: ast.Name, block: Block, bind_index: BindIndex
) -> None:
    walk = primitives.invoke(state, call, "tiles")
    assert isinstance(walk, Walk)
    var = state.loop_variable(target.id, (walk.axis, walk.limited))

    def bind() -> None:
        bind_index(state, target.id, walk.param, walk.at, target, var)

    body = _body(state, node.body, target.id, var, bind, block, walk.positional, state.loc(node))
    state.ops.append(
        Tiles(
            var=var,
            param=walk.param.name,
            axis=walk.at,
            body=body,
            start=walk.start.expr() if walk.start else None,
            stop=walk.stop.expr() if walk.stop else None,
            part=(walk.part[0].expr(), walk.part[1].expr()) if walk.part else None,
            said=target.id if var != target.id else None,
            loc=state.loc(node),
        )
    )


def _range(state: Lowering, node: ast.For, call: ast.Call, target: ast.Name, block: Block) -> None:
    header = state.lower(call)
    assert isinstance(header.node, ast.Call)
    loc, var = state.loc(target), state.loop_variable(target.id, "range")

    def bind() -> None:
        state.bind(target.id, root(var, loc) if header.positional else _counted(var, loc), target)

    limits = _limits(state, call)

    def body_of(state: Lowering, statements: list[ast.stmt]) -> None:
        if any(target.id in bound_names(s) for s in statements):
            state.keep(target.id, loc)
        block(state, statements)

    body = _body(state, node.body, target.id, var, bind, body_of, header.positional, state.loc(node))
    text = Expr(f"for {var} in {header.text}", header.names, False, header.positional)
    state.ops.append(Loop(header=text, target=var, body=body, limits=limits, loc=state.loc(node)))


def _limits(state: Lowering, call: ast.Call) -> tuple[Formula, Formula, int] | None:
    """Where a range begins, where it stops, and its step, as far as positions say."""
    given = dict(zip(("start", "stop", "step"), call.args, strict=False))
    if len(call.args) == 1:
        given = {"stop": call.args[0]}
    given |= {str(k.arg): k.value for k in call.keywords if k.arg in ("start", "stop", "step")}
    step = constant_of(given["step"]) if "step" in given else 1
    mark = state.mark()
    ends = [state.lower(given[end]).formula if end in given else Const(0) for end in ("start", "stop")]
    state.rewind(mark)  # whatever they need stands there, from the header
    if not isinstance(step, int) or not step or ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1], int(step)


def _counted(name: str, loc: Loc) -> Variable:
    return Variable(name, loc, positional=False)


def while_loop(state: Lowering, node: ast.While, block: Block) -> None:
    """A `while`; its test may use what the loop changes."""
    _no_else(state, node)
    tests: list[Value] = []

    def bind() -> None:
        with state.under(WHILE_TEST):
            tests.append(state.lower(node.test))

    body = _body(state, node.body, None, None, bind, block, False, state.loc(node))
    test = tests[-1]
    header = Expr(f"while {test.text}", test.names, False, test.positional, test.formula)
    state.ops.append(Loop(header=header, target=None, body=body, limits=None, loc=state.loc(node)))


def _body(
    state: Lowering, statements: list[ast.stmt], target: str | None, var: str | None, bind: Callable[[], None],
    block: Block, positional: bool, loc: Loc,
) -> tuple[Op, ...]:  # fmt: skip
    """The ops of a body, lowered again until what names mean at its head no longer changes."""
    outside: Environment = {n: b for n, b in state.env.items() if n != target}
    mark, before = state.mark(), outside
    while True:
        state.rewind(mark)
        state.env = dict(before)
        bind()
        with state.block(var) as ops:
            block(state, statements)
        after = at_loop_head(before, state.env, state.said, positional=positional)
        if after == before:
            break
        before = after
    for name, binding in state.env.items():
        if name not in before:
            state.lose(name, binding, loc)
    state.env = before
    return tuple(ops)
