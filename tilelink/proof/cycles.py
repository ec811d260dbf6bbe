"""No executor waits, by way of others, for itself.

One worker for each executor is the hardest case: it takes all tiles one after the other. So the order in which an executor does
things are edges, as are those from a signal to its flag and from a flag to whoever awaits it; an await ends when all signals of
its flag have been made. A cycle is a deadlock. Executors that do not wait for one another in a cycle on any ranks have none among
their tiles; nor has an executor in which, on all ranks, each signal comes at an earlier position than the awaits of its flag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

import networkx as nx
import numpy as np

from tilelink.ir.lowered import Await, Executor, Signal
from tilelink.proof.cells import TooMany
from tilelink.proof.counts import ranks_of
from tilelink.proof.coverage import Found
from tilelink.proof.table import Array, Row, Table, positions

MOST = 20_000_000
"""Awaits and signals that may be looked at one by one."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Awaits and signals of an executor, in order: `rank`, `chain` (one after the other within each), the node of the flag that
    each is about, and whether it is an await; `row`: of the table; `position`: a number that grows within each chain, and means
    the same on all ranks."""

    rank: Array
    position: Array
    chain: Array
    flag: Array
    waits: Array
    row: Array


def stuck(table: Table) -> Iterator[Found]:
    """
    Raises:
        TooMany: there are more awaits and signals than can be looked at.
    """
    for group in _groups(table):
        graph = _Graph(table)
        chains = [(e, *graph.chains(e)) for e in group]
        if len(chains) == 1 and len(chains[0]) == 2 and _ahead(chains[0][1]):
            continue
        for executor, *steps in chains:
            graph.add(executor, steps)
        rows = [table.rows[k] for k in graph.left()]
        if rows:
            first = next((r for r in rows if isinstance(r.op, Await)), rows[0])
            paths = list(dict.fromkeys(r.loop.path for r in rows))
            where = f" ({' → '.join(f'`{p}`' for p in paths)})" if len(paths) > 1 else ""
            others = tuple(r for r in rows if r is not first)
            yield Found(f"`{first.loop.path}` waits in a circle for itself{where}", "", (first, *others))


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


def _ahead(steps: Steps) -> bool:
    """Whether on all ranks every signal of a flag comes at an earlier position than every await of it."""
    known = steps.flag >= 0
    flags, at = np.unique(steps.flag[known], return_inverse=True)
    signals, awaits = np.full(len(flags), -1, dtype=np.int64), np.full(len(flags), np.iinfo(np.int64).max)
    told, waits = known & ~steps.waits, known & steps.waits
    np.maximum.at(signals, at[~steps.waits[known]], steps.position[told])
    np.minimum.at(awaits, at[steps.waits[known]], steps.position[waits])
    return bool((signals < awaits).all())


@dataclass(slots=True)
class _Graph:
    """Nodes: each flag of each rank; behind them the end of each executor on each rank; behind these each step."""

    table: Table
    base: dict[str, int] = field(default_factory=dict[str, int])
    width: dict[str, int] = field(default_factory=dict[str, int])
    nodes: int = 0
    source: list[Array] = field(default_factory=list[Array])
    target: list[Array] = field(default_factory=list[Array])
    rows: list[Array] = field(default_factory=list[Array])
    """Of each step in turn, its row."""
    steps: int = 0

    def __post_init__(self) -> None:
        ranks = self.table.ranks
        for f in self.table.lowered.flags:
            count = np.broadcast_to(self.table.each(f.count), (ranks,))
            self._name(f.name, int(count.max(initial=0)))
        for e in self.table.lowered.executors:
            self._name(_end(e.name), 1)
        self.steps = self.nodes

    def _name(self, name: str, width: int) -> None:
        self.base[name], self.width[name] = self.nodes, width
        self.nodes += width * self.table.ranks

    def add(self, executor: Executor, chains: Sequence[Steps]) -> None:
        ranks = np.arange(self.table.ranks)
        ends = self.base[_end(executor.name)] + ranks
        for before in executor.after:
            self._edge(self.base[_end(before)] + ranks, ends)
        for steps in chains:
            nodes = self.nodes + np.arange(len(steps.flag))
            self.nodes += len(nodes)
            self.rows.append(steps.row)
            known = steps.flag >= 0
            self._edge(steps.flag[known & steps.waits], nodes[known & steps.waits])
            self._edge(nodes[known & ~steps.waits], steps.flag[known & ~steps.waits])
            same = (steps.chain[1:] == steps.chain[:-1]) & (steps.rank[1:] == steps.rank[:-1])
            self._edge(nodes[:-1][same], nodes[1:][same])
            first, last = nodes[np.append(True, ~same)[: len(nodes)]], nodes[np.append(~same, True)[: len(nodes)]]
            self._edge(last, ends[steps.rank[last - nodes[0]]] if len(nodes) else last)
            for before in executor.after:
                self._edge(self.base[_end(before)] + steps.rank[first - nodes[0]] if len(nodes) else first, first)

    def _edge(self, source: Array, target: Array) -> None:
        self.source.append(source)
        self.target.append(target)

    # ---------------------------------------------------------------------------------------------------------- in order
    def chains(self, executor: Executor) -> Iterator[Steps]:
        """All steps of an executor, those of a rank and chain one after the other."""
        keys: list[Array] = []
        flags: list[Array] = []
        depth = 2 * (1 + max((len(r.around) for r in self.table.rows if r.executor is executor), default=0))
        for number, loop in enumerate(executor.loops):
            at = positions(self.table, loop) if loop.axes and not loop.by_data else None
            for k, row in enumerate(self.table.rows):
                # What begins a call `back` calls ago has ended long before.
                if row.loop is loop and isinstance(row.op, Await | Signal) and not getattr(row.op, "back", 0):
                    for flag, taken in self._flags(row):
                        key, node = _keyed(row, at, flag, taken, number, depth)
                        keys.append(np.stack([*key, np.full(len(node), k)]))
                        flags.append(node)
        if not sum(len(f) for f in flags):
            return
        every, flag = np.concatenate(keys, axis=1), np.concatenate(flags)
        if len(flag) > MOST:
            raise TooMany
        rank, t = every[0], every[2]
        chain = t % executor.workers if executor.engine == "stream" else np.zeros_like(t)
        position = np.zeros_like(t)
        for key in every[1:-1]:
            position = position * (int(key.max(initial=0)) + 1) + key
        order = np.lexsort((position, chain, rank))
        row = every[-1][order]
        waits = np.array([isinstance(r.op, Await) for r in self.table.rows])[row]
        yield Steps(rank[order], position[order], chain[order], flag[order], waits, row)

    def _flags(self, row: Row) -> Iterator[tuple[Array, Array]]:
        """The node of the flag of each execution, and where it is executed."""
        op = row.op
        assert isinstance(op, Await | Signal)
        index, width = row(op.index), self.width[op.flags]
        ranks = [row.values["rank"]] if isinstance(op, Await) else ranks_of(self.table, row)
        for rank in ranks:
            inside = (index >= 0) & (index < width)
            taken = reduce(np.logical_and, row.taken, np.ones((1,) * row.values["rank"].ndim, dtype=np.bool_))
            yield np.where(inside, self.base[op.flags] + rank * width + index, -1), taken

    # ------------------------------------------------------------------------------------------------------------ cycles
    def left(self) -> list[int]:
        """Rows of the table that have steps on a cycle, or behind one and before one."""
        source = np.concatenate(self.source) if self.source else np.zeros(0, dtype=np.int64)
        target = np.concatenate(self.target) if self.target else np.zeros(0, dtype=np.int64)
        alive = _without_ends(source, target, self.nodes)
        alive &= _without_ends(target, source, self.nodes)
        rows = np.concatenate(self.rows) if self.rows else np.zeros(0, dtype=np.int64)
        return sorted({int(k) for k in rows[alive[self.steps :]]})


def _end(executor: str) -> str:
    return f"end of {executor}"


def _keyed(row: Row, at: Array | None, flag: Array, taken: Array, number: int, depth: int) -> tuple[list[Array], Array]:
    """Of each execution: rank, loop, position and what says where it stands in its tile; and the flag's node."""
    dims = row.values["rank"].ndim
    full = np.broadcast_shapes(
        flag.shape, taken.shape, *(v.shape for v in row.values.values() if isinstance(v, np.ndarray))
    )
    where = np.broadcast_to(taken, full)
    t = np.zeros((1,) * dims, dtype=np.int64) if at is None else at.reshape(at.shape + (1,) * (dims - at.ndim))
    # Tiles whose indices matter to nobody are told apart by their position.
    full = np.broadcast_shapes(full, t.shape)
    where = np.broadcast_to(where, full) & (t >= 0)
    picked = np.nonzero(where)
    keys = [picked[0], np.full(len(picked[0]), number), np.broadcast_to(t, full)[picked]]
    for level in range(depth // 2):
        place, axis = row.around[level] if level < len(row.around) else (row.place, None)
        keys.append(np.full(len(picked[0]), place))
        keys.append(picked[axis] if axis is not None else np.zeros(len(picked[0]), dtype=np.int64))
    return keys, np.broadcast_to(flag, full)[picked]


def _without_ends(source: Array, target: Array, nodes: int) -> Array:
    """Nodes that remain when those without a predecessor are taken away, again and again."""
    order = np.argsort(source, kind="stable")
    behind, first = target[order], np.searchsorted(source[order], np.arange(nodes + 1))
    waiting = np.bincount(target, minlength=nodes)
    ready = list(np.flatnonzero(waiting == 0))
    counts, starts, following = waiting.tolist(), first.tolist(), behind.tolist()
    alive = np.ones(nodes, dtype=np.bool_)
    while ready:
        node = ready.pop()
        alive[node] = False
        for other in following[starts[node] : starts[node + 1]]:
            counts[other] -= 1
            if counts[other] == 0:
                ready.append(other)
    return alive
