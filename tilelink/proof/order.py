"""Every read comes behind the writes of what it reads, whatever the number of workers and however slow a rank is.

Order is what flags make, what stands before what within a tile, what a stream does in turn, and the end of an executor before
the start of those after it. That one worker takes tiles one after the other is none: there may be another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tilelink.ir.lowered import Await, Buffer, Read, Signal, Write
from tilelink.proof.cells import MOST, Boxes, Cells, TooMany
from tilelink.proof.counts import in_line
from tilelink.proof.coverage import Found, boxes_of, memory_of
from tilelink.proof.runs import Beside, Runs, before, depends, runs_of
from tilelink.proof.table import Array, Row, Table, positions


def unordered(table: Table) -> Iterator[Found]:
    """
    Raises:
        TooMany: there are more reads and writes than can be looked at.
    """
    order = Order(table)
    rows: dict[str, list[Row]] = {b.name: [] for b in table.lowered.buffers}
    for row in table.rows:
        if isinstance(row.op, Read | Write):
            rows[row.op.buffer].append(row)
    for buffer in table.lowered.buffers:
        writes = [r for r in rows[buffer.name] if isinstance(r.op, Write)]
        reads = [r for r in rows[buffer.name] if isinstance(r.op, Read)]
        if writes and reads:
            yield from _of(order, buffer, writes, reads)


def _of(order: Order, buffer: Buffer, writes: list[Row], reads: list[Row]) -> Iterator[Found]:
    table = order.table
    boxes = {id(r): boxes_of(r) for r in (*writes, *reads)}
    memory, longest = memory_of(table, buffer)
    cells = Cells.of((table.ranks, *longest), table.ranks, [memory, *boxes.values()])
    if 0 in cells.shape:
        return
    sure = [w for w in writes if not w.by_data]
    told = {id(w): order.runs(w, boxes[id(w)], Signal) for w in writes}
    written = np.full(int(np.prod(cells.shape, dtype=np.int64)), -1, dtype=np.int32)
    if len(written) > MOST:
        raise TooMany
    first: list[int] = []
    total = 0
    for w in sure:
        cell, run = _cells(cells, boxes[id(w)], told[id(w)])
        written[cell] = total + run
        first.append(total)
        total += len(told[id(w)])
    for r in reads:
        runs = order.runs(r, boxes[id(r)], Await)
        cell, run = _cells(cells, boxes[id(r)], runs)
        by = written[cell]
        pairs = _unique(by[by >= 0].astype(np.int64) * len(runs) + run[by >= 0])
        of = np.searchsorted(np.array(first, dtype=np.int64), pairs // max(len(runs), 1), side="right") - 1
        for k, w in enumerate(sure):
            mine = pairs[of == k]
            yield from order.missing(told[id(w)], mine // len(runs) - first[k], runs, mine % len(runs), buffer)
        for w in writes:
            if w.by_data:
                yield from order.missing(told[id(w)], *_meeting(boxes, told[id(w)], runs), buffer)


def _cells(cells: Cells, boxes: Boxes, runs: Runs) -> tuple[Array, Array]:
    """(cell, execution) for each cell that an execution touches."""
    begin, length = [], []
    for k, (lo, hi) in enumerate(boxes.places):
        first, last = cells.cell_of(k, runs(lo)), cells.cell_of(k, runs(hi))
        begin.append(first)
        length.append(np.maximum(last - first, 0))
    flat, each = np.zeros(len(runs), dtype=np.int64), np.ones(len(runs), dtype=np.int64)
    for n, b, many in zip(cells.shape, begin, length, strict=True):
        flat, each = flat * n + b, each * many
    if (each == 1).all():
        return flat, np.arange(len(runs))
    if each.sum() > MOST:
        raise TooMany
    run = np.repeat(np.arange(len(runs)), each)
    rest = np.arange(len(run)) - np.repeat(np.cumsum(each) - each, each)
    cell, stride = flat[run], 1
    for many, n in zip(reversed(length), reversed(cells.shape), strict=True):
        cell = cell + rest % many[run] * stride
        rest, stride = rest // many[run], stride * n
    return cell, run


def _meeting(boxes: dict[int, Boxes], w: Runs, r: Runs) -> tuple[Array, Runs, Array]:
    """Executions of a write and a read whose boxes have something in common."""
    if len(w) * len(r) > MOST:
        raise TooMany
    met = np.ones((len(w), len(r)), dtype=np.bool_)
    for (wlo, whi), (rlo, rhi) in zip(boxes[id(w.row)].places, boxes[id(r.row)].places, strict=True):
        met &= np.maximum(w(wlo)[:, None], r(rlo)[None]) < np.minimum(w(whi)[:, None], r(rhi)[None])
    found = np.nonzero(met)
    return found[0], r, found[1]


def _unique(keys: Array) -> Array:
    """Each key once; those that follow one another are mostly alike."""
    keys = keys[np.flatnonzero(np.diff(keys, prepend=-1))]
    return keys if len(keys) < 2 or (np.diff(keys) > 0).all() else np.unique(keys)


@dataclass(slots=True)
class Order:
    """What comes before what."""

    table: Table
    beside: dict[tuple[int, type], list[Row]] = field(default_factory=dict[tuple[int, type], list[Row]])
    at: dict[int, Array] = field(default_factory=dict[int, Array])

    def signals(self, row: Row, kind: type[Await] | type[Signal]) -> list[Row]:
        """The awaits before an op in its tile, or the signals behind it."""
        key = id(row), kind
        if key not in self.beside:
            self.beside[key] = [
                r
                for r in self.table.rows
                if r.loop is row.loop
                and r.executor is row.executor
                and isinstance(r.op, kind)
                and (before(r, row) if kind is Await else before(row, r))
                and not getattr(r.op, "back", 0)
            ]
        return self.beside[key]

    def runs(self, row: Row, boxes: Boxes, kind: type[Await] | type[Signal]) -> Runs:
        """The executions of a read or write, as far as its box, or the flags that go with it, tell them apart."""
        axes = depends(*(x for place in boxes.places for x in place), *row.conditions)
        for other in self.signals(row, kind):
            axes |= Beside.of(row, other).needs(_arrays(other))
        return runs_of(row, axes, self.table.ranks)

    # ------------------------------------------------------------------------------------------------------------- pairs
    def missing(self, w: Runs, which: Array, r: Runs, whose: Array, buffer: Buffer) -> Iterator[Found]:
        """The first of the pairs of a write and a read that nothing orders."""
        for rule in (self._same_tile, self._in_turn, self._ended, self._told):
            if len(which):
                left = ~rule(w, which, r, whose)
                if buffer.space == "argument" and rule != self._told:
                    left &= ~rule(r, whose, w, which)  # what the caller has brought may be read before it is written
                which, whose = which[left], whose[left]
        if len(which):
            rank = int(r.at[0][whose[0]])
            waits = any(isinstance(h.op, Await) and h.op.flags == buffer.name for h in self.signals(r.row, Await))
            code = "TL608" if waits else ""
            yield Found("is read before it is known to be written", buffer.name, (r.row, w.row), rank, code=code)

    def _same_tile(self, w: Runs, which: Array, r: Runs, whose: Array) -> Array:
        """The same worker writes it in the same tile, further up."""
        none = np.zeros(len(which), dtype=np.bool_)
        if w.row.loop is not r.row.loop or w.row.executor is not r.row.executor:
            return none
        shared = [axis for (_, axis), other in zip(w.row.around, r.row.around, strict=False) if (_, axis) == other]
        earlier = np.full(len(which), before(w.row, r.row))
        for axis in reversed(shared):
            mine, theirs = (x.at[axis][k] if axis in x.at else None for x, k in ((w, which), (r, whose)))
            if mine is None or theirs is None:
                if mine is theirs:
                    continue
                return none
            earlier = (mine < theirs) | ((mine == theirs) & earlier)
        for axis in range(1 + len(w.row.loop.axes)):
            if axis in w.at and axis in r.at:
                earlier = earlier & (w.at[axis][which] == r.at[axis][whose])
            elif axis in w.at or axis in r.at:
                return none
        return earlier

    def _in_turn(self, w: Runs, which: Array, r: Runs, whose: Array) -> Array:
        """The same stream does it earlier."""
        if w.row.executor is not r.row.executor or w.row.executor.engine == "workers" or w.row.loop is not r.row.loop:
            return np.zeros(len(which), dtype=np.bool_)
        mine, theirs = self._position(w)[which], self._position(r)[whose]
        streams = w.row.executor.workers
        return (w.at[0][which] == r.at[0][whose]) & (mine < theirs) & (mine % streams == theirs % streams)

    def _position(self, runs: Runs) -> Array:
        loop = runs.row.loop
        if not loop.axes:
            return np.zeros(len(runs), dtype=np.int64)
        if id(loop) not in self.at:
            self.at[id(loop)] = positions(self.table, loop)
        at = self.at[id(loop)]
        return at[tuple(runs.at.get(k, np.zeros(len(runs), dtype=np.int64)) for k in range(at.ndim))]

    def _ended(self, w: Runs, which: Array, r: Runs, whose: Array) -> Array:
        """The executor that writes has ended on this rank when the one that reads begins."""
        here = w.at[0][which] == r.at[0][whose]
        return here if w.row.executor.name in self.table.ended[r.row.executor.name] else np.zeros_like(here)

    def _told(self, w: Runs, which: Array, r: Runs, whose: Array) -> Array:
        """The writer signals a flag behind it, for which the reader waits before."""
        known = np.zeros(len(which), dtype=np.bool_)
        for h in self.signals(r.row, Await):
            assert isinstance(h.op, Await)
            if h.by_data and not r.row.by_data:
                continue
            matching = [g for g in self.signals(w.row, Signal) if getattr(g.op, "flags", "") == h.op.flags]
            if matching:
                width = self.table.width(h.op.flags)
                awaited = self._awaited(r, h, width)
                for g in matching:
                    left = np.flatnonzero(~known)
                    known[left] = self._heard(w, which[left], g, r, whose[left], awaited, width)
        return known

    def _awaited(self, r: Runs, h: Row, width: int) -> Array:
        """Sorted keys (execution, flag) of what a read has waited for by one await."""
        assert isinstance(h.op, Await)
        beside, index, keys = Beside.of(r.row, h), h(h.op.index), list[Array]()
        for own in beside.turns():
            at, taken = r(index, own), beside.taken(r, own)
            keys.append((np.arange(len(r)) * width + at)[taken & (at >= 0) & (at < width)])
        return np.unique(np.concatenate(keys)) if keys else np.zeros(0, dtype=np.int64)

    def _heard(self, w: Runs, which: Array, g: Row, r: Runs, whose: Array, awaited: Array, width: int) -> Array:
        """Of pairs whether the reader has waited for a flag that the writer signals by `g`."""
        assert isinstance(g.op, Signal)
        beside, index = Beside.of(w.row, g), g(g.op.index)
        mine, theirs = w.at[0][which], r.at[0][whose]
        # Data says which of these flags it is: each of them has to be awaited.
        every = g.by_data
        known = np.full(len(which), every)
        for own in beside.turns():
            to = None if g.op.rank is None else w(g(g.op.rank), own)[which]
            there = in_line(self.table, mine, theirs, g.op.along) if to is None else to == theirs
            key = whose * width + w(index, own)[which]
            found = there & beside.taken(w, own)[which] & contains(awaited, key)
            known = known & found if every else known | found
        return known


def contains(sorted_keys: Array, keys: Array) -> Array:
    if not len(sorted_keys):
        return np.zeros(len(keys), dtype=np.bool_)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[at] == keys


def _arrays(row: Row) -> list[Array]:
    assert isinstance(row.op, Await | Signal)
    found = [row(row.op.index)]
    return [*found, row(row.op.rank)] if isinstance(row.op, Signal) and row.op.rank is not None else found
