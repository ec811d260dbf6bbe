"""The runs in which a library function takes a tile: which positions its program walks, cut where ranks' parts end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis, extent, part
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Bounds, Expr, Loop, Op, Tiles
from tilelink.ir.ring import RANKS
from tilelink.mapping.exact.touched import Span
from tilelink.mapping.libraries import axis_of, turns


def runs_of(plan: Plan, step: StepPlan, rank: int, bounds: Sequence[Span]) -> tuple[Span, ...]:
    """Begin and end of each run of a tile, in the order in which ranks' parts arrive: this rank's own first.

    Args:
        bounds: of the tile's axes.
    """
    axis, env = axis_of(step), plan.env(rank)
    size, each = (int(F.evaluate(f, env)) for f in (axis.size, part(axis.size, axis.over)))
    at, ranks = plan.topology.at(rank, step.axis), plan.topology.size(step.axis)
    found: list[tuple[int, Span]] = []
    for begin, end in _Walk(plan, step, rank, bounds).intervals(size):
        for lo, hi in _cut(max(begin, 0), min(end, size), axis, each):
            found.append(((lo // each - at) % ranks if axis.kind == "cut" else 0, (lo, hi)))
    return tuple(span for _, span in sorted(found, key=lambda item: item[0]))


def _cut(begin: int, end: int, axis: GridAxis, each: int) -> Iterator[Span]:
    """An interval in pieces that end at borders of parts, and of tiles counted from those."""
    while begin < end:
        first = begin // each * each if axis.kind == "cut" else 0
        border = first + each if axis.kind == "cut" else end
        if axis.tile is not None:
            border = min(border, first + ((begin - first) // axis.tile + 1) * axis.tile)
        yield begin, min(border, end)
        begin = min(border, end)


class _Walk:
    """A program's loops over an axis, for one tile. Names are the program's own, which may be those of the plan's sizes."""

    def __init__(self, plan: Plan, step: StepPlan, rank: int, bounds: Sequence[Span]) -> None:
        self._plan, self._step, self._rank = plan, step, rank
        self._tile = {g.var: b for g, b in zip(step.grid, bounds, strict=True)}
        self._names: dict[str, F.Number] = {RANKS.name: plan.topology.size(step.axis), **step.step.compiled}

    def intervals(self, size: int) -> Iterator[Span]:
        """Begin and end of each, in the program's order, on an axis of `size` elements."""
        for op in self._ops(self._step.step.program.body):
            if isinstance(op, Bounds):
                self._bounds(op)
            elif isinstance(op, Tiles):
                yield self._limit(op.start, 0), self._limit(op.stop, size)

    def _ops(self, body: tuple[Op, ...]) -> Iterator[Op]:
        """As often as they are run. Nothing that matters stands under a branch (`unsuitable`)."""
        for op in body:
            yield op
            if isinstance(op, Loop):
                for turn in range(turns(op, self._step.step) or 0):
                    self._names |= {op.target: F.evaluate(op.at(turn), self._names)} if op.target is not None else {}
                    yield from self._ops(op.body)

    def _bounds(self, op: Bounds) -> None:
        step = self._step.step
        if op.what == "size" and op.axis is not None:
            tensor = self._plan.wiring.tensor(step.binding(op.param).tensor)
            size = extent(tensor, step.binding(op.param).view[op.axis], step.axis)
            self._names[op.name] = int(F.evaluate(size, self._plan.env(self._rank)))
        elif op.what in ("begin", "end") and op.var in self._tile:
            self._names[op.name] = self._tile[op.var][0 if op.what == "begin" else 1]

    def _limit(self, said: Expr | None, otherwise: int) -> int:
        if said is None:
            return otherwise
        assert said.formula is not None  # else `unsuitable`
        return int(F.evaluate(said.formula, self._names))
