"""Every element that is read, or returned, is written once, and none is written twice.

A store under a test that does not hold, or in a loop without turns, is no write. What data decides has to be declared: `once`,
each element is written by exactly one store; `partial`, by one or none; or by the contract of the table that places it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilelink.errors import Note
from tilelink.ir.lowered import Buffer, Read, Write, formulas
from tilelink.proof.cells import Boxes, Cells, depends, narrow
from tilelink.proof.runs import Found, Moment, Runs, projected, together
from tilelink.proof.table import Array, Row, Table


def uncovered(table: Table) -> Iterator[Found]:
    """
    Raises:
        TooMany: there are more tiles, or cells, than can be looked at.
    """
    for buffer, rows in accesses(table):
        yield from _of(table, buffer, rows)


def accesses(table: Table) -> Iterator[tuple[Buffer, list[Row]]]:
    """Each buffer, and what reads and writes it."""
    for buffer in table.lowered.buffers:
        yield buffer, [r for r in table.rows if isinstance(r.op, Read | Write) and r.op.buffer == buffer.name]


def _of(table: Table, buffer: Buffer, rows: list[Row]) -> Iterator[Found]:
    writes = [r for r in rows if isinstance(r.op, Write)]
    reads = [r for r in rows if isinstance(r.op, Read)]
    result = buffer.space == "result"
    if not writes and (buffer.space == "argument" or not (reads or result)):
        return
    memory, longest = memory_of(table, buffer)
    boxes = {id(r): boxes_of(Runs.of(table, r)) for r in rows}
    cells = Cells.of((table.ranks, *longest), [memory, *boxes.values()])
    if 0 in cells.shape:
        return
    said = _Said(table, buffer, cells, boxes, writes)
    sure = [r for r in writes if not r.undecided]
    times = cells.count([boxes[id(r)] for r in sure])
    if (times > 1).any():
        yield said.twice(times > 1, sure)
        return
    by_data = [r for r in writes if r.undecided]
    if not by_data and ((times == 1).all() or buffer.space == "argument"):
        return
    there = cells.count([memory]) > 0
    never = (times == 0) & there
    needed = there if result else cells.count([boxes[id(r)] for r in reads]) > 0 if reads else np.zeros_like(there)
    for r in by_data:
        where = cells.count([boxes[id(r)]]) > 0
        if buffer.written is None and (where & needed).any():
            yield said.by_data(r, reads)
        never = never & ~where
    if buffer.space == "argument" or not (never.any() or buffer.written == "partial"):
        return
    partial = buffer.written == "partial"
    if partial and never.any():
        # Data may leave out some of it, and not what is never written whatever it says; but on ranks without any tile.
        partial = any(_idle(table, w) for w in writes)
    if result and not partial and never.any():
        yield said.never(never, None)
    for r in reads:
        if partial and r.by_data:
            continue  # data reads only what was written
        met = cells.count([boxes[id(r)]]) > 0
        if (met & never).any():
            yield said.never(met & never, r)
        elif partial and (met & (times == 0)).any():
            yield Found(
                f"`{table.path(r)}` reads all of `{buffer.name}`, which is declared `partial`",
                (r,),
                (Moment.first(table, r),),
                code="TL614",
                why="what was not written is undefined, and nothing says that this was written",
                hint="read what data says was written, by a limit of `tl.tiles`, an index or a test; or declare it `once`",
            )


def _idle(table: Table, row: Row) -> bool:
    """Whether some rank has no tile of it. That a loop in a tile has no turn is no excuse."""
    tiles = {*range(1 + len(row.loop.axes))}
    busy = projected([c for c in row.taken if depends(c) <= tiles], {0})
    return not np.all(together(np.logical_and, busy))


def boxes_of(runs: Runs) -> Boxes:
    """The elements that a read or write touches: the rank whose memory it is, then along each of its axes."""
    op = runs.row.op
    assert isinstance(op, Read | Write)
    rank = runs(op.rank)
    return Boxes(((rank, rank + 1), *((runs(lo), runs(hi)) for lo, hi in op.box)), runs.taken, runs.shape)


def memory_of(table: Table, buffer: Buffer) -> tuple[Boxes, tuple[int, ...]]:
    """All elements that there are, on every rank; and the most along each axis."""
    extents = [table.each(e) for e in buffer.extents]
    ranks = np.arange(table.ranks)
    places = [(ranks, ranks + 1), *((np.zeros(1, dtype=np.int64), narrow(e)) for e in extents)]
    return Boxes(tuple(places), (), (table.ranks,)), tuple(int(e.max(initial=0)) for e in extents)


@dataclass(frozen=True, slots=True)
class _Said:
    """The diagnostics of one buffer."""

    table: Table
    buffer: Buffer
    cells: Cells
    boxes: dict[int, Boxes]
    writes: Sequence[Row]

    def twice(self, where: Array, sure: Sequence[Row]) -> Found:
        for w in sure:
            if (self.cells.count([self.boxes[id(w)]]) > 1).any() and (repeated := self._repeated(w)) is not None:
                return repeated
        rank, at, begin = self._place(where)
        moments = self._twice(sure, (rank, *begin))
        return Found(
            f"`{self.buffer.name}` is written more than once: {at}",
            tuple(m.row for m in moments),
            moments,
            why="the tiles of a tensor's writers, over all ranks, must not overlap",
            hint="let the writers differ in one coordinate, for example this rank's own on an axis R",
        )

    def _repeated(self, w: Row) -> Found | None:
        """A store whose index leaves out what it is repeated for: an axis of the tiles, or a loop."""
        assert isinstance(w.op, Write)
        k = min(depends(*w.taken) - depends(*map(w, formulas(w.op))), default=None)
        if k is None:
            return None
        times = max(x.shape[k] for x in w.taken)
        if k <= len(w.loop.axes):
            dim = w.loop.dims[k - 1] if w.loop.dims else w.loop.axes[k - 1][0]
            what, of = f"once for each tile along `{dim}`", f"the tile of `{dim}`"
            why = "tiles run on different workers, so nobody knows whose value stays"
        elif w.said:
            what, of = "once in each turn of the loop around it", "the loop's variable"
            why = "each element is written once, by one store"
        else:
            return None
        name = w.op.param or self.buffer.name
        return Found(
            f"`{name}` is stored {times} times, {what}",
            (w,),
            self._twice([w], None),
            why=why,
            hint=f"index `{name}` by {of}, or store under a test of it",
        )

    def never(self, where: Array, reader: Row | None) -> Found:
        who = "and it is a result" if reader is None else f"and `{self.table.path(reader)}` reads it"
        read = (reader,) if reader is not None else ()
        if not self.writes:
            return Found(
                f"`{self.buffer.name}` is never written, {who}",
                read,
                why="no store, push or pull of it stands in a program; a notify alone moves nothing",
                hint="write `tl.tile_store(...)`, `tl.tile_push_data(...)` or `tl.tile_pull_data(...)` for every tile",
                loc=self.buffer.loc,
            )
        rank, at, begin = self._place(where)
        moment = None if reader is None else self._touching(reader, (rank, *begin))
        writers = ", ".join(dict.fromkeys(f"`{self.table.path(w)}`" for w in self.writes))
        why = f"the tiles of {writers} do not reach there, on rank {rank}"
        around = list(dict.fromkeys(said for w in self.writes for said in w.said))
        if around:
            why += f"; the store stands in {', '.join(around)}"
        hint = "store every tile" if reader is None else "store every tile that is read"
        if not around and self._elsewhere(where):
            why += "; other ranks store that, each in memory of its own"
            hint = f"push what other ranks are to have: `tl.tile_push_data({self.buffer.name}, ...)`"
        what = f"{at} of `{self.buffer.name}` are never written, {who}"
        return Found(what, (self.writes[0], *read), (moment,), why=why, hint=hint)

    def _elsewhere(self, where: Array) -> bool:
        """Whether stores, each into its own rank's memory, leave out on one rank what they write on another."""
        ranks = np.arange(self.table.ranks)
        for w in self.writes:
            assert isinstance(w.op, Write)
            if not w.op.param or not np.array_equal(w(w.op.rank).ravel(), ranks):
                return False
        written = self.cells.count([self.boxes[id(w)] for w in self.writes]) > 0
        on_some_rank = [np.broadcast_to(found, self.cells.shape).any(axis=0) for found in (where, written)]
        return bool((on_some_rank[0] & on_some_rank[1]).any())

    def by_data(self, w: Row, reads: Sequence[Row]) -> Found:
        assert isinstance(w.op, Write)
        name, by = w.op.param or self.buffer.name, w.undecided
        who = "it is a result" if self.buffer.space == "result" else f"`{self.table.path(reads[0])}` reads it"
        return Found(
            f"whether all of `{name}` is written is for data to say: {by[0].said}",
            (w,),
            (Moment.first(self.table, w),),
            code="TL614",
            why=f"{who}, and what is not written is undefined",
            hint=f"store in any case, with `tl.where` for the value; or declare behind the shape of `{name}` in the program's "
            "signature `once`, each element is written by exactly one store, or `partial`, some are left undefined",
            notes=tuple(Note(d.said, d.loc) for d in by if d.loc is not None and d.loc != w.op.loc),
        )

    def _touching(self, row: Row, at: tuple[int, ...], *, last: bool = False) -> Moment | None:
        """When an op touches an element: the rank whose memory it is, and its positions."""
        places = boxes_of(Runs.of(self.table, row)).places
        return Moment.first(
            self.table, row, [(lo <= x) & (x < hi) for (lo, hi), x in zip(places, at, strict=True)], last=last
        )

    def _twice(self, rows: Sequence[Row], at: tuple[int, ...] | None) -> tuple[Moment, ...]:
        """Two executions that write an element; None: the first that one of them writes."""
        if at is None:
            first = Moment.first(self.table, rows[0])
            assert first is not None and isinstance(rows[0].op, Write)
            at = (first.value(rows[0].op.rank), *(first.value(lo) for lo, _ in rows[0].op.box))
        found = (self._touching(row, at, last=last) for row in rows for last in (False, True))
        different = {(id(m.row), m.at): m for m in found if m is not None}
        return tuple(different.values())[:2]

    def _place(self, where: Array) -> tuple[int, str, tuple[int, ...]]:
        """A rank and the elements of the first cell of some, as a person says it."""
        full = np.broadcast_to(where, self.cells.shape)
        cell = [int(c) for c in np.unravel_index(int(np.argmax(full)), self.cells.shape)]
        spans = [_stretch(self.cells, full, cell, k) for k in range(len(cell))]
        names = self.buffer.axes or tuple(str(k) for k in range(len(spans) - 1))
        parts = [
            f"positions {first} to {last} of axis `{name}`"
            for name, (first, last), size in zip(names, spans[1:], self.cells.extents[1:], strict=True)
            if (first, last) != (0, size)
        ]
        return spans[0][0], " and ".join(parts) or "all elements", tuple(first for first, _ in spans[1:])


def _stretch(cells: Cells, where: Array, cell: Sequence[int], k: int) -> tuple[int, int]:
    """From which element to which, along a place, everything is as in a cell."""
    line = where[(*cell[:k], slice(None), *cell[k + 1 :])]
    last = cell[k] + int(np.argmin(np.append(line[cell[k] :], False)))
    return int(cells.edges[k][cell[k]]), int(cells.edges[k][last])
