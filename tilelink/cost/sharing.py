"""Links and memory that several loops use at once: by how much each is slowed down.

A loop asks for bytes evenly from its begin to its end, as fast as it would alone. Where all together ask for more than a
resource gives, each gets its share of it. Time is looked at in slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilelink.cost.machine import Machine
from tilelink.cost.prediction import Played
from tilelink.cost.rows import Array, nbytes, repeated, touched, where
from tilelink.ir.lowered import Read, Write

SLICES = 48


@dataclass(frozen=True, slots=True)
class Demand:
    """What a loop asks for while it runs, by rank, in bytes per microsecond. `moved`: (rank, other rank), to the second, within
    nodes and between them; `memory`: of the GPU's memory."""

    moved: tuple[Array, Array]
    memory: Array

    @staticmethod
    def of(played: Played) -> Demand:
        """What it asks for where nobody else does."""
        work, ranks = played.work, played.work.table.ranks
        long = np.maximum(played.end - played.begin, 1e-3)
        moved, local = np.zeros((ranks, ranks)), np.zeros(ranks)
        for row, between in work.crossing():
            # A read brings bytes here, from where they are.
            moved += (between / long[:, None]).T if isinstance(row.op, Read) else between / long[:, None]
        for row in work.rows:
            if row.place in work.operands:
                # From the L2 cache, but once.
                local = local + touched(work.table, row)
            elif isinstance(row.op, Read | Write):
                size = where(row, nbytes(work.table, row))
                local = local + size.sum(axis=tuple(range(1, row.depth))) * repeated(row, size)
        return Demand(work.machine.split(moved), np.broadcast_to(local / long, (ranks,)))


def slower(demands: Sequence[Demand], loops: Sequence[Played], machine: Machine) -> Iterator[tuple[Array, Array]]:
    """By what each loop is slowed down on its links and in memory, by rank, where it runs from its begin to its end."""
    last = max((float(loop.end.max(initial=0)) for loop in loops), default=0.0)
    edges = np.linspace(0.0, max(last, 1e-3), SLICES + 1)
    shares = [np.minimum(p.end[:, None], edges[1:]) - np.maximum(p.begin[:, None], edges[:-1]) for p in loops]
    shares = [np.clip(share, 0, None) / edges[1] for share in shares[: len(demands)]]
    busy: list[Array] = []
    for kind, limit in enumerate((machine.link, machine.network)):
        moved = [d.moved[kind] for d in demands]
        out = sum(m.sum(axis=1)[:, None] * share for m, share in zip(moved, shares, strict=True))
        into = sum(m.T @ share for m, share in zip(moved, shares, strict=True))
        busy.append(np.maximum(np.maximum(out, into) / limit, 1.0))
    memory = sum(d.memory[:, None] * share for d, share in zip(demands, shares, strict=True))
    memory = np.maximum(memory / machine.memory, 1.0)
    for demand, share in zip(demands, shares, strict=True):
        weight = np.maximum(share.sum(axis=1), 1e-9)
        links = np.ones(len(weight))
        for moved, by in zip(demand.moved, busy, strict=True):
            if moved.any():
                links = np.maximum(links, (share * by).sum(axis=1) / weight)
        yield links, np.maximum((share * memory).sum(axis=1) / weight, 1.0)
