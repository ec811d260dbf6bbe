"""Every read comes behind the writes of what it reads, whatever the number of workers and however slow a rank is.

Order is what flags make, what stands before what within a tile, what a stream does in turn, and the end of an executor before
the start of those after it. That one worker takes tiles one after the other is none: there may be another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tilelink.ir.lowered import Await, Buffer, Read, Signal, Write
from tilelink.proof.counts import in_line
from tilelink.proof.coverage import accesses, boxes_of, memory_of
from tilelink.proof.findings import Found, Moment, witness
from tilelink.proof.pairs import Pairs, Writes
from tilelink.proof.runs import Beside, Runs, before, own_axes, possible, projected, unsettled
from tilelink.proof.table import Array, Row, Table


def unordered(table: Table) -> Iterator[Found]:
    """
    Raises:
        TooMany: there are more reads and writes than can be looked at.
    """
    order = Order(table)
    for buffer, rows in accesses(table):
        writes, reads = [r for r in rows if isinstance(r.op, Write)], [r for r in rows if isinstance(r.op, Read)]
        if writes and reads:
            yield from _of(order, buffer, writes, reads)


def _of(order: Order, buffer: Buffer, writes: list[Row], reads: list[Row]) -> Iterator[Found]:
    table = order.table
    extents = (table.ranks, *memory_of(table, buffer)[1])
    if 0 in extents:
        return
    written: list[Writes] = []
    for w in sorted(writes, key=lambda w: w.by_data):
        runs = Runs.of(table, w)
        if possible(runs.taken):
            written.append(Writes.of(runs, order.axes(w, Signal), boxes_of(runs), extents, table.ranks))
    # A program of the user's says more than what a call begins with.
    for r in sorted(reads, key=lambda r: r.executor.engine.by == "host"):
        runs = Runs.of(table, r)
        axes, boxes = order.axes(r, Await), boxes_of(runs)
        for w in written if possible(runs.taken) else ():
            left = order.left(Pairs.of(w, runs, axes, boxes))
            if left is not None and buffer.space == "argument":
                if not _read_first(order, r, w.runs.row, extents):
                    yield _written(table, buffer, r, w.runs.row, left)
            elif left is not None:
                waits = any(isinstance(h.op, Await) and h.op.flags == buffer.name for h in order.signals(r, Await))
                code = "TL608" if waits else ""
                yield Found("is read before it is known to be written", buffer.name, (r, w.runs.row), left, code=code)


def _written(table: Table, buffer: Buffer, r: Row, w: Row, moments: tuple[Moment, Moment]) -> Found:
    reader, writer = table.path(r), table.path(w)
    who = "reads it at other tiles" if reader == writer else f"`{reader}` reads it"
    return Found(
        f"`{writer}` writes to the argument `{buffer.name}`, and {who}",
        "",
        (w, r),
        moments,
        why="an argument counts as there when a call begins, so no wait of it is one for what programs write to it",
        hint=f"let `{writer}` make a tensor of its own, and read that",
    )


def _read_first(order: Order, r: Row, w: Row, extents: tuple[int, ...]) -> bool:
    """Whether what the caller has brought is read, all of it that is written, before that."""
    table = order.table
    reads, writes = Runs.of(table, r), Runs.of(table, w)
    first = Writes.of(reads, order.axes(r, Signal), boxes_of(reads), extents, table.ranks)
    return order.left(Pairs.of(first, writes, order.axes(w, Await), boxes_of(writes))) is None


@dataclass(frozen=True, slots=True)
class Order:
    """What comes before what."""

    table: Table

    def signals(self, row: Row, kind: type[Await] | type[Signal]) -> list[Row]:
        """The awaits before an op in its tile, or the signals behind it."""
        return self.table.once(kind.__name__, id(row), lambda: self._signals(row, kind))

    def _signals(self, row: Row, kind: type[Await] | type[Signal]) -> list[Row]:
        return [
            r
            for r in self.table.signals(row)
            if isinstance(r.op, kind) and (before(r, row) if kind is Await else before(row, r))
        ]

    def axes(self, row: Row, kind: type[Await] | type[Signal]) -> set[int]:
        """The axes along which the executions of a read or write are told apart, by its box or the flags that go with it."""
        axes = {0} | self.table.axes(row)
        for other in self.signals(row, kind):
            axes |= self.table.axes(other) - {*own_axes(row, other)}
        return axes

    def left(self, pairs: Pairs) -> tuple[Moment, Moment] | None:
        """The first that is read, and nothing says that it is written before."""
        rules = (self._same_tile, self._in_turn, self._ended, self._told)
        left = unsettled(pairs.met, chain.from_iterable(rule(pairs) for rule in rules))
        if left is None:
            return None
        at = witness(left, pairs.depth)
        assert at is not None
        read, write = pairs.reads.row, pairs.writes.runs.row
        return (
            Moment(read, tuple(_at(pairs.mine(pairs.reads.along(k)), at) for k in range(read.depth))),
            Moment(
                write, tuple(_at(pairs.theirs(pairs.writes.runs.along(k)), at) for k in range(write.depth)), late=True
            ),
        )

    # ------------------------------------------------------------------------------ rules: conditions that together say so
    def _same_tile(self, pairs: Pairs) -> Iterator[Sequence[Array]]:
        """The same worker writes it in the same tile, further up."""
        w, r = pairs.writes.runs.row, pairs.reads.row
        if w.loop is not r.loop or w.executor is not r.executor:
            return
        earlier = np.full((1,) * pairs.depth, before(w, r))
        for _, axis in reversed([a for a, b in zip(w.around, r.around, strict=False) if a == b]):
            if (axis in pairs.writes.axes) != (axis in pairs.axes):
                return
            if axis in pairs.axes:
                mine, theirs = pairs.indices(axis)
                earlier = (theirs < mine) | ((theirs == mine) & earlier)
        same = [earlier]
        for axis in range(1 + len(w.loop.axes)):
            if (axis in pairs.writes.axes) != (axis in pairs.axes):
                return
            if axis in pairs.axes:
                mine, theirs = pairs.indices(axis)
                same.append(mine == theirs)
        yield same

    def _in_turn(self, pairs: Pairs) -> Iterator[Sequence[Array]]:
        """The same stream does it earlier."""
        w, r = pairs.writes.runs.row, pairs.reads.row
        if w.executor is not r.executor or not w.executor.engine.in_turn or w.loop is not r.loop or not w.loop.axes:
            return
        at = self.table.at(w.loop)
        at = at.reshape(at.shape + (1,) * (w.depth - at.ndim))
        # Of executions that nothing tells apart the last writes, and the first reads.
        hidden = [tuple({*range(1, w.depth)} - axes) for axes in (pairs.writes.axes, pairs.axes)]
        theirs = pairs.theirs(pairs.writes.runs.pack(at.max(axis=hidden[0], keepdims=True)))
        mine = pairs.mine(pairs.reads.pack(at.min(axis=hidden[1], keepdims=True)))
        rank, other = pairs.indices(0)
        yield [rank == other, theirs < mine, mine % w.executor.workers == theirs % w.executor.workers]

    def _ended(self, pairs: Pairs) -> Iterator[Sequence[Array]]:
        """The executor that writes has ended on this rank when the one that reads begins."""
        if pairs.writes.runs.row.executor.name in self.table.ended[pairs.reads.row.executor.name]:
            mine, theirs = pairs.indices(0)
            yield [mine == theirs]

    def _told(self, pairs: Pairs) -> Iterator[Sequence[Array]]:
        """The writer signals a flag behind it, for which the reader waits before. What travels beside data says of nothing else
        that it is there."""
        read = pairs.reads.row
        for h in self.signals(read, Await):
            assert isinstance(h.op, Await) and isinstance(read.op, Read | Write)
            beside = self.table.lowered.flag(h.op.flags).style == "data" and h.op.flags != read.op.buffer
            if not beside and (not h.by_data or read.by_data):
                for g in self.signals(pairs.writes.runs.row, Signal):
                    if getattr(g.op, "flags", "") == h.op.flags:
                        yield self._heard(pairs, g, h)

    def _heard(self, pairs: Pairs, g: Row, h: Row) -> Sequence[Array]:
        """The reader has waited by `h` for a flag that the writer signals by `g`."""
        assert isinstance(g.op, Signal) and isinstance(h.op, Await)
        w, r, width = pairs.writes.runs, pairs.reads, self.table.width(h.op.flags)
        own = len(own_axes(r.row, h))
        more = len(own_axes(w.row, g)) + own
        depth = pairs.depth + more
        here = Beside.of(r, h, lambda a: pairs.mine(a, own, more), depth)
        there = Beside.of(w, g, lambda a: pairs.theirs(a, more), depth)
        index = here(h.op.index)
        known = [index == there(g.op.index), (index >= 0) & (index < width), *here.conditions]
        known = projected(known, {*range(depth - own)})
        mine, theirs = (x.reshape(x.shape + (1,) * more) for x in pairs.indices(0))
        on = in_line(self.table, mine, theirs, g.op.along) if g.op.rank is None else mine == there(g.op.rank)
        known += [on, *there.conditions]
        if g.by_data:
            # Data says which of these flags it is: each of them has to be awaited.
            turns = tuple(range(pairs.depth, depth))
            known = [c.all(axis=turns, keepdims=True) for c in known]
        known = projected(known, {*range(pairs.depth)})
        return [c.reshape(c.shape[: pairs.depth]) for c in known]


def _at(array: Array, at: tuple[int, ...]) -> int:
    return int(array[tuple(i if n != 1 else 0 for i, n in zip(at, array.shape, strict=True))])
