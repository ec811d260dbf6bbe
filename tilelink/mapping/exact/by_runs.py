"""What a library function is given run by run, against what its program reads, played through."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.exact.events import Box, Recorder
from tilelink.mapping.exact.stream_ops import ComputeRun, Piece, StreamOp
from tilelink.mapping.exact.tiles import Sizes, Span, TileRun

Place: TypeAlias = "tuple[str, int, int, Box]"
"""(tensor, axis of the runs, position there, bounds on the other axes)."""


def differs(sizes: Sizes, step: StepPlan, rank: int, tile: tuple[int, ...], ops: list[StreamOp]) -> str:
    """What the runs of a tile leave out, or read twice; empty: they are what the program reads.

    Args:
        ops: what the stream does for the tile.
    """
    bounds = tuple((sizes.at(g.begin(i), rank), sizes.at(g.end(i), rank)) for g, i in zip(step.grid, tile, strict=True))
    recorder = Recorder(rank, step.path, 0)
    TileRun(sizes, step, rank, tile, recorder).run(bounds)
    axes = _axes(sizes.plan, step)
    wanted, given = Counter[Place](), Counter[Place]()
    for event in recorder.events:
        for access in event.reads:
            _add(wanted, axes, access.instance[0], access.box)
    for op in ops:
        for tensor, piece in zip(step.step.takes, op.inputs, strict=True) if isinstance(op, ComputeRun) else ():
            _add(given, axes, tensor, _placed(sizes, step, rank, tensor, piece))
    for missed, word in ((wanted - given, "leaves out"), (given - wanted, "reads once more")):
        for tensor, axis, at, _ in sorted(missed)[:1]:
            return f"`{step.path}` {word} position {at} along axis {axis} of `{tensor}` in a run"
    return ""


def _axes(plan: Plan, step: StepPlan) -> dict[str, int]:
    """Of each tensor that is read in runs, the axis that they are of."""
    dims = {g.dim for g in step.loops}
    found = ((b.tensor, v) for b in step.step.bindings for v in b.view if v.dim in dims)
    stored = {t.name: [a for a, axis in enumerate(t.axes) if not axis.own_slice] for t in plan.wiring.tensors}
    return {tensor: stored[tensor].index(v.axis) for tensor, v in found if v.axis is not None}


def _add(read: Counter[Place], axes: dict[str, int], tensor: str, box: Box) -> None:
    axis = axes.get(tensor)
    if axis is not None:
        others = (*box[:axis], *box[axis + 1 :])
        read.update((tensor, axis, at, others) for at in range(*box[axis]))


def _placed(sizes: Sizes, step: StepPlan, rank: int, tensor: str, piece: Piece) -> Box:
    """Where a piece of a tensor would lie if the rank's own part were moved, too."""
    if piece.tensor == tensor:
        return piece.bounds
    own = next(i for i in step.in_place if (i.tensor, i.source) == (tensor, piece.tensor))
    size = sizes.plan.wiring.tensor(tensor).axes[own.axis].size
    first = sizes.coordinate(rank, step.axis) * sizes.part(size, step.axis)
    moved: list[Span] = list(piece.bounds)
    moved[own.axis] = moved[own.axis][0] + first, moved[own.axis][1] + first
    return tuple(moved)
