"""Every element that is read, or returned, is written once, and none is written twice.

A store under a test that does not hold, or in a loop without turns, is no write. What data decides is assumed to be complete
and disjoint; that is said of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilelink.ir.lowered import Buffer, Read, Write
from tilelink.proof.cells import Boxes, Cells
from tilelink.proof.runs import Runs
from tilelink.proof.table import Array, Row, Table


@dataclass(frozen=True, slots=True)
class Found:
    """`rows`: that have to do with it; `rank` and `begin`: the first element, where there is one."""

    what: str
    buffer: str
    rows: tuple[Row, ...] = ()
    rank: int | None = None
    begin: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank} from {self.begin} on"
        return f"`{self.buffer}` {self.what}{where}"


def uncovered(table: Table) -> Iterator[Found]:
    """
    Raises:
        TooMany: there are more tiles, or cells, than can be looked at.
    """
    rows: dict[str, list[Row]] = {b.name: [] for b in table.lowered.buffers}
    for row in table.rows:
        if isinstance(row.op, Read | Write):
            rows[row.op.buffer].append(row)
    for buffer in table.lowered.buffers:
        yield from _of(table, buffer, rows[buffer.name])


def _of(table: Table, buffer: Buffer, rows: list[Row]) -> Iterator[Found]:
    writes = [r for r in rows if isinstance(r.op, Write)]
    reads = [r for r in rows if isinstance(r.op, Read)]
    if not writes and (buffer.space == "argument" or (not reads and buffer.space != "result")):
        return
    memory, longest = memory_of(table, buffer)
    boxes = {id(r): boxes_of(r) for r in rows}
    cells = Cells.of((table.ranks, *longest), table.ranks, [memory, *boxes.values()])
    if 0 in cells.shape:
        return
    sure = [boxes[id(r)] for r in writes if not r.by_data]
    times = cells.count(sure)
    if (times > 1).any():
        yield _at("is written twice", buffer, cells, times > 1, writes)
    perhaps = np.zeros((1,) * len(cells.shape), dtype=np.bool_)
    for r in writes:
        if r.by_data:
            perhaps = perhaps | (cells.count([boxes[id(r)]]) > 0)
    bare = (times == 0) & ~perhaps
    if buffer.space == "argument" or not bare.any():
        return
    if buffer.space == "result" and (left := bare & (cells.count([memory]) > 0)).any():
        yield _at("is a result, and is never written", buffer, cells, left, writes)
    for r in reads:
        if (left := bare & (cells.count([boxes[id(r)]]) > 0)).any():
            yield _at("is read, and is never written", buffer, cells, left, [r, *writes])


def boxes_of(runs: Row | Runs) -> Boxes:
    """The elements that a read or write touches: the rank whose memory it is, then along each of its axes."""
    op = runs.op if isinstance(runs, Row) else runs.row.op
    assert isinstance(op, Read | Write)
    rank = runs(op.rank)
    return Boxes(((rank, rank + 1), *((runs(lo), runs(hi)) for lo, hi in op.box)), runs.taken)


def memory_of(table: Table, buffer: Buffer) -> tuple[Boxes, tuple[int, ...]]:
    """All elements that there are, on every rank; and the most along each axis."""
    extents = [table.each(e) for e in buffer.extents]
    ranks = np.arange(table.ranks)
    places = [(ranks, ranks + 1), *((np.zeros_like(e), e) for e in extents)]
    found = Boxes(tuple((lo.reshape(-1, 1), hi.reshape(-1, 1)) for lo, hi in places), ())
    return found, tuple(int(e.max(initial=0)) for e in extents)


def _at(what: str, buffer: Buffer, cells: Cells, where: Array, rows: list[Row]) -> Found:
    full = np.broadcast_to(where, cells.shape)
    cell = np.unravel_index(int(np.argmax(full)), cells.shape)
    rank, *begin = (int(edges[k]) for edges, k in zip(cells.edges, cell, strict=True))
    return Found(what, buffer.name, tuple(rows), rank, tuple(begin))
