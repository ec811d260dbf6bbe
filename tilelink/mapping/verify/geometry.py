"""Where the tiles of a step lie, as arrays: one row per rank, one column per tile of one axis, never a product of axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.partition import GridAxis, here, holder, part
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along
from tilelink.ir.wiring import TensorDecl

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
NOWHERE: Bools = np.zeros((1, 1), dtype=np.bool_)
"""Of ranks: none."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals `[begin, end)` on one axis; `real` marks those that exist.

    Arrays of shape (1 or ranks, tiles): often only `real` differs from rank to rank.
    """

    begin: Ints
    end: Ints
    real: Bools

    @property
    def filled(self) -> Bools:
        return self.real & (self.begin < self.end)

    @property
    def nowhere(self) -> Bools:
        """Ranks that have none: a column."""
        return np.asarray(~self.filled.any(axis=1, keepdims=True))

    @property
    def rows(self) -> int:
        return max(self.begin.shape[0], self.end.shape[0], self.real.shape[0])

    def shifted(self, by: Ints) -> Spans:
        return Spans(self.begin + by, self.end + by, self.real)

    def where(self, mask: Bools) -> Spans:
        return Spans(self.begin, self.end, self.real & mask)

    def evened(self) -> Spans:
        """All three in one shape."""
        shape = (self.rows, self.begin.shape[1])
        begin, end = np.broadcast_to(self.begin, shape), np.broadcast_to(self.end, shape)
        return Spans(begin, end, np.broadcast_to(self.real, shape))

    def packed(self) -> Spans:
        """Where few intervals exist: these only, the first of each rank in the first column."""
        if self.real.shape[0] == 1 or 4 * int(np.count_nonzero(self.real)) > self.real.size:
            return self
        row, col = np.nonzero(self.real)
        counts = np.bincount(row, minlength=self.rows)
        at = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (self.rows, int(counts.max(initial=0)))
        begin, end = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        even = self.evened()
        begin[row, at], end[row, at] = even.begin[row, col], even.end[row, col]
        return Spans(begin, end, np.arange(shape[1])[None, :] < counts[:, None])


@dataclass(frozen=True, slots=True)
class World:
    """A plan's formulas, evaluated on all ranks at once."""

    plan: Plan
    _axes: dict[GridAxis, Spans | None] = field(default_factory=dict[GridAxis, "Spans | None"])
    _known: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ranks(self) -> int:
        return self.plan.topology.ranks

    def value(self, formula: F.Like, more: Mapping[str, Any] | None = None) -> Any:
        """A 2-D array: one row, or one per rank where the formula depends on the rank."""
        if not self._known:
            self._known.update(self.plan.sizes, RANKS=self.ranks, rank=_column(self.ranks))
            for axis in self.plan.axes:
                self._known.update({rank_along(axis).name: self.at(axis), ranks_along(axis).name: self.along(axis)})
            self._known.update({name: _rows(rows) for name, rows in self.plan.tables})
        found = np.asarray(F.evaluate(formula, {**self._known, **(more or {})}))
        return found.reshape((1,) * (2 - found.ndim) + found.shape) if found.ndim < 2 else found

    def number(self, formula: F.Like) -> int:
        """The greatest value over the ranks."""
        return int(self.value(formula).max())

    def each(self, column: Any) -> Any:
        """One value for each rank, of a column that may have one for all."""
        return np.broadcast_to(column, (self.ranks, 1))[:, 0]

    def part(self, size: Formula, over: str = RANK_AXIS) -> int:
        return self.number(part(size, over))

    # ---------------------------------------------------------------------------------------------- axes of ranks
    def along(self, axis: str) -> int:
        """How many ranks there are along an axis."""
        return self.plan.topology.size(axis)

    def at(self, axis: str) -> Ints:
        """Each rank's coordinate on an axis: a column."""
        return np.asarray(self.plan.topology.at(_column(self.ranks), axis), dtype=np.int64)  # type: ignore[arg-type]

    def peers(self, axis: str, at: Ints) -> Ints:
        """The ranks with these coordinates in each rank's line along an axis."""
        if len(self.plan.axes) == 1:
            return at
        return _column(self.ranks) + (at - self.at(axis)) * self.plan.topology.stride(axis)

    def lines(self, axis: str) -> Ints | None:
        """(rank, place): the members of each rank's line; None: all ranks are in one."""
        if len(self.plan.axes) == 1:
            return None
        return self.peers(axis, np.arange(self.along(axis), dtype=np.int64)[None, :])

    def same_line(self, axis: str) -> Bools:
        """(rank, rank): whether they differ along the axis only."""
        line = self.lines(axis)
        out = np.ones((self.ranks, self.ranks), dtype=np.bool_)
        if line is not None:
            out[:] = False
            np.put_along_axis(out, line, values=True, axis=1)
        return out

    def axis(self, grid: GridAxis) -> Spans | None:
        """The partition on every rank; None where it is a table's."""
        if grid not in self._axes:
            self._axes[grid] = None if grid.kind == "table" else self._partition(grid)
        return self._axes[grid]

    def _partition(self, grid: GridAxis) -> Spans:
        count = self.value(grid.count)
        index = np.arange(int(count.max()), dtype=np.int64)[None, :]
        # A begin that is the same for all tiles, also where there is none, has a column for each as well.
        begin, end = (
            np.add(self.value(edge(F.Sym("_at")), {"_at": index}), 0 * index, dtype=np.int64)
            for edge in (grid.begin, grid.end)
        )
        return Spans(begin, end, index < count)

    def by_rank(self, *formulas: Formula) -> bool:
        """Whether some of the formulas are not the same on every rank."""
        ranked = {rank_along(axis).name for axis in (RANK_AXIS, *self.plan.axes)}
        return any(ranked & F.symbols(f) for f in formulas)

    def several(self, step: StepPlan) -> tuple[int, ...]:
        """The axes of a step's grid along which a rank may have several tiles."""
        return tuple(a for a, g in enumerate(step.grid) if g.kind == "table" or self.number(g.count) > 1)

    def holders(self, tensor: TensorDecl, axis: int, at: Ints) -> Ints:
        """Which of the ranks along the axis of the split holds each of some positions, in their shape."""
        found = self.value(holder(tensor, axis, F.Sym("_at")), {"_at": at}).astype(np.int64)
        return np.broadcast_to(found, np.broadcast_shapes(found.shape, at.shape))

    def own(self, size: Formula, over: str) -> Spans:
        """Each rank's part of a split axis."""
        first = self.at(over) * self.part(size, over)
        return Spans(first, first + self.value(here(size, over=over)), np.ones((1, 1), dtype=np.bool_))

    def whole(self, size: Formula) -> Spans:
        end = self.value(size).astype(np.int64)
        return Spans(np.zeros_like(end), end, np.ones_like(end, dtype=np.bool_))


def _column(ranks: int) -> Ints:
    return np.arange(ranks, dtype=np.int64)[:, None]


def _rows(rows: tuple[tuple[int, ...], ...]) -> Any:
    """A table of all ranks; shorter rows end with zeros, which no tile's position reaches."""
    longest = max(map(len, rows))
    return np.array([[*row, *[0] * (longest - len(row))] for row in rows], dtype=np.int64)
