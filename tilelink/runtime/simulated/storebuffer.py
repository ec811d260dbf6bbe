"""Stores that arrive late: what a program has stored may be seen by others in any order, until something orders it.

A store becomes visible when its program releases it, ends, stores to or loads from the same bytes, or by chance. A
release covers what a race detector would say it covers: not what other threads store without a barrier before it, nor
bulk stores that nobody has waited for. So a missing release, barrier or fence gives wrong numbers as well as a race.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.observing import Span

PENDING = 16
"""Stores of one program that may be under way."""
CHANCE = 0.05
"""Of each store: that another one arrives now."""

Stage = Literal["bulk", "threads", "covered"]


@dataclass(slots=True, eq=False)
class Pending:
    """`stage`: what knows of the store: only its proxy, its threads, or the thread that signals."""

    low: int
    high: int
    stage: Stage
    write: Callable[[], None]


class StoreBuffer:
    """Of all programs of a run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pending: dict[Agent, list[Pending]] = {}

    def put(self, agent: Agent, span: Span, stage: Stage, write: Callable[[], None]) -> None:
        if agent.launch is None:
            write()
            return
        low, high = span.bounds
        self.settle(agent, low, high)
        mine = self._pending.setdefault(agent, [])
        mine.append(Pending(low, high, stage, write))
        if len(mine) > PENDING or self._random.random() < CHANCE:
            mine.pop(int(self._random.random() * len(mine))).write()

    def settle(self, agent: Agent, low: int, high: int) -> None:
        """A program sees its own stores, and stores to the same bytes stay in order."""
        self._apply(agent, lambda p: p.low < high and low < p.high)

    def barrier(self, agent: Agent) -> None:
        self._advance(agent, "threads", "covered")

    def fence(self, agent: Agent, meaning: str) -> None:
        if meaning == "bulk_store_wait":
            self._advance(agent, "bulk", "threads")
        elif meaning == "system_fence":
            self._apply(agent, lambda p: p.stage != "bulk")

    def release(self, agent: Agent) -> None:
        self._apply(agent, lambda p: p.stage == "covered")

    def arrive(self, agent: Agent) -> None:
        """Time passes: all that the program has stored is seen in the end."""
        self._apply(agent, lambda p: True)

    def end(self, agent: Agent) -> None:
        self.arrive(agent)
        self._pending.pop(agent, None)

    def _advance(self, agent: Agent, old: Stage, new: Stage) -> None:
        for pending in self._pending.get(agent, ()):
            if pending.stage == old:
                pending.stage = new

    def _apply(self, agent: Agent, which: Callable[[Pending], bool]) -> None:
        mine = self._pending.get(agent, [])
        now = [p for p in mine if which(p)]
        if now:
            mine[:] = [p for p in mine if not which(p)]
            self._random.shuffle(now)
            for pending in now:
                pending.write()
