"""Vector clocks: what each strand of a run has for certain seen of every other.

A strand is what runs in order: a host, a stream, and three in every program: all its threads, the one thread that does
scalar atomics, and the bulk copies (TMA), which are a memory client of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilelink.runtime.simulated.agents import Agent


@dataclass(frozen=True, slots=True)
class Strands:
    """The rows of one agent; the same one three times where it is no program."""

    threads: int
    leader: int
    bulk: int

    @property
    def program(self) -> bool:
        return self.threads != self.bulk

    def called(self, row: int) -> str:
        """What to call a strand in a report."""
        return {self.threads: "threads", self.leader: "leader"}.get(row, "bulk copies") if self.program else ""


class Clocks:
    """`rows[a, b]`: strand a knows everything that strand b did while `rows[b, b]` was at most that."""

    def __init__(self) -> None:
        self.rows = np.zeros((64, 64), dtype=np.int32)
        self._count = 0
        self._strands: dict[tuple[int, int | None, int | None], Strands] = {}

    def strands(self, agent: Agent) -> Strands:
        """Workers of the same number on one stream are one: their launches are in order."""
        key = (agent.rank, agent.stream, agent.worker)
        found = self._strands.get(key)
        if found is None:
            first = self._add()
            more = agent.worker is not None
            found = Strands(first, self._add() if more else first, self._add() if more else first)
            self._strands[key] = found
        return found

    def snapshot(self, *rows: int) -> np.ndarray:
        """What these strands know together. Whatever they do afterwards is not in it."""
        made = self.rows[rows[0]].copy()
        for row in rows[1:]:
            np.maximum(made, self.rows[row], out=made)
        for row in rows:
            self.rows[row, row] += 1
        return made

    def learn(self, row: int, known: np.ndarray) -> None:
        mine = self.rows[row, : len(known)]
        np.maximum(mine, known, out=mine)

    def tell(self, source: int, target: int) -> None:
        """`target` goes on after everything that `source` has done."""
        self.learn(target, self.rows[source])
        self.rows[source, source] += 1

    def _add(self) -> int:
        if self._count == len(self.rows):
            grown = np.zeros((2 * self._count, 2 * self._count), dtype=np.int32)
            grown[: self._count, : self._count] = self.rows
            self.rows = grown
        row = self._count
        self._count += 1
        self.rows[row, row] = 1
        return row


def union(known: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    """Both together; neither is changed."""
    if known is None:
        return more
    if len(known) > len(more):
        known, more = more, known
    made = more.copy()
    np.maximum(made[: len(known)], known, out=made[: len(known)])
    return made
