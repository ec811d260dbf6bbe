"""No executor waits, by way of others, for itself.

One worker for each executor is the hardest case: it takes all tiles one after the other. So the order in which an executor does
things are edges, as are those from a signal to its flag and from a flag to whoever awaits it; an await ends when all signals of
its flag have been made. A cycle is a deadlock. Executors that do not wait for one another in a cycle on any ranks have none among
their tiles; nor have those that would not even if each step were taken on all ranks at once.

And workers stay until what they wait for has come, so all that run side by side have to find SMs, and streams one for what they
do by them: copies within the GPU, pulls, waiting for a flag that is no doorbell, functions of libraries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import networkx as nx
import numpy as np

from tilelink.errors import Note
from tilelink.ir.lowered import Await, Executor, Signal, Tiles, Write, walk
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
        if _abreast(table, group):
            continue
        steps = Steps.of(table, group)
        cycle = steps.cycle()
        if cycle:
            first = next((k for k, (wait, _) in enumerate(cycle) if steps.waits[wait]), 0)
            moments: list[Moment] = []
            for wait, signal in (*cycle[first:], *cycle[:first]):
                moments += [steps.moment(table, wait), steps.moment(table, signal, late=True)]
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


def _rows(table: Table, group: Sequence[Executor]) -> Iterator[tuple[int, Row]]:
    """The awaits and signals of some executors, each behind the number of its own."""
    numbers = {id(e): k for k, e in enumerate(group)}
    return ((numbers[id(r.executor)], r) for r in table.rows if r.tells and id(r.executor) in numbers)


# ----------------------------------------------------------------------------------------------- all ranks side by side
def _abreast(table: Table, group: Sequence[Executor]) -> bool:
    """Whether executors come to their ends even if each takes a step on all ranks at once, when all that is awaited there on any
    rank is done. A step is a place in the text, at a position; what a loop in a tile awaits, it awaits where it begins."""
    rows, begin, ends = [*_rows(table, group)], dict[int, int](), list[int]()
    for e in group:
        ends.append(0)
        for loop in e.loops:
            begin[id(loop)] = ends[-1]
            ends[-1] += max(int(np.max(table.each(loop.total), initial=0)), 0) if _ordered(loop) else 1
    places = 1 + max((r.place for _, r in rows), default=0)
    told: dict[tuple[int, str], Array] = {}
    """By executor and flags, rank and flag, the last step at which it signals."""
    for k, row in rows:
        if isinstance(row.op, Signal):
            sent, t = Sent.of(table, row), _positions(table, row)
            last = told.setdefault((k, row.op.flags), np.full(table.ranks * sent.width, -1, dtype=np.int32))
            taken, key = together(np.logical_and, [*sent.there, t >= 0]), sent.key
            step = np.where(taken, (t + begin[id(row.loop)]) * places + row.place, -1)
            step = step.max(axis=tuple(depends(step) - depends(key)), keepdims=True, initial=-1)
            key, step = np.broadcast_arrays(key, step)
            np.maximum.at(last, key[step >= 0], step[step >= 0])
    needs: list[tuple[int, int, int, Array]] = []
    """An executor, the place at which it waits, another, and by position the step of that which is done by then."""
    for k, e in enumerate(group):
        ended = (other for other, o in enumerate(group) if o.name in table.ended[e.name])
        needs += [(k, 0, other, np.full(ends[k], ends[other] * places - 1, np.int32)) for other in ended]
    for (k, row), ((other, flags), last) in product(rows, told.items()):
        if isinstance(row.op, Await) and row.op.flags == flags:
            sent, t = Sent.of(table, row), _positions(table, row)
            place, taken, to = row.around[0][0] if row.around else row.place, [*sent.there, t >= 0], last[sent.key]
            t = t + begin[id(row.loop)]
            if other != k:
                need = np.full(ends[k], -1, dtype=np.int32)
                to, t, found = np.broadcast_arrays(to, t, together(np.logical_and, taken))
                np.maximum.at(need, t[found], to[found])
                needs.append((k, place, other, np.maximum.accumulate(need)))
            elif possible([*taken, to >= t * places + place]):
                return False
    done, moving = [0] * len(group), True
    while moving:
        before = [*done]
        for k, end in enumerate(ends):
            stops = (int(np.searchsorted(n, done[o])) * places + place for who, place, o, n in needs if who == k)
            done[k] = min([end * places, *stops])
        moving = done != before
    return done == [end * places for end in ends]


# ------------------------------------------------------------------------------------------- awaits and signals one by one
@dataclass(frozen=True, slots=True)
class Steps:
    """The awaits and signals of executors with one worker each, chain after chain: what a rank's executor, or one of its streams,
    does in turn.

    `starts`: the first step of each chain, and one behind all; `after`: by chain, others that end before it starts; of each step
    the chain, the number of its flag among all, whether it is awaited, its row among `rows`, and the number of its execution
    there."""

    starts: list[int]
    after: list[list[int]]
    rows: list[Row]
    chain: Array
    flag: Array
    waits: Array
    row: Array
    number: Array

    @staticmethod
    def of(table: Table, group: Sequence[Executor]) -> Steps:
        """
        Raises:
            TooMany: there are more awaits and signals than can be looked at.
        """
        found = [*_rows(table, group)]
        rows, depth = [r for _, r in found], max((len(r.around) for _, r in found), default=0)
        every = np.concatenate([_keyed(table, r, n, k, depth) for n, (k, r) in enumerate(found)], axis=1)
        if every.shape[1] > MOST:
            raise TooMany
        every = every[:, np.lexsort(every[-4::-1])]
        new = (np.diff(every[:3], axis=1, prepend=-1) != 0).any(axis=0)
        starts = np.flatnonzero(new)
        chains = [(group[executor].name, rank) for executor, rank in every[:2, starts].T.tolist()]
        after = [
            [k for k, (other, there) in enumerate(chains) if there == rank and other in table.ended[name]]
            for name, rank in chains
        ]
        flag, row, number = every[-3:]
        waits = np.array([isinstance(r.op, Await) for r in rows])[row]
        return Steps([*starts.tolist(), len(new)], after, rows, np.cumsum(new) - 1, flag, waits, row, number)

    def cycle(self) -> list[tuple[int, int]]:
        """Of chains that wait in a cycle for one another, the step at which each is stuck, and the step of the next chain that it
        waits for; of none: nothing."""
        come = self._come()
        waiting: nx.DiGraph[int] = nx.DiGraph()
        for c, at in enumerate(come):
            if at == self.starts[c + 1]:
                continue
            ends = [(k, self.starts[k + 1] - 1) for k in self.after[c] if at == self.starts[c]]
            signals = np.flatnonzero((self.flag == self.flag[at]) & ~self.waits) if self.waits[at] else ()
            for k, step in sorted([*ends, *((int(self.chain[s]), int(s)) for s in signals)]):
                if step >= come[k]:
                    waiting.add_edge(c, k, steps=(at, step))
        return [waiting.edges[edge]["steps"] for edge in nx.find_cycle(waiting)] if waiting else []

    def moment(self, table: Table, step: int, *, late: bool = False) -> Moment:
        """When a step is."""
        row = self.rows[int(self.row[step])]
        at = np.unravel_index(int(self.number[step]), Sent.of(table, row).shape)
        return Moment(row, Runs.of(table, row).index([int(i) for i in at[:-1]]), late=late)

    def _come(self) -> list[int]:
        """By chain, the step that it does not get past."""
        flag, waits, come = self.flag.tolist(), self.waits.tolist(), self.starts[:-1]
        missing = Counter(self.flag[~self.waits].tolist())
        """By flag, signals that are to come."""
        held: dict[int, list[int]] = defaultdict(list)
        """By flag, and by chain that has to end, the chains that wait for it."""
        going = [*range(len(come))]
        while going:
            c = going.pop()
            first = [k for k in self.after[c] if come[k] < self.starts[k + 1]]
            if first:
                held[~first[0]].append(c)
                continue
            while come[c] < self.starts[c + 1]:
                f = flag[come[c]]
                if waits[come[c]] and missing[f]:
                    held[f].append(c)
                    break
                if not waits[come[c]]:
                    missing[f] -= 1
                    going += held.pop(f, []) if not missing[f] else []
                come[c] += 1
            else:
                going += held.pop(~c, [])
        return come


def _keyed(table: Table, row: Row, number: int, executor: int, depth: int) -> Array:
    """Of each execution: executor, rank and stream, which say the chain; the loop, the position and what says where in its tile
    it stands; the flag; the row; its number there."""
    assert isinstance(row.op, Await | Signal)
    runs, sent, flags = Runs.of(table, row), Sent.of(table, row), [f.name for f in table.lowered.flags]
    t, widest = _positions(table, row), max(map(table.width, flags))
    picked = np.nonzero(np.broadcast_to(together(np.logical_and, [*sent.there, t >= 0]), sent.shape))
    flag = flags.index(row.op.flags) * table.ranks * widest + sent.key
    loop = next(k for k, loop in enumerate(row.executor.loops) if loop is row.loop)
    keys = [executor, sent.rank, t % row.executor.workers if row.executor.engine.in_turn else 0, loop, t]
    for level in range(depth + 1):
        place, axis = row.around[level] if level < len(row.around) else (row.place, None)
        keys += [place, 0 if axis is None else runs.along(axis)[..., None]]
    each = np.arange(np.prod(sent.shape, dtype=np.int64)).reshape(sent.shape)
    return np.stack([np.broadcast_to(x, sent.shape)[picked] for x in (*keys, flag, number, each)])


def _ordered(loop: Tiles) -> bool:
    return bool(loop.axes) and not loop.by_data


def _positions(table: Table, row: Row) -> Array:
    """The position of each execution in the order of its loop, with an axis behind; of a loop without an order 0."""
    if not _ordered(row.loop):
        return np.zeros((1,) * (row.depth + 1), dtype=np.int32)
    return Runs.of(table, row).pack(deeper(table.at(row.loop), row.depth))[..., None]


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
