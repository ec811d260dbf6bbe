"""What is read and written lies in the memory of the rank that it is said to be on; flags that are awaited exist."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.ir.lowered import Await, Check, Read, Write
from tilelink.proof.coverage import Found
from tilelink.proof.table import Array, Row, Table


def outside(table: Table) -> Iterator[Found]:
    extents = {
        b.name: [np.broadcast_to(table.each(e), (table.ranks,)) for e in b.extents] for b in table.lowered.buffers
    }
    counts = {f.name: np.broadcast_to(table.each(f.count), (table.ranks,)) for f in table.lowered.flags}
    for row in table.rows:
        if isinstance(row.op, Check):
            if _ever(row, row(row.op.test) == 0):
                yield Found(f"is not there: {row.op.what}", row.loop.path, (row,))
        elif isinstance(row.op, Read | Write):
            yield from _of(row, row.op, extents[row.op.buffer], table.ranks)
        elif isinstance(row.op, Await):
            index, count = row(row.op.index), counts[row.op.flags]
            here = count[row.values["rank"]]
            if _ever(row, (index < 0) | (index >= here)):
                yield Found("has no such flag", row.op.flags, (row,))


def _of(row: Row, op: Read | Write, extents: list[Array], ranks: int) -> Iterator[Found]:
    on = row(op.rank)
    if _ever(row, (on < 0) | (on >= ranks)):
        yield Found("is not on a rank that there is", op.buffer, (row,))
        return
    edges = [(row(lo), row(hi)) for lo, hi in op.box]
    for k, (lo, hi) in enumerate(edges):
        wrong = (lo < hi) & ((lo < 0) | (hi > extents[k][np.clip(on, 0, ranks - 1)]))
        # Of an empty box nothing is touched.
        if wrong.any() and _ever(row, wrong, *(a < b for a, b in edges)):
            yield Found(f"does not reach that far along axis {k}", op.buffer, (row,))


def _ever(row: Row, *conditions: Array) -> bool:
    """Whether the conditions hold together where the row is executed."""
    if not all(c.any() for c in conditions):
        return False
    found = conditions[0]
    for condition in (*conditions[1:], *row.taken):
        found = found & condition
    return bool(found.any())
