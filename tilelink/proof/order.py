"""Every read comes behind the writes of what it reads, whatever the number of workers and however slow a rank is.

Order is what flags make, what stands before what within a tile, what a stream does in turn, and the end of an executor before
the start of those after it. That one worker takes tiles one after the other is none: there may be another.

For each execution of a read, and each cell that it touches, by which execution of a write the cell is written is looked up:
places that depend on different axes of the write are apart from one another, and each has a table of its own, from cells to
indices along the write's axes. So whatever the write does with these cells is an array over those axes of the read, and of its
cells, alone on which it depends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from tilelink.ir.lowered import Await, Buffer, Read, Signal, Write
from tilelink.ir.shape import RANK_AXIS
from tilelink.proof.cells import Boxes, Cells, Factor, deeper, entry
from tilelink.proof.coverage import accesses, boxes_of, memory_of
from tilelink.proof.runs import (
    Found,
    Moment,
    Runs,
    before,
    own_axes,
    possible,
    projected,
    unsettled,
    witness,
)
from tilelink.proof.table import Array, Row, Table, along, once, whole


def unordered(table: Table) -> Iterator[Found]:
    """
    Raises:
        TooMany: there are more reads and writes than can be looked at.
    """
    for buffer, rows in accesses(table):
        writes, reads = [r for r in rows if isinstance(r.op, Write)], [r for r in rows if isinstance(r.op, Read)]
        if writes and reads:
            yield from _of(table, buffer, writes, reads)


def _of(table: Table, buffer: Buffer, writes: list[Row], reads: list[Row]) -> Iterator[Found]:
    extents = (table.ranks, *memory_of(table, buffer)[1])
    if 0 in extents:
        return
    written = [
        Writes.of(table, w, extents)
        for w in sorted(writes, key=lambda w: w.by_data)
        if possible(Runs.of(table, w).taken)
    ]
    # A program of the user's says more than what a call begins with.
    for r in sorted(reads, key=lambda r: r.executor.engine.by == "host"):
        for w in written if possible(Runs.of(table, r).taken) else ():
            left = _left(table, Pairs.of(table, w, r))
            if left is not None and buffer.space == "argument":
                if not _read_first(table, r, w.runs.row, extents):
                    yield _written(table, buffer, r, w.runs.row, left)
            elif left is not None:
                waits = any(isinstance(h.op, Await) and h.op.flags == buffer.name for h in awaits_before(table, r))
                code = "TL608" if waits else ""
                what = f"`{buffer.name}` is read before it is known to be written"
                yield Found(what, (r, w.runs.row), left, code=code)


def _written(table: Table, buffer: Buffer, r: Row, w: Row, moments: tuple[Moment, Moment]) -> Found:
    reader, writer = table.path(r), table.path(w)
    who = "reads it at other tiles" if reader == writer else f"`{reader}` reads it"
    return Found(
        f"`{writer}` writes to the argument `{buffer.name}`, and {who}",
        (w, r),
        moments,
        why="an argument counts as there when a call begins, so no wait of it is one for what programs write to it",
        hint=f"let `{writer}` make a tensor of its own, and read that",
    )


def _read_first(table: Table, r: Row, w: Row, extents: tuple[int, ...]) -> bool:
    """Whether what the caller has brought is read, all of it that is written, before that."""
    return _left(table, Pairs.of(table, Writes.of(table, r, extents), w)) is None


def _left(table: Table, pairs: Pairs) -> tuple[Moment, Moment] | None:
    """The first that is read, and nothing says that it is written before."""
    rules = (_same_tile, _ended, _told)
    left = unsettled(pairs.met, chain.from_iterable(rule(table, pairs) for rule in rules))
    if left is None:
        return None
    at = witness(left, pairs.depth)
    assert at is not None
    read, runs = pairs.reads.row, pairs.writes.runs
    write = runs.row
    return (
        Moment(read, tuple(entry(pairs.mine(pairs.reads.along(k)), at) for k in range(read.depth))),
        Moment(write, tuple(entry(pairs.theirs(runs.along(k)), at) for k in range(write.depth)), late=True),
    )


# ---------------------------------------------------------------------------------- rules: conditions that together say so
def _same_tile(table: Table, pairs: Pairs) -> Iterator[Sequence[Array]]:
    """The same worker writes it in the same tile, further up."""
    w, r = pairs.writes.runs.row, pairs.reads.row
    if w.loop is not r.loop or w.executor is not r.executor:
        return
    tile = range(1 + len(w.loop.axes))
    turns = [a[1] for a, b in zip(w.around, r.around, strict=False) if a == b]
    earlier = np.full((1,) * pairs.depth, before(w, r))
    for mine, theirs in (pairs.indices(axis) for axis in reversed(turns)):
        earlier = (theirs < mine) | ((theirs == mine) & earlier)
    told = (pairs.indices(axis) for axis in tile)
    yield [earlier, *(mine == theirs for mine, theirs in told)]


def _ended(table: Table, pairs: Pairs) -> Iterator[Sequence[Array]]:
    """The executor that writes has ended on this rank when the one that reads begins."""
    if pairs.writes.runs.row.executor.name in table.ended[pairs.reads.row.executor.name]:
        mine, theirs = pairs.indices(0)
        yield [mine == theirs]


def _told(table: Table, pairs: Pairs) -> Iterator[Sequence[Array]]:
    """The writer signals a flag behind it, for which the reader waits before. What travels beside data says of nothing else
    that it is there."""
    read = pairs.reads.row
    for h in awaits_before(table, read):
        assert isinstance(h.op, Await) and isinstance(read.op, Read | Write)
        beside = table.lowered.flag(h.op.flags).style == "data" and h.op.flags != read.op.buffer
        if not beside and (not h.by_data or read.by_data):
            for g in signals_behind(table, pairs.writes.runs.row):
                if getattr(g.op, "flags", "") == h.op.flags:
                    yield _heard(table, pairs, g, h)


def _heard(table: Table, pairs: Pairs, g: Row, h: Row) -> Sequence[Array]:
    """The reader has waited by `h` for a flag that the writer signals by `g`."""
    assert isinstance(g.op, Signal) and isinstance(h.op, Await)
    w, r, width = pairs.writes.runs, pairs.reads, table.width(h.op.flags)
    own = own_axes(w.row, g)
    depth = pairs.depth + len(own)
    here, there = r.beside(h), w.beside(g, lambda array: pairs.theirs(array, own))
    index = deeper(here(h.op.index), depth)
    known = [index == there(g.op.index), (index >= 0) & (index < width), *(deeper(c, depth) for c in here.taken)]
    known = projected(known, {*range(depth)} - {*own_axes(r.row, h)})
    mine, theirs = (deeper(x, depth) for x in pairs.indices(0))
    known += there.taken
    if g.op.rank is not None:
        known.append(mine == there(g.op.rank))
    elif g.op.along != RANK_AXIS:
        first = partial(table.lowered.topology.peer, at=0, name=g.op.along)  # of the ranks that hear of it
        known.append(first(mine) == first(theirs))
    if g.by_data:
        # Data says which of these flags it is: each of them has to be awaited.
        turns = tuple(range(pairs.depth, depth))
        known = [c.all(axis=turns, keepdims=True) for c in known]
    known = projected(known, {*range(pairs.depth)})
    return [c.reshape(c.shape[: pairs.depth]) for c in known]


@once
def awaits_before(table: Table, row: Row) -> list[Row]:
    return [r for r in table.signals(row.loop) if isinstance(r.op, Await) and before(r, row)]


@once
def signals_behind(table: Table, row: Row) -> list[Row]:
    return [r for r in table.signals(row.loop) if isinstance(r.op, Signal) and before(row, r)]


# ------------------------------------------------------------------------------------ which executions meet one another
@dataclass(frozen=True, slots=True)
class Writes:
    """The executions of a write, told apart along the axes of its table that matter: of its box, and of its signals. `factors`:
    each with a table, by cell the number of the execution, -1: none; None: more than one touches a cell."""

    runs: Runs
    boxes: Boxes
    cells: Cells
    factors: tuple[tuple[Factor, Array | None], ...]

    @staticmethod
    def of(table: Table, row: Row, extents: tuple[int, ...]) -> Writes:
        runs = Runs.of(table, row)
        boxes = boxes_of(runs)
        cells = Cells.of(extents, [boxes])
        return Writes(runs, boxes, cells, tuple((f, _by_cell(f, cells)) for f in cells.factors(boxes)))


def _by_cell(factor: Factor, cells: Cells) -> Array | None:
    found = np.full(prod(cells.shape[k] for k in factor.places), -1, dtype=np.int32)
    found[factor.cells] = factor.numbers
    return found if np.count_nonzero(found >= 0) == len(factor.cells) else None


@dataclass(slots=True)
class Pairs:
    """Executions of a read, and of a write that meet them: where all of `met` hold.

    The axes are the read's, then one for each place of the box, along which there are the cells that it touches there; then those
    of the write that the cells do not tell. `axes`: those of the read's table that matter; `at`: the index along each axis of
    the write.
    """

    writes: Writes
    reads: Runs
    depth: int = 0
    at: dict[int, Array] = field(default_factory=dict[int, Array])
    met: list[Array] = field(default_factory=list[Array])

    @staticmethod
    def of(table: Table, writes: Writes, row: Row) -> Pairs:
        reads = Runs.of(table, row)
        boxes, front = boxes_of(reads), len(reads.shape)
        behind = front + len(boxes.places)
        free = [k for f, by_cell in writes.factors if by_cell is None for k in f.axes]
        out = Pairs(writes, reads, behind + len(free))
        for j, k in enumerate(free):
            out.at[k] = along(writes.runs.shape[k], behind + j, out.depth)
        out.met += [out.mine(c) for c in reads.taken]
        places = [(out.mine(lo), out.mine(hi)) for lo, hi in boxes.places]
        for f, by_cell in writes.factors:
            if by_cell is None:
                out._any(f, places)
            else:
                out._one(f, by_cell, places, front)
        return out

    def _any(self, factor: Factor, places: Sequence[tuple[Array, Array]]) -> None:
        for k in factor.places:
            (lo, hi), (begin, end) = places[k], (self.theirs(x) for x in self.writes.boxes.places[k])
            self.met.append(np.maximum(lo, begin) < np.minimum(hi, end))
        self.met += [self.theirs(c) for c in factor.taken]

    def _one(self, factor: Factor, by_cell: Array, places: Sequence[tuple[Array, Array]], front: int) -> None:
        axes = [front + k for k in factor.places]
        cells, there = self.writes.cells.among(factor.places, [places[k] for k in factor.places], axes)
        found = by_cell[deeper(cells, self.depth)]
        self.met += [*there, found >= 0] if (found < 0).any() else there
        for k in reversed(factor.axes):
            if (n := self.writes.runs.shape[k]) != 1:
                self.at[k], found = found % n, found // n

    def indices(self, axis: int) -> tuple[Array, Array]:
        """The index of the read, and of the write, along an axis of their loops."""
        return self.mine(self.reads.along(axis)), self.theirs(self.writes.runs.along(axis))

    def mine(self, array: Array) -> Array:
        """An array of the read's executions."""
        return deeper(array, self.depth)

    def theirs(self, found: Array, own: tuple[int, ...] = ()) -> Array:
        """An array of the write's executions, and behind them of the turns along some axes of its own."""
        depth, index = self.depth + len(own), list[Any]()
        for k, n in enumerate(found.shape):
            if k in own:
                index.append(along(n, self.depth + own.index(k), depth))
            else:
                index.append(deeper(self.at[k], depth) if n != 1 and k in self.at else 0)
        return whole(found[tuple(index)], depth)
