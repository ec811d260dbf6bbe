"""Where the tiles of a step lie, as arrays: one row per rank, one column per tile of one axis, never a product of axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.plan import GridAxis, Plan, here, part

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals `[begin, end)` on one axis; `real` marks those that exist. All have the shape (1 or ranks, tiles)."""

    begin: Ints
    end: Ints
    real: Bools

    @property
    def filled(self) -> Bools:
        return self.real & (self.begin < self.end)

    def packed(self) -> Spans:
        """Only the intervals that exist, the first of each rank in the first column."""
        most = int(self.real.sum(axis=1).max(initial=0))
        order = np.argsort(~self.real, axis=1, kind="stable")[:, :most]
        begin, end = np.take_along_axis(self.begin, order, axis=1), np.take_along_axis(self.end, order, axis=1)
        return Spans(begin, end, np.take_along_axis(self.real, order, axis=1))

    def shifted(self, by: Ints) -> Spans:
        return evened(self.begin + by, self.end + by, self.real)

    def where(self, mask: Bools) -> Spans:
        return evened(self.begin, self.end, self.real & mask)


def evened(begin: Ints, end: Ints, real: Bools) -> Spans:
    """The three in one shape."""
    shape = np.broadcast_shapes(begin.shape, end.shape, real.shape)
    return Spans(np.broadcast_to(begin, shape), np.broadcast_to(end, shape), np.broadcast_to(real, shape))


@dataclass(frozen=True, slots=True)
class World:
    """A plan's formulas, evaluated on all ranks at once."""

    plan: Plan
    _axes: dict[GridAxis, Spans | None] = field(default_factory=dict[GridAxis, "Spans | None"])

    @property
    def ranks(self) -> int:
        return self.plan.topology.ranks

    def value(self, formula: F.Like, more: Mapping[str, Any] | None = None) -> Any:
        """A 2-D array: one row, or one per rank where the formula depends on the rank."""
        env: dict[str, Any] = {**dict(self.plan.sizes), "RANKS": self.ranks, "rank": _column(self.ranks)}
        found = np.asarray(F.evaluate(formula, {**env, **(more or {})}))
        return found.reshape((1,) * (2 - found.ndim) + found.shape) if found.ndim < 2 else found

    def number(self, formula: F.Like) -> int:
        """The greatest value over the ranks."""
        return int(self.value(formula).max())

    def part(self, size: Formula) -> int:
        return self.number(part(size))

    def axis(self, grid: GridAxis) -> Spans | None:
        """The partition on every rank; None where it is a table's."""
        if grid not in self._axes:
            self._axes[grid] = None if grid.kind == "table" else self._partition(grid)
        return self._axes[grid]

    def _partition(self, grid: GridAxis) -> Spans:
        count = self.value(grid.count)
        index = np.arange(int(count.max()), dtype=np.int64)[None, :]
        begin, end = (
            self.value(grid.begin(F.Sym("_at")), {"_at": index}),
            self.value(grid.end(F.Sym("_at")), {"_at": index}),
        )
        return evened(begin.astype(np.int64), end.astype(np.int64), index < count)

    def own(self, size: Formula) -> Spans:
        """Each rank's part of a split axis."""
        first = _column(self.ranks) * self.part(size)
        return evened(first, first + self.value(here(size)), np.ones((1, 1), dtype=np.bool_))

    def whole(self, size: Formula) -> Spans:
        end = self.value(size).astype(np.int64)
        return Spans(np.zeros_like(end), end, np.ones_like(end, dtype=np.bool_))


def _column(ranks: int) -> Ints:
    return np.arange(ranks, dtype=np.int64)[:, None]
