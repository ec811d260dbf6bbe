"""How long a call takes on a machine: the table of its lowered plan, played through in time.

A tile begins when its worker has ended the one before and what it awaits is there; how long it takes then, its reads, writes and
products say. A flag is complete when its last signal has come. Times only grow as flags are found to be later, so executors are
gone through until nothing changes: no order among them has to be known, and a pass is a few operations on whole arrays.

An executor's workers share memory and links in equal parts. Where several loops together ask for more than a link or the memory
gives, each is slowed down by as much (`tilelink.cost.sharing`), and the call is played through again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilelink.cost.machine import H200, Machine
from tilelink.cost.prediction import Played, Prediction
from tilelink.cost.rows import Array
from tilelink.cost.sharing import Demand, slower
from tilelink.cost.turns import take_turns
from tilelink.cost.work import Event, Work
from tilelink.ir.lowered import Await, Executor, Lowered, Signal
from tilelink.proof.table import Table

PASSES = 512
"""After so many, waits go round in a circle, or nearly: what is known by then is a lower bound."""
SLOW = 0.01
"""What loops slow one another down by less does not count."""
SHARINGS = 3
"""So often is what loops ask of links and memory looked at again."""


def predict(lowered: Lowered, machine: Machine = H200) -> Prediction:
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

    def run(self) -> Prediction:
        works = [
            (e, [Work(self.table, e, loop, self.machine) for loop in e.loops]) for e in self.table.lowered.executors
        ]
        played = self._play(works)
        demands = [*map(Demand.of, played)] if self.table.ranks > 1 else []
        slowed: list[Any] = [1.0] * len(demands)
        for _ in range(SHARINGS):
            before, slowed = slowed, [*slower(demands, played, self.machine)]
            if all(np.allclose(by, was, atol=SLOW) for by, was in zip(slowed, before, strict=True)):
                break
            for loop, (links, memory) in zip(played, slowed, strict=True):
                loop.work.share(links, memory)
            played = self._play(works)
        return Prediction(self.begins, self.ends, tuple(played), self.flags)

    def _play(self, works: Sequence[tuple[Executor, Sequence[Work]]]) -> list[Played]:
        for flags in self.table.lowered.flags:
            shape = (self.table.ranks, max(self.table.width(flags.name), 1))
            self.flags[flags.name] = np.full(shape, -math.inf)
        played: list[Played] = []
        for _ in range(PASSES):
            before = [found.copy() for found in self.flags.values()]
            played = [loop for executor, loops in works for loop in self._executor(executor, loops)]
            if all(np.array_equal(a, b) for a, b in zip(before, self.flags.values(), strict=True)):
                break
        return played

    def _executor(self, executor: Executor, loops: Sequence[Work]) -> Iterator[Played]:
        begin = np.zeros(self.table.ranks)
        for name in executor.after:
            begin = np.maximum(begin, self.ends[name])
        if executor.engine.launched and not (executor.engine.by == "host" and self.table.lowered.entry):
            begin = begin + self.machine.launch
        self.begins[executor.name] = begin
        free = np.repeat(begin[:, None], loops[0].workers if loops else 1, axis=1)
        for work in loops:
            found = [(event, self._awaited(event)) for event in work.awaits]
            # Who is through first takes the next tile first, as far as tiles are dealt out at all.
            who = np.argsort(free, axis=1, kind="stable")
            free = np.take_along_axis(free, who, axis=1)
            begins, ends, through = take_turns(free, work.ready([times for _, times in found]), work.us)
            yield Played(work, free.min(axis=1), through.max(axis=1), who, begins, ends)
            np.put_along_axis(free, who, through, axis=1)
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
        flags = self.flags[op.flags]
        for peer in self._heard(op, event):
            times, to, index = np.broadcast_arrays(
                np.where(event.there, begins + event.late + self.machine.latency(rank, peer), -math.inf),
                peer,
                event.index,
            )
            inside = (index >= 0) & (index < flags.shape[1]) & (times > -math.inf)
            np.maximum.at(flags, (to[inside], index[inside]), times[inside])

    def _heard(self, op: Signal, event: Event) -> Iterator[Array]:
        """The ranks that a signal goes to."""
        if op.rank is not None:
            yield event.row(op.rank)
            return
        topology, rank = self.table.lowered.topology, event.row.values["rank"]
        lines = np.array([topology.line(r, op.along) for r in range(topology.ranks)])
        yield from (line.reshape(rank.shape) for line in lines.T)
