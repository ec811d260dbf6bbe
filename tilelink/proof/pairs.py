"""Which executions of a write and of a read meet: for each of the read's, and each cell that it touches, by which of the write's
the cell is written.

That is looked up: places that depend on different axes of the write are apart from one another, and each has a table of its own,
from cells to indices along the write's axes. So whatever the write does with these cells is an array over those axes of the
read, and of its cells, alone on which it depends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilelink.proof.cells import MOST, Boxes, Cells, TooMany, joined, within
from tilelink.proof.runs import Runs, depends, together
from tilelink.proof.table import Array, along


@dataclass(frozen=True, slots=True)
class _Factor:
    """Places of a box and the axes on which they depend. `table`: (cells…) the index along the axes taken as one, -1: none;
    None: more than one execution touches a cell."""

    places: tuple[int, ...]
    axes: tuple[int, ...]
    taken: tuple[Array, ...]
    table: Array | None


@dataclass(frozen=True, slots=True)
class Writes:
    """The executions of a write, told apart along the axes of its table that matter: of its box, and of its signals."""

    runs: Runs
    axes: set[int]
    boxes: Boxes
    cells: Cells
    factors: tuple[_Factor, ...]

    @staticmethod
    def of(runs: Runs, axes: set[int], boxes: Boxes, extents: tuple[int, ...], ranks: int) -> Writes:
        cells = Cells.of(extents, ranks, [boxes])
        return Writes(runs, axes, boxes, cells, tuple(_factors(runs, axes, boxes, cells)))


def _factors(runs: Runs, axes: set[int], boxes: Boxes, cells: Cells) -> Iterator[_Factor]:
    several = {k for k in axes if runs.shape[k] != 1}
    on = [depends(*place) for place in boxes.places]
    groups = joined([tuple(s) for s in (*on, *(depends(c) for c in boxes.taken), *({k} for k in several)) if s])
    for group in (*groups, tuple[int, ...]()):
        places = tuple(k for k, s in enumerate(on) if (s & {*group} if group else not s))
        taken = tuple(c for c in boxes.taken if depends(c) & {*group})
        yield _Factor(places, group, taken, _table(runs, boxes, cells, places, group, taken))


def _table(
    runs: Runs, boxes: Boxes, cells: Cells, places: tuple[int, ...], axes: tuple[int, ...], taken: tuple[Array, ...]
) -> Array | None:
    front, depth = len(runs.shape), len(runs.shape) + len(places)
    lengths = [n if k in axes else 1 for k, n in enumerate(runs.shape)] + [1] * len(places)
    if max(prod(lengths), prod(cells.shape[k] for k in places)) > MOST:
        raise TooMany
    number = np.arange(prod(lengths), dtype=np.int32).reshape(lengths)
    where = [_deeper(c, depth) for c in taken]
    at: list[Array] = []
    for j, k in enumerate(places):
        lo, hi = (_deeper(x, depth) for x in boxes.places[k])
        cell, there = cells_of(cells, k, lo, hi, front + j)
        at.append(cell)
        where += there
    at = at or [np.zeros((1,) * depth, dtype=np.int64)]
    table = np.full(tuple(cells.shape[k] for k in places) or (1,), -1, dtype=np.int32)
    shape = np.broadcast_shapes(number.shape, *(a.shape for a in (*at, *where)))
    if where:
        picked = np.nonzero(np.broadcast_to(together(np.logical_and, where), shape))
        table[tuple(np.broadcast_to(a, shape)[picked] for a in at)] = np.broadcast_to(number, shape)[picked]
        touched = len(picked[0])
    else:
        table[tuple(np.broadcast_to(a, shape) for a in at)] = np.broadcast_to(number, shape)
        touched = prod(shape)
    return table if np.count_nonzero(table >= 0) == touched else None


def cells_of(cells: Cells, k: int, lo: Array, hi: Array, axis: int) -> tuple[Array, list[Array]]:
    """The cells that boxes touch along a place, those of one box one after the other along an axis; and where there is one."""
    lo, hi = (within(x, cells.extents[k]) for x in (lo, hi))
    first = cells.cell_of(k, lo)
    many = narrow(np.where(lo < hi, cells.cell_of(k, hi - 1) + 1 - first, 0))
    first = narrow(first)
    most, last = int(many.max(initial=0)), cells.shape[k] - 1
    if most > 1:
        step = along(most, axis, first.ndim)
        return np.minimum(first + step, last), [step < many]
    return np.minimum(first, last), [] if many.all() else [many > 0]


def narrow(array: Array) -> Array:
    """Without the axes along which it is the same everywhere."""
    for k, n in enumerate(array.shape):
        if n > 1:
            one = array[(slice(None),) * k + (slice(0, 1),)]
            if (array == one).all():
                array = one
    return array


def _deeper(array: Array, depth: int) -> Array:
    return array.reshape(array.shape + (1,) * (depth - array.ndim))


@dataclass(slots=True)
class Pairs:
    """Executions of a read, and of a write that meet them: where all of `met` hold.

    The axes are the read's, then one for each place of the box, along which there are the cells that it touches there; then those
    of the write that the cells do not tell. `axes`: those of the read's table that matter; `at`: the index along each axis of
    the write.
    """

    writes: Writes
    reads: Runs
    axes: set[int]
    depth: int = 0
    at: dict[int, Array] = field(default_factory=dict[int, Array])
    met: list[Array] = field(default_factory=list[Array])

    @staticmethod
    def of(writes: Writes, reads: Runs, axes: set[int], boxes: Boxes) -> Pairs:
        front = len(reads.shape)
        behind = front + len(boxes.places)
        free = [k for f in writes.factors if f.table is None for k in f.axes]
        out = Pairs(writes, reads, axes, behind + len(free))
        for j, k in enumerate(free):
            out.at[k] = along(writes.runs.shape[k], behind + j, out.depth)
        out.met += [out.mine(c) for c in reads.taken]
        places = [(out.mine(lo), out.mine(hi)) for lo, hi in boxes.places]
        for f in writes.factors:
            if f.table is None:
                out._any(f, places)
            else:
                out._one(f, f.table, places, front)
        return out

    def _any(self, factor: _Factor, places: Sequence[tuple[Array, Array]]) -> None:
        for k in factor.places:
            (lo, hi), (begin, end) = places[k], (self.theirs(x) for x in self.writes.boxes.places[k])
            self.met.append(np.maximum(lo, begin) < np.minimum(hi, end))
        self.met += [self.theirs(c) for c in factor.taken]

    def _one(self, factor: _Factor, table: Array, places: Sequence[tuple[Array, Array]], front: int) -> None:
        at: list[Array] = []
        for k in factor.places:
            cell, there = cells_of(self.writes.cells, k, *places[k], front + k)
            at.append(cell)
            self.met += there
        found = table[tuple(at)] if at else table.reshape((1,) * self.depth)
        if (found < 0).any():
            self.met.append(found >= 0)
        for k in reversed(factor.axes):
            if (n := self.writes.runs.shape[k]) != 1:
                self.at[k], found = found % n, found // n

    def indices(self, axis: int) -> tuple[Array, Array]:
        """The index of the read, and of the write, along an axis of their loops."""
        return self.mine(self.reads.along(axis)), self.theirs(self.writes.runs.along(axis))

    def mine(self, array: Array, own: int = 0, more: int = 0) -> Array:
        """An array of the read's executions, with `more` axes behind, of which its own are the last."""
        front = len(self.reads.shape)
        return array.reshape(array.shape[:front] + (1,) * (self.depth - front + more - own) + array.shape[front:])

    def theirs(self, found: Array, more: int = 0) -> Array:
        """An array of the write's executions, with `more` axes behind, of which its own are the first."""
        front, depth, index = len(self.writes.runs.shape), self.depth + more, list[Any]()
        for k, n in enumerate(found.shape):
            if k >= front:
                index.append(along(n, self.depth + k - front, depth))
            else:
                index.append(_deeper(self.at[k], depth) if n != 1 and k in self.at else 0)
        found = found[tuple(index)]
        return found if found.ndim else found.reshape((1,) * depth)
