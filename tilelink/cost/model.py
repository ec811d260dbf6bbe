"""How long a call takes on a machine: the table of its lowered plan, played through in time.

A tile begins when its worker has ended the one before and what it awaits is there; how long it takes then, its reads, writes and
products say. A flag is complete when its last signal has come. Times only grow as flags are found to be later, so executors are
gone through until nothing changes: no order among them has to be known.

Memory and links are shared in equal parts by an executor's workers, and with nobody else; caches are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilelink.cost.machine import H200, Machine
from tilelink.cost.turns import take_turns
from tilelink.cost.work import Event, Work
from tilelink.ir.lowered import Await, Executor, Lowered, Signal
from tilelink.proof.table import Table

Array: TypeAlias = Any
PASSES = 512
"""After so many, waits go round in a circle, or nearly: what is known by then is a lower bound."""


@dataclass(frozen=True, slots=True)
class Call:
    """`begins`, `ends`: of each executor, by name, on each rank, in microseconds from the beginning of the call."""

    begins: Mapping[str, Array]
    ends: Mapping[str, Array]

    @property
    def us(self) -> float:
        """Until the last rank is through."""
        return max((float(end.max(initial=0.0)) for end in self.ends.values()), default=0.0)


def call(lowered: Lowered, machine: Machine = H200) -> Call:
    """What a call takes, all ranks beginning it at once."""
    return Clock(Table.of(lowered), machine).run()


@dataclass(slots=True)
class Clock:
    """`flags`: by name, (rank, flag), when each is complete, as far as is known by now."""

    table: Table
    machine: Machine
    flags: dict[str, Array] = field(default_factory=dict[str, Array])
    begins: dict[str, Array] = field(default_factory=dict[str, Array])
    ends: dict[str, Array] = field(default_factory=dict[str, Array])

    def run(self) -> Call:
        lowered, table = self.table.lowered, self.table
        for flags in lowered.flags:
            self.flags[flags.name] = np.full((table.ranks, max(table.width(flags.name), 1)), -math.inf)
        works = [(e, [Work(table, e, loop, self.machine) for loop in e.loops]) for e in lowered.executors]
        for _ in range(PASSES):
            before = [found.copy() for found in self.flags.values()]
            for executor, loops in works:
                self._executor(executor, loops)
            if all(np.array_equal(a, b) for a, b in zip(before, self.flags.values(), strict=True)):
                break
        return Call(self.begins, self.ends)

    def _executor(self, executor: Executor, loops: Sequence[Work]) -> None:
        begin = np.zeros(self.table.ranks)
        for name in executor.after:
            begin = np.maximum(begin, self.ends[name])
        if executor.engine.launched:
            begin = begin + self.machine.launch
        self.begins[executor.name] = begin
        free = np.repeat(begin[:, None], loops[0].workers if loops else 1, axis=1)
        for work in loops:
            found = [(event, self._awaited(event)) for event in work.awaits]
            # Who is through first takes the next tile first, as far as tiles are dealt out at all.
            begins, _, free = take_turns(np.sort(free, axis=1), work.ready([times for _, times in found]), work.us)
            for event in work.signals:
                self._told(event, work, work.by_tile(begins), found)
        self.ends[executor.name] = free.max(axis=1)

    def _awaited(self, event: Event) -> Array:
        """Since when the tile could have begun for all that this await waits for."""
        op, rank = event.row.op, event.row.values["rank"]
        assert isinstance(op, Await)
        flags = self.flags[op.flags]
        there = flags[rank, np.clip(event.index, 0, flags.shape[1] - 1)]
        return np.where(event.there, there - event.late, -math.inf)

    def _told(self, event: Event, work: Work, begins: Array, awaited: Sequence[tuple[Event, Array]]) -> None:
        op, rank = event.row.op, event.row.values["rank"]
        assert isinstance(op, Signal)
        for other, times in awaited:
            latest = work.latest(other, event, times)
            if latest is not None:
                begins = np.maximum(begins, latest)
        flags, topology = self.flags[op.flags], self.table.lowered.topology
        if op.rank is not None:
            peers = [event.row(op.rank)]
        else:
            lines = np.array([topology.line(r, op.along) for r in range(topology.ranks)])
            peers = [line.reshape(rank.shape) for line in lines.T]
        for peer in peers:
            flight = np.where(peer == rank, self.machine.flight(False), self.machine.flight(True))
            times, to, index = np.broadcast_arrays(
                np.where(event.there, begins + event.late + flight, -math.inf), peer, event.index
            )
            inside = (index >= 0) & (index < flags.shape[1]) & (times > -math.inf)
            np.maximum.at(flags, (to[inside], index[inside]), times[inside])
