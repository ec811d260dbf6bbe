"""Awaits and signals one by one, in the order in which executors with one worker each come to them, and who never gets there.

What an await waits for is a place in each of several chains that has to be passed. Of the awaits of a chain those alone matter
that wait for a later place in another chain than all awaits before them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilelink.ir.lowered import Await, Executor, Signal
from tilelink.proof.cells import TooMany
from tilelink.proof.counts import Sent
from tilelink.proof.findings import Moment
from tilelink.proof.runs import Runs, together
from tilelink.proof.table import Array, Row, Table

MOST = 20_000_000
"""Awaits and signals that may be looked at one by one."""


@dataclass(frozen=True, slots=True)
class Chains:
    """`ends`: behind the last step of each chain; of each step the chain, how far on in it, the number of its flag among all
    (-1: there is none such), whether it is awaited, its row of the table, and the number of its execution there; `after`: (chain,
    another that ends before it starts)."""

    ends: Array
    chain: Array
    at: Array
    flag: Array
    waits: Array
    row: Array
    number: Array
    after: list[tuple[int, int]]

    @staticmethod
    def of(table: Table, group: Sequence[Executor]) -> Chains:
        """
        Raises:
            TooMany: there are more awaits and signals than can be looked at.
        """
        base, numbers = dict[str, int](), {id(e): k for k, e in enumerate(group)}
        for f in table.lowered.flags:
            base[f.name] = table.ranks * sum(table.width(name) for name in base)
        depth = max((len(r.around) for r in table.rows), default=0)
        rows = [(k, r) for k, r in enumerate(table.rows) if steps_in(r) and id(r.executor) in numbers]
        found = [_keyed(table, r, k, base, (numbers[id(r.executor)], depth)) for k, r in rows]
        every = np.concatenate(found, axis=1)
        if every.shape[1] > MOST:
            raise TooMany
        every = every[:, np.lexsort(every[-4::-1])]
        new = np.flatnonzero((np.diff(every[:3], axis=1, prepend=-1) != 0).any(axis=0))
        ends = np.diff(new, append=every.shape[1])
        chain = np.repeat(np.arange(len(new)), ends)
        executor, rank = every[:2, new]
        after = [
            (c, other)
            for c in range(len(new))
            for other in np.flatnonzero(rank == rank[c]).tolist()
            if group[executor[other]].name in table.ended[group[executor[c]].name]
        ]
        flag, rows_of, number = every[-3:]
        waits = np.array([isinstance(r.op, Await) for r in table.rows])[rows_of]
        return Chains(ends, chain, np.arange(every.shape[1]) - new[chain], flag, waits, rows_of, number, after)

    def cycle(self) -> list[tuple[int, int]]:
        """Of chains that wait in a cycle for one another, the step at which each is stuck, and the step of the next chain that it
        waits for; of none: nothing."""
        done, starts = self.passed(), np.cumsum(self.ends) - self.ends
        stuck = np.flatnonzero(done < self.ends).tolist()
        needs = {pair: at for pair, at in self._needs().items() if pair[0] in {*stuck}} if stuck else {}
        found: dict[int, tuple[int, int]] = {}
        chain = stuck[0] if stuck else -1
        while stuck and chain not in found:
            for (a, b), (at, to) in needs.items():
                k = bisect_left(to, done[b])
                if a == chain and k < len(at) and at[k] == done[a]:
                    found[a] = int(starts[a] + at[k]), int(starts[b] + to[k])
                    chain = b
                    break
            else:
                return []
        return [found[c] for c in [*found][[*found].index(chain) :]] if found else []

    def moment(self, table: Table, step: int, *, late: bool = False) -> Moment:
        """When a step is."""
        row = table.rows[int(self.row[step])]
        at = np.unravel_index(int(self.number[step]), Sent.of(table, row).shape)
        return Moment(row, Runs.of(table, row).index([int(i) for i in at[:-1]]), late=late)

    def passed(self) -> Array:
        """How far each chain comes."""
        needs = self._needs()
        awaited: dict[int, list[int]] = {}
        for a, b in needs:
            awaited.setdefault(b, []).append(a)
        ends = self.ends.tolist()
        limits = [{b: at[0] for (a, b), (at, _) in needs.items() if a == c} for c in range(len(ends))]
        done = [min([end, *found.values()]) for end, found in zip(ends, limits, strict=True)]
        moved = [c for c, n in enumerate(done) if n]
        while moved:
            b = moved.pop()
            for a in awaited.get(b, ()):
                at, to = needs[a, b]
                k = bisect_left(to, done[b])
                limits[a][b] = at[k] if k < len(at) else ends[a]
                if (n := min(ends[a], *limits[a].values())) > done[a]:
                    done[a] = n
                    moved.append(a)
        return np.array(done)

    def _needs(self) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
        """By chain and other: places of the chain, and the places of the other that have to be passed before each."""
        known = self.flag >= 0
        told, waits = (np.flatnonzero(known & which) for which in (~self.waits, self.waits))
        # The last signal of each flag in each chain is the one that counts.
        order = told[np.lexsort((self.at[told], self.chain[told], self.flag[told]))]
        last = np.append((np.diff(self.flag[order]) != 0) | (np.diff(self.chain[order]) != 0), True)[: len(order)]
        order = order[last]
        begin = np.searchsorted(self.flag[order], self.flag[waits])
        often = np.searchsorted(self.flag[order], self.flag[waits], side="right") - begin
        if often.sum() > MOST:
            raise TooMany
        mine = np.repeat(waits, often)
        theirs = order[np.repeat(begin - np.cumsum(often) + often, often) + np.arange(len(mine))]
        whole = [np.array(self.after, dtype=np.int64).reshape(-1, 2)[:, k] for k in (0, 1)]
        a, at = np.append(self.chain[mine], whole[0]), np.append(self.at[mine], 0 * whole[0])
        b, to = np.append(self.chain[theirs], whole[1]), np.append(self.at[theirs], self.ends[whole[1]] - 1)
        order = np.lexsort((-to, at, b, a))
        a, b, at, to = a[order], b[order], at[order], to[order]
        pair = a * len(self.ends) + b
        first = np.append(True, np.diff(pair) != 0)[: len(pair)]
        # Each pair's places lie above those of all pairs before it.
        most = np.maximum.accumulate(to + np.cumsum(first) * (int(self.ends.max(initial=0)) + 1))
        further = np.append(True, np.diff(most) > 0)[: len(most)]
        cuts = np.flatnonzero(first[further])
        parts = zip(np.split(at[further], cuts[1:]), np.split(to[further], cuts[1:]), strict=True)
        keys = zip(a[first].tolist(), b[first].tolist(), strict=True)
        return {key: (x.tolist(), y.tolist()) for key, (x, y) in zip(keys, parts, strict=False)}


def steps_in(row: Row) -> bool:
    """Whether it is an await, or a signal; what begins a call `back` calls ago has ended long before."""
    return isinstance(row.op, Await | Signal) and not getattr(row.op, "back", 0)


def _keyed(table: Table, row: Row, number: int, base: dict[str, int], whose: tuple[int, int]) -> Array:
    """Of each execution: executor, rank and stream, which say the chain; the loop, the position and what says where in its tile
    it stands; the flag; the row."""
    assert isinstance(row.op, Await | Signal)
    executor, depth = whose
    runs, sent, width = Runs.of(table, row), Sent.of(table, row), table.width(row.op.flags)
    t = positions(table, runs)
    taken = together(np.logical_and, [*sent.taken, t >= 0])
    picked = np.nonzero(np.broadcast_to(taken, sent.shape))
    flag = np.where(
        together(np.logical_and, sent.inside(table, width)), base[row.op.flags] + sent.on * width + sent.flag, -1
    )
    loop = next(k for k, loop in enumerate(row.executor.loops) if loop is row.loop)
    keys = [executor, sent.rank, t % row.executor.workers if row.executor.engine.in_turn else 0, loop, t]
    for level in range(depth + 1):
        place, axis = row.around[level] if level < len(row.around) else (row.place, None)
        keys += [place, 0 if axis is None else runs.along(axis)[..., None]]
    each = np.arange(np.prod(sent.shape, dtype=np.int64)).reshape(sent.shape)
    return np.stack([np.broadcast_to(x, sent.shape)[picked] for x in (*keys, flag, number, each)])


def positions(table: Table, runs: Runs) -> Array:
    """The position of each execution in the order of its loop, with an axis behind; of a loop without an order 0."""
    loop, depth = runs.row.loop, runs.row.depth
    if not loop.axes or loop.by_data:
        return np.zeros((1,) * (depth + 1), dtype=np.int32)
    at = table.at(loop)
    return runs.pack(at.reshape(at.shape + (1,) * (depth - at.ndim)))[..., None]
