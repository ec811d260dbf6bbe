"""The body of a tile program, op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilelink.codegen import access, loops, memory, signals
from tilelink.codegen.scope import TRITON_DTYPES, Scope
from tilelink.codegen.text import atom
from tilelink.ir.partition import GridAxis, extent
from tilelink.ir.program import (
    Bounds,
    Check,
    Holder,
    If,
    Let,
    Load,
    Loop,
    Move,
    Notify,
    Op,
    Raw,
    Store,
    Tile,
    Tiles,
    Wait,
)
from tilelink.ir.shape import accumulator
from tilelink.ir.wiring import TensorDecl, ViewAxis


def emit_body(scope: Scope, body: tuple[Op, ...]) -> None:
    for op in body:
        scope.loc = op.loc
        _EMIT[type(op)](scope, op)


def _nothing(scope: Scope, op: Tile) -> None:
    del scope, op


def _bounds(scope: Scope, op: Bounds) -> None:
    """Nothing is emitted but of a mask: the name stands for what is known already."""
    if op.what == "mask":
        return loops.emit_mask(scope, op)
    scope.replaced[op.name] = _bound(scope, op)
    scope.inside.update([op.name] if op.what in ("begin", "segment") else [])


def _bound(scope: Scope, op: Bounds) -> str:
    tensor = scope.declared(op.param)
    view = scope.step.step.binding(op.param).view
    if op.what == "shape":
        blocks = [(g, v) for g, v in zip(scope.step.grid, view, strict=True) if not v.unit and not g.unit]
        shape = [_extent(scope, tensor, g, v) for g, v in blocks]
        return "[" + ", ".join(shape) + "]"
    if op.what == "acc_dtype":
        return TRITON_DTYPES[accumulator(tensor.dtype)]
    if op.what == "size":
        return atom(scope.text(extent(tensor, view[op.axis or 0], scope.step.axis)))
    if op.what == "range" and op.var is None:
        along = view[op.axis or 0]
        return access.lanes(access.whole(scope, along.dim, extent(tensor, along, scope.step.axis)))
    assert op.var is not None
    if op.what == "segment":
        return scope.segments[op.var]
    tile = scope.tiles[op.var]
    if op.what == "range":
        return access.lanes(tile)
    if op.what == "end":
        tile.used.add("end")
    return tile.begin if op.what == "begin" else tile.end


def _extent(scope: Scope, tensor: TensorDecl, grid: GridAxis, view: ViewAxis) -> str:
    """Elements of a tile's block along an axis, which the program may have no name for."""
    if grid.var in scope.tiles:
        return str(scope.tiles[grid.var].extent)
    assert view.axis is not None
    return str(grid.tile or access.padded(scope, tensor.axes[view.axis].size))


def _holder(scope: Scope, op: Holder) -> None:
    text = scope.text(scope.part.holder(op))
    scope.lines.add(f"{scope.local(op.name)} = {text}", op.loc)


def _let(scope: Scope, op: Let) -> None:
    targets = ", ".join(scope.local(name) for name in op.target)
    scope.lines.add((f"{targets} = " if targets else "") + scope.expression(op.value), op.loc)


def _check(scope: Scope, op: Check) -> None:
    condition = scope.expression(op.condition)
    if scope.reports.checks.debug:
        report = scope.report("holds", op.text or f"`{op.condition.text}`", op.loc)
        scope.lines.add(f"shmem.check({condition}, {report}, t)", op.loc)
    else:
        scope.lines.add(f"tl.device_assert({condition}, {op.text!r})", op.loc)


def _move(scope: Scope, op: Move) -> None:
    raise AssertionError(f"a copy program is emitted as a whole: {scope.step.path}, {op.loc}")


def _raw(scope: Scope, op: Raw) -> None:
    """Raw pointers: what the program says goes into the text as it is."""
    args = [scope.expression(a) for a in op.args]
    if op.what == "pointer":
        text = scope.tensor(scope.declared(op.param or "").name)
    elif op.what == "rank":
        text = scope.rank
    elif op.what == "effect":
        text = args[0]
    else:
        context = [scope.context()] if op.what in ("symm_at", "notify") else []
        text = f"shmem.{op.what}({', '.join([*args, *context])})"
    scope.lines.add(text if op.name is None else f"{scope.local(op.name)} = {text}", op.loc)


_EMIT: dict[type, Callable[[Scope, Any], None]] = {
    Tile: _nothing,
    Tiles: lambda scope, op: loops.tiles(scope, op, emit_body),
    Loop: lambda scope, op: loops.loop(scope, op, emit_body),
    If: lambda scope, op: loops.branch(scope, op, emit_body),
    Bounds: _bounds,
    Holder: _holder,
    Load: memory.load,
    Store: memory.store,
    Move: _move,
    Notify: signals.notify,
    Wait: signals.wait,
    Let: _let,
    Check: _check,
    Raw: _raw,
}
