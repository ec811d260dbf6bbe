"""The order of a loop over tiles: which tile each position is, and that each tile is taken once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilelink.ir.lowered import Tiles
from tilelink.proof.findings import Found
from tilelink.proof.runs import possible
from tilelink.proof.table import Array, Table


def untaken(table: Table) -> Iterator[Found]:
    """Tiles that are taken twice, or never although something is done for them."""
    for executor in table.lowered.executors:
        for loop in executor.loops:
            if loop.axes:
                yield from _of(table, loop)
            elif not loop.axes and (table.each(loop.total) != 1).any():
                yield Found("does not do once what it does once", loop.path, loc=loop.loc)


def _of(table: Table, loop: Tiles) -> Iterator[Found]:
    at = table.at(loop)
    total = np.maximum(table.each(loop.total), 0)
    counts = np.stack([table.each(count) for _, count in loop.axes])
    visited = (at >= 0).reshape(table.ranks, -1).sum(axis=1)
    if (visited != total).any():
        rank = int(np.argmax(visited != total))
        what = f"takes {int(visited[rank])} tiles in {int(total[rank])} turns on rank {rank}"
        yield Found(what, loop.path, loc=loop.loc)
        return
    if (visited == counts.prod(axis=0)).all():
        return
    for row in table.rows:
        if row.loop is loop and _missed(at, row.taken):
            yield Found("leaves out a tile for which there is something to do", loop.path, (row,))
            return


def _missed(at: Array, taken: tuple[Array, ...]) -> bool:
    """Whether an op is executed for a tile that no position is; its arrays go on with the turns of loops."""
    return possible([at.reshape(at.shape + (1,) * (taken[0].ndim - at.ndim)) < 0, *taken])
