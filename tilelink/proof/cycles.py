"""No executor waits, by way of others, for itself.

One worker for each executor is the hardest case: it takes all tiles one after the other. So the order in which an executor does
things are edges, as are those from a signal to its flag and from a flag to whoever awaits it; an await ends when all signals of
its flag have been made. A cycle is a deadlock. Executors that do not wait for one another in a cycle on any ranks have none among
their tiles; nor have those that would not even if each position began on all ranks at once, and ended there at once.

And workers stay until what they wait for has come, so all that run side by side have to find SMs, and streams one for what they
do by them: copies within the GPU, pulls, waiting for a flag that is no doorbell, functions of libraries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import networkx as nx
import numpy as np

from tilelink.errors import Note
from tilelink.ir.lowered import Await, Executor, Signal, Write, walk
from tilelink.proof.cells import TooMany, deeper, depends, entry
from tilelink.proof.counts import Sent
from tilelink.proof.runs import Found, Moment, Runs, possible, together
from tilelink.proof.table import Array, Row, Table

MOST = 20_000_000
"""Awaits and signals that may be looked at one by one."""


def stuck(table: Table) -> Iterator[Found]:
    """
    Raises:
        TooMany: there are more awaits and signals than can be looked at.
    """
    for group in _groups(table):
        if _Abreast(table, group).end():
            continue
        chains = Chains.of(table, group)
        cycle = chains.cycle()
        if cycle:
            first = next((k for k, (wait, _) in enumerate(cycle) if chains.waits[wait]), 0)
            moments: list[Moment] = []
            for wait, signal in (*cycle[first:], *cycle[:first]):
                moments += [chains.moment(table, wait), chains.moment(table, signal, late=True)]
            what = f"`{table.path(moments[0].row)}` waits in a circle for itself"
            notes = tuple(_note(table, m) for m in moments)
            yield Found(what, (moments[0].row,), tuple(moments), notes=notes)


def _note(table: Table, moment: Moment) -> Note:
    """Where a step of the cycle stands in its order."""
    step, verb = moment.instant(table), "would notify" if moment.late else "waits"
    where = f" at tile {step.tile}" if step.tile else ""
    if step.tile and not moment.row.loop.by_data:
        where += f", the {_nth(entry(table.at(moment.row.loop), moment.at) + 1)} of its order"
    return Note(f"rank {step.rank}: `{step.path}` {verb}{where}", step.loc)


def _nth(n: int) -> str:
    if n % 100 in (11, 12, 13):
        return f"{n}th"
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th') }"


def _groups(table: Table) -> Iterator[list[Executor]]:
    """Executors that wait for one another, or for themselves, on whatever ranks."""
    waits: nx.DiGraph[str] = nx.DiGraph()
    signalled: dict[str, list[str]] = {}
    for row in table.rows:
        if isinstance(row.op, Signal):
            signalled.setdefault(row.op.flags, []).append(row.executor.name)
    for executor in table.lowered.executors:
        waits.add_edges_from((before, executor.name) for before in executor.after)
    for row in table.rows:
        if isinstance(row.op, Await) and not row.op.back:
            waits.add_edges_from((name, row.executor.name) for name in signalled.get(row.op.flags, ()))
    for names in nx.strongly_connected_components(waits):
        if len(names) > 1 or waits.has_edge(*(2 * [*names])):
            yield [e for e in table.lowered.executors if e.name in names]


class _Abreast:
    """Executors that begin each position of theirs on all ranks when all that it awaits there is done, and signal at its end."""

    def __init__(self, table: Table, group: list[Executor]) -> None:
        self.table, self.group = table, group
        self.begin, self.ends = dict[int, int](), list[int]()
        for e in group:
            end = 0
            for loop in e.loops:
                self.begin[id(loop)] = end
                ordered = loop.axes and not loop.by_data
                end += max(int(np.max(table.each(loop.total), initial=0)), 0) if ordered else 1
            self.ends.append(end)
        numbers = {id(e): k for k, e in enumerate(group)}
        self.rows = [(numbers[id(r.executor)], r) for r in table.rows if r.tells and id(r.executor) in numbers]

    def end(self) -> bool:
        """Whether they all do."""
        needs = self._needs()
        if needs is None:
            return False
        done, moving = [0] * len(self.ends), True
        while moving:
            moving = False
            for k, end in enumerate(self.ends):
                stops = (int(np.searchsorted(need, done[other])) for (who, other), need in needs.items() if who == k)
                stop = min(end, *stops, end)
                moving, done[k] = moving or stop > done[k], stop
        return done == self.ends

    def _needs(self) -> dict[tuple[int, int], Array] | None:
        """By executor and another: the last position of the other that has to be done before each, or an earlier one, begins;
        None: of an executor one that is not before."""
        needs = {
            (k, other): np.full(self.ends[k], self.ends[other] - 1, np.int32)
            for k, e in enumerate(self.group)
            for other, before in enumerate(self.group)
            if before.name in self.table.ended[e.name]
        }
        told: dict[tuple[int, str], Array] = {}
        for k, row in self.rows:
            if isinstance(row.op, Signal):
                out = told.setdefault(
                    (k, row.op.flags), np.full((self.table.ranks, self.table.width(row.op.flags)), -1, np.int32)
                )
                self._tell(out, row)
        for k, row in self.rows:
            for (other, flags), last in told.items():
                if isinstance(row.op, Await) and row.op.flags == flags:
                    sent, t = self._at(row)
                    to = last.take(sent.on * last.shape[1] + sent.flag, mode="clip")
                    taken = [*sent.taken, *sent.inside(self.table, last.shape[1]), t >= 0]
                    if other == k:
                        if possible([*taken, to >= t]):
                            return None
                        continue
                    need = needs.setdefault((k, other), np.full(self.ends[k], -1, np.int32))
                    to, t, found = np.broadcast_arrays(to, t, together(np.logical_and, taken))
                    np.maximum.at(need, t[found], to[found])
        return {who: np.maximum.accumulate(need) for who, need in needs.items()}

    def _tell(self, last: Array, row: Row) -> None:
        """The last position at which an op signals each flag, by rank and flag; -1: none."""
        sent, t = self._at(row)
        t = np.where(together(np.logical_and, [*sent.taken, *sent.inside(self.table, last.shape[1])]), t, -1)
        key = sent.on * last.shape[1] + sent.flag
        key, t = np.broadcast_arrays(key, t.max(axis=tuple(depends(t) - depends(key)), keepdims=True, initial=-1))
        np.maximum.at(last.reshape(-1), key[t >= 0], t[t >= 0])

    def _at(self, row: Row) -> tuple[Sent, Array]:
        t = _places(self.table, Runs.of(self.table, row))
        return Sent.of(self.table, row), np.where(t < 0, -1, t + self.begin[id(row.loop)])


# ------------------------------------------------------------------------------------------- awaits and signals one by one
@dataclass(frozen=True, slots=True)
class Chains:
    """The order in which executors with one worker each come to them, and who never gets there. What an await waits for is a
    place in each of several chains that has to be passed; of the awaits of a chain those alone matter that wait for a later place
    in another chain than all awaits before them.

    `ends`: behind the last step of each chain; of each step the chain, how far on in it, the number of its flag among all
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
        rows = [(k, r) for k, r in enumerate(table.rows) if r.tells and id(r.executor) in numbers]
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
        needs = self._needs()
        done, starts = self._passed(needs), np.cumsum(self.ends) - self.ends
        if done == self.ends.tolist():
            return []
        stuck: nx.DiGraph[int] = nx.DiGraph()
        for (a, b), (at, to) in needs.items():
            k = bisect_left(to, done[b])
            if k < len(at) and at[k] == done[a]:
                stuck.add_edge(a, b, steps=(int(starts[a] + at[k]), int(starts[b] + to[k])))
        return [stuck.edges[edge]["steps"] for edge in nx.find_cycle(stuck)]

    def moment(self, table: Table, step: int, *, late: bool = False) -> Moment:
        """When a step is."""
        row = table.rows[int(self.row[step])]
        at = np.unravel_index(int(self.number[step]), Sent.of(table, row).shape)
        return Moment(row, Runs.of(table, row).index([int(i) for i in at[:-1]]), late=late)

    def _passed(self, needs: Mapping[tuple[int, int], tuple[list[int], list[int]]]) -> list[int]:
        """How far each chain comes."""
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
        return done

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


def _keyed(table: Table, row: Row, number: int, base: dict[str, int], whose: tuple[int, int]) -> Array:
    """Of each execution: executor, rank and stream, which say the chain; the loop, the position and what says where in its tile
    it stands; the flag; the row."""
    assert isinstance(row.op, Await | Signal)
    executor, depth = whose
    runs, sent, width = Runs.of(table, row), Sent.of(table, row), table.width(row.op.flags)
    t = _places(table, runs)
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


def _places(table: Table, runs: Runs) -> Array:
    """The position of each execution in the order of its loop, with an axis behind; of a loop without an order 0."""
    loop, depth = runs.row.loop, runs.row.depth
    if not loop.axes or loop.by_data:
        return np.zeros((1,) * (depth + 1), dtype=np.int32)
    return runs.pack(deeper(table.at(loop), depth))[..., None]


# ------------------------------------------------------------------------------------------------------------ room on SMs
def crowded(table: Table) -> Iterator[Found]:
    taken, sms = _workers(table), table.lowered.sms
    waiting = next((r for r in table.rows if isinstance(r.op, Await) and r.executor.engine.sm == "worker"), None)
    if waiting is not None and taken > sms:
        yield Found(
            f"`{table.path(waiting)}` waits in kernels that have {taken} workers side by side, and there are {sms} SMs",
            (waiting,),
            why="a worker stays until what it waits for has come, and whoever makes that may find no SM meanwhile",
        )
    first = next((e for e in table.lowered.executors if _takes_an_sm(table, e)), None)
    if first is not None and taken >= sms:
        yield Found(
            f"`{first.loops[0].path}` needs an SM while {taken} workers, which may wait for it, can have all {sms}",
            why="a GPU copies within itself by its SMs, and a stream waits for peers by a kernel",
            loc=first.loops[0].loc,
        )


def _workers(table: Table) -> int:
    """The most that there can be at a time: of kernels of which none comes before another."""
    kernels: dict[str, list[Executor]] = {}
    for e in table.lowered.executors:
        if e.engine.sm == "worker":
            kernels.setdefault(e.kernel, []).append(e)
    together: nx.Graph[str] = nx.Graph()
    for name, members in kernels.items():
        together.add_node(name, weight=sum(e.workers for e in members))
    for a, b in combinations(kernels, 2):
        pairs = [(x.name, y.name) for x in kernels[a] for y in kernels[b]]
        if not all(x in table.ended[y] or y in table.ended[x] for x, y in pairs):
            together.add_edge(a, b)
    return int(nx.max_weight_clique(together)[1]) if kernels else 0


def _takes_an_sm(table: Table, e: Executor) -> bool:
    if e.engine.sm != "within":
        return e.engine.sm == "always"
    ops = [op for loop in e.loops for op in walk(loop.body)]
    if any(isinstance(op, Await) and table.lowered.flag(op.flags).style != "doorbell" for op in ops):
        return True
    # Where all workers begin when it has ended, there is room.
    workers = [other.name for other in table.lowered.executors if other.engine.sm == "worker"]
    if all(e.name in table.ended[name] for name in workers):
        return False
    # Whether some of what it writes lies on its own rank.
    writes = ((r, r.op) for r in table.rows if r.executor is e and isinstance(r.op, Write))
    return any(possible([*r.taken, r(op.rank) == r.values["rank"]]) for r, op in writes)
