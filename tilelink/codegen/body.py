"""The body of a tile program, op by op."""

from __future__ import annotations

from tilelink.codegen import access, loops, memory, signals
from tilelink.codegen.scope import TRITON_DTYPES, Scope
from tilelink.codegen.text import atom
from tilelink.ir import program as P
from tilelink.ir.partition import extent
from tilelink.ir.shape import accumulator


def emit_body(scope: Scope, body: tuple[P.Op, ...]) -> None:
    for op in body:
        scope.loc = op.loc
        match op:
            case P.Tiles():
                loops.tiles(scope, op, emit_body)
            case P.Loop():
                loops.loop(scope, op, emit_body)
            case P.If():
                loops.branch(scope, op, emit_body)
            case P.Bounds():
                _bounds(scope, op)
            case P.Load():
                memory.load(scope, op)
            case P.Store():
                memory.store(scope, op)
            case P.Notify():
                signals.notify(scope, op)
            case P.Wait():
                signals.wait(scope, op)
            case P.Holder():
                scope.lines.add(f"{scope.local(op.name)} = {scope.text(scope.part.holder(op))}", op.loc)
            case P.Let():
                targets = ", ".join(scope.local(name) for name in op.target)
                scope.lines.add((f"{targets} = " if targets else "") + scope.expression(op.value), op.loc)
            case P.Check():
                _check(scope, op)
            case P.Raw():
                _raw(scope, op)
            case P.Move():
                raise AssertionError(f"a copy program is emitted as a whole: {scope.step.path}, {op.loc}")
            case P.Tile():
                pass


def _bounds(scope: Scope, op: P.Bounds) -> None:
    """Nothing is emitted but of a mask: the name stands for what is known already."""
    if op.what == "mask":
        return loops.emit_mask(scope, op)
    scope.replaced[op.name] = _bound(scope, op)
    scope.inside.update([op.name] if op.what in ("begin", "segment") else [])


def _bound(scope: Scope, op: P.Bounds) -> str:
    tensor = scope.declared(op.param)
    view = scope.step.step.binding(op.param).view
    if op.what == "shape":
        # Of a tile's block, elements along an axis, which the program may have no name for.
        shape: list[str] = []
        for g, v in zip(scope.step.grid, view, strict=True):
            if g.var in scope.tiles and not v.unit and not g.unit:
                shape.append(str(scope.tiles[g.var].extent))
            elif not v.unit and not g.unit:
                assert v.axis is not None
                shape.append(str(g.tile or access.padded(scope, tensor.axes[v.axis].size)))
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


def _check(scope: Scope, op: P.Check) -> None:
    condition = scope.expression(op.condition)
    if scope.reports.checks.debug:
        report = scope.report("holds", op.text or f"`{op.condition.text}`", op.loc)
        scope.lines.add(f"shmem.check({condition}, {report}, t)", op.loc)
    else:
        scope.lines.add(f"tl.device_assert({condition}, {op.text!r})", op.loc)


def _raw(scope: Scope, op: P.Raw) -> None:
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
