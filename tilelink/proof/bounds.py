"""What is read and written lies in the memory of the rank that it is said to be on; flags that are awaited exist."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.ir.lowered import Await, Buffer, Check, Read, Write
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
            yield from _of(runs, row.op, table.lowered.buffer(row.op.buffer), extents[row.op.buffer], table.ranks)
        elif isinstance(row.op, Await):
            index, here = runs(row.op.index), counts[row.op.flags][runs.values["rank"]]
            if possible([*runs.taken, (index < 0) | (index >= here)]):
                yield Found("has no such flag", row.op.flags, (row,))


def _of(runs: Runs, op: Read | Write, buffer: Buffer, extents: list[Array], ranks: int) -> Iterator[Found]:
    (on, _), *edges = boxes_of(runs).places
    if possible([*runs.taken, (on < 0) | (on >= ranks)]):
        yield Found("is not on a rank that there is", op.buffer, (runs.row,))
        return
    rank = runs.values["rank"]
    if buffer.space == "device" and possible([*runs.taken, on != rank, *(a < b for a, b in edges)]):
        yield Found("is memory that other ranks do not reach", op.buffer, (runs.row,))
    for k, (lo, hi) in enumerate(edges):
        there = extents[k][within(on, ranks - 1)]
        wrong = (lo < hi) & ((lo < 0) | (hi > there))
        # Of an empty box nothing is touched.
        if wrong.any() and possible([*runs.taken, wrong, *(a < b for a, b in edges)]):
            at = np.broadcast_arrays(rank, lo, hi, there, wrong)
            on_rank, begin, end, length = (int(x[at[4]][0]) for x in at[:4])
            axis = f"axis `{buffer.axes[k]}`" if k < len(buffer.axes) else f"axis {k}"
            yield Found(
                f"positions {begin} to {end} of {axis} of `{op.param or op.buffer}` are not where "
                f"`{runs.row.loop.path}` looks for them on rank {on_rank}",
                "",
                (runs.row,),
                on_rank,
                why=f"the instance has {length} elements there, and a rank reads and stores its own part of a split axis only",
                hint="push the tile to its holder, pull it from there, or test with `tl.rank_of` whose it is",
            )
