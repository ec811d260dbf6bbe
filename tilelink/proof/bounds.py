"""What is read and written lies in the memory of the rank that it is said to be on; flags that are awaited exist."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.ir.lowered import Await, Check, Read, Write
from tilelink.proof.cells import within
from tilelink.proof.coverage import Found, boxes_of
from tilelink.proof.runs import Runs, possible
from tilelink.proof.table import Array, Table


def outside(table: Table) -> Iterator[Found]:
    extents = {b.name: [table.each(e) for e in b.extents] for b in table.lowered.buffers}
    counts = {f.name: table.each(f.count) for f in table.lowered.flags}
    for b in table.lowered.buffers:
        if b.space == "symmetric" and any(len(np.unique(e)) > 1 for e in extents[b.name]):
            why = "symmetric memory has one layout: peers work out addresses from their own"
            yield Found("has another size on each rank", b.name, why=why, loc=b.loc)
    for row in table.rows:
        runs = Runs.of(table, row)
        if isinstance(row.op, Check):
            if possible([*runs.taken, runs(row.op.test) == 0]):
                yield Found(f"is not there: {row.op.what}", row.loop.path, (row,))
        elif isinstance(row.op, Read | Write):
            yield from _of(runs, row.op, extents[row.op.buffer], table.ranks)
        elif isinstance(row.op, Await):
            index, here = runs(row.op.index), counts[row.op.flags][runs.values["rank"]]
            if possible([*runs.taken, (index < 0) | (index >= here)]):
                yield Found("has no such flag", row.op.flags, (row,))


def _of(runs: Runs, op: Read | Write, extents: list[Array], ranks: int) -> Iterator[Found]:
    (on, _), *edges = boxes_of(runs).places
    if possible([*runs.taken, (on < 0) | (on >= ranks)]):
        yield Found("is not on a rank that there is", op.buffer, (runs.row,))
        return
    for k, (lo, hi) in enumerate(edges):
        wrong = (lo < hi) & ((lo < 0) | (hi > extents[k][within(on, ranks - 1)]))
        # Of an empty box nothing is touched.
        if wrong.any() and possible([*runs.taken, wrong, *(a < b for a, b in edges)]):
            yield Found(f"does not reach that far along axis {k}", op.buffer, (runs.row,))
