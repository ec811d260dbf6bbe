"""No executor waits, by way of others, for itself.

One worker for each executor is the hardest case: it takes all tiles one after the other. So the order in which an executor does
things are edges, as are those from a signal to its flag and from a flag to whoever awaits it; an await ends when all signals of
its flag have been made. A cycle is a deadlock. Executors that do not wait for one another in a cycle on any ranks have none among
their tiles; nor have those that would not even if each position began on all ranks at once, and ended there at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
import numpy as np

from tilelink.errors import Note
from tilelink.ir.lowered import Await, Executor, Signal
from tilelink.proof.chains import Chains, positions, steps_in
from tilelink.proof.counts import Sent
from tilelink.proof.findings import Found, Moment
from tilelink.proof.runs import Runs, depends, possible, together
from tilelink.proof.table import Array, Row, Table


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
            pairs = [*cycle[first:], *cycle[:first]]
            moments = [
                chains.moment(table, s, late=late)
                for pair in pairs
                for s, late in zip(pair, (False, True), strict=True)
            ]
            rows = tuple(m.row for m in moments)
            notes = tuple(_note(table, m) for m in moments)
            what = f"`{table.path(rows[0])}` waits in a circle for itself"
            yield Found(what, "", rows[:1], tuple(moments), notes=notes)


def _note(table: Table, moment: Moment) -> Note:
    """Where a step of the cycle stands in its order."""
    step, verb = moment.instant(table), "would notify" if moment.late else "waits"
    positions = table.at(moment.row.loop) if step.tile and not moment.row.loop.by_data else None
    where = f" at tile {step.tile}" if step.tile else ""
    if positions is not None:
        t = int(positions[tuple(i if n != 1 else 0 for i, n in zip(moment.at, positions.shape, strict=False))])
        where += f", the {_nth(t + 1)} of its order"
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
        self.rows = [(numbers[id(r.executor)], r) for r in table.rows if steps_in(r) and id(r.executor) in numbers]

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
        t = positions(self.table, Runs.of(self.table, row))
        return Sent.of(self.table, row), np.where(t < 0, -1, t + self.begin[id(row.loop)])
