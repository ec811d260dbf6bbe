"""What is read and written lies in the memory of the rank that it is said to be on; flags that are awaited exist; the order of a
loop takes each of its tiles once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.lowered import Await, Check, Read, Tiles, Write
from tilelink.proof.cells import deeper, within
from tilelink.proof.coverage import boxes_of
from tilelink.proof.runs import Found, Moment, Runs, possible
from tilelink.proof.table import Array, Table

_PAST = "leave such tiles out by a test of their positions"


def outside(table: Table) -> Iterator[Found]:
    extents = {b.name: [table.each(e) for e in b.extents] for b in table.lowered.buffers}
    counts = {f.name: table.each(f.count) for f in table.lowered.flags}
    for b in table.lowered.buffers:
        if b.space == "symmetric" and any(len(np.unique(e)) > 1 for e in extents[b.name]):
            why = "symmetric memory has one layout: peers work out addresses from their own"
            yield Found(f"`{b.name}` has another size on each rank", why=why, loc=b.loc)
    yield from _unlike(table)
    for row in table.rows:
        runs = Runs.of(table, row)
        if isinstance(row.op, Check):
            wrong = runs(row.op.test) == 0
            if possible([*runs.taken, wrong]):
                what = f"`{table.path(row)}` would go past the end: {row.op.what}"
                yield Found(what, (row,), (Moment.first(table, row, [wrong]),), hint=_PAST)
        elif isinstance(row.op, Read | Write):
            yield from _of(table, runs, row.op, extents[row.op.buffer])
        elif isinstance(row.op, Await):
            index, here = runs(row.op.index), counts[row.op.flags][runs.values["rank"]]
            wrong = (index < 0) | (index >= here)
            if possible([*runs.taken, wrong]):
                moment = Moment.first(table, row, [wrong])
                what = f"`{table.path(row)}` waits for a flag of `{row.op.flags}` that there is not"
                why = "the flags of a tensor are as many as its tiles"
                yield Found(what, (row,), (moment,), why=why)


def _unlike(table: Table) -> Iterator[Found]:
    """Copies whose sides differ in shape, but for axes of one element, or in dtype, which only workers convert."""
    for row in (r for r in table.rows if isinstance(r.op, Read)):
        copy = row.copy
        if copy is None:
            continue
        runs = Runs.of(table, row)
        sides, taken = [[runs(hi) - runs(lo) for lo, hi in op.box] for op in (copy.source, copy.target)], runs.taken
        lengths = [[x for x in side if possible([*taken, x != 1])] for side in sides]
        dtypes = {table.lowered.buffer(op.buffer).dtype for op in (copy.source, copy.target)}
        alike = len(lengths[0]) == len(lengths[1]) and (len(dtypes) == 1 or row.executor.engine.computes)
        if not alike or any(possible([*taken, a != b]) for a, b in zip(*lengths, strict=True)):
            what = f"`{table.path(row)}` copies `{copy.source.buffer}` to `{copy.target.buffer}`, which is of another shape"
            yield Found(what, (row,), (Moment.first(table, row),), why="a copy goes element by element")


def _of(table: Table, runs: Runs, op: Read | Write, extents: list[Array]) -> Iterator[Found]:
    (on, _), *edges = boxes_of(runs).places
    wrong = (on < 0) | (on >= table.ranks)
    if possible([*runs.taken, wrong]):
        moment = Moment.first(table, runs.row, [wrong])
        yield Found(f"`{op.buffer}` is not on a rank that there is", (runs.row,), (moment,))
        return
    away = [on != runs.values["rank"], *(a < b for a, b in edges)]
    if table.lowered.buffer(op.buffer).space == "device" and possible([*runs.taken, *away]):
        moment = Moment.first(table, runs.row, away)
        yield Found(f"`{op.buffer}` is memory that other ranks do not reach", (runs.row,), (moment,))
    for k, (lo, hi) in enumerate(edges):
        wrong = (lo < hi) & ((lo < 0) | (hi > extents[k][within(on, table.ranks - 1)]))
        # Of an empty box nothing is touched.
        filled = [wrong, *(a < b for a, b in edges)]
        if wrong.any() and possible([*runs.taken, *filled]):
            yield _outside(table, runs, op, k, Moment.first(table, runs.row, filled))


def _outside(table: Table, runs: Runs, op: Read | Write, k: int, moment: Moment | None) -> Found:
    assert moment is not None
    buffer, (lo, hi) = table.lowered.buffer(op.buffer), (moment.value(edge) for edge in op.box[k])
    whose = moment.value(op.rank)
    most, axis = int(table.each(buffer.extents[k])[whose]), buffer.axes[k] if k < len(buffer.axes) else str(k)
    why, hint = f"the local tensor has {most} elements there", _PAST
    name = f"of axis `{axis}` of `{op.param or buffer.name}`"
    if any(n.endswith(("rank", "RANKS")) for n in F.symbols(buffer.extents[k])):  # ranks have parts of the axis
        name = f"of rank {whose}'s part {name}"
        why += ", and a rank reads and stores its own part of a split axis only"
        hint = "push the tile to its owner, pull it from there, or test with `tl.rank_of` whose it is"
    what = f"positions {lo} to {hi} {name} are not where `{table.path(runs.row)}` looks for them on rank {moment.at[0]}"
    return Found(what, (runs.row,), (moment,), why=why, hint=hint)


# ------------------------------------------------------------------------------------------------------- orders of loops
def untaken(table: Table) -> Iterator[Found]:
    """Tiles that are taken twice, or never although something is done for them."""
    for executor in table.lowered.executors:
        for loop in executor.loops:
            if loop.axes:
                yield from _taken_otherwise(table, loop)
            elif (table.each(loop.total) != 1).any():
                yield Found(f"`{loop.path}` does not do once what it does once", loc=loop.loc)


def _taken_otherwise(table: Table, loop: Tiles) -> Iterator[Found]:
    at = table.at(loop)
    total = np.maximum(table.each(loop.total), 0)
    counts = np.stack([table.each(count) for _, count in loop.axes])
    visited = (at >= 0).reshape(table.ranks, -1).sum(axis=1)
    if (visited != total).any():
        rank = int(np.argmax(visited != total))
        what = f"`{loop.path}` takes {int(visited[rank])} tiles in {int(total[rank])} turns on rank {rank}"
        yield Found(what, loc=loop.loc)
        return
    if (visited == counts.prod(axis=0)).all():
        return
    for row in table.rows:
        # Arrays of an op go on with the turns of loops.
        if row.loop is loop and possible([deeper(at, row.depth) < 0, *row.taken]):
            yield Found(f"`{loop.path}` leaves out a tile for which there is something to do", (row,))
            return
