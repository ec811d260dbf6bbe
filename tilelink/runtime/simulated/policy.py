"""Whose turn it is: by chance, against one rank, by priorities, or with few interruptions at chosen points.

A policy is a value with a text, `random-7`, and decides a whole run: the same policy gives the same schedule.
"""

from __future__ import annotations

import random
import re
from collections import deque
from dataclasses import dataclass
from typing import Literal, Protocol

from tilelink.errors import TilelinkError
from tilelink.runtime.simulated.agents import Agent

Kind = Literal["random", "straggler", "priorities", "preemptions"]
INTERRUPT_CHANCE = 0.1
DEMOTION_CHANCE = 0.02
_TEXT = re.compile(r"(random|priorities)-(\d+)|straggler-(\d+)-(\d+)|preemptions-(|\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Policy:
    """`random`: anybody. `straggler`: the rank `rank` runs only while nobody else can, all others by chance.

    `priorities`: every agent has a random priority, the highest runs, and now and then it becomes the lowest: the one
    that everybody waits for may come last. `preemptions`: each agent runs until it has to wait, except that it stops at
    the points `at`, counted over the run, until nobody else can go on.
    """

    kind: Kind = "random"
    seed: int = 0
    rank: int = 0
    at: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind == "preemptions":
            return f"preemptions-{'.'.join(map(str, self.at))}"
        return f"straggler-{self.rank}-{self.seed}" if self.kind == "straggler" else f"{self.kind}-{self.seed}"

    @staticmethod
    def parse(text: str) -> Policy:
        """
        Raises:
            TilelinkError: TL508.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise TilelinkError(
                "TL508",
                f"`{text}` is no policy of the simulated scheduler",
                why="a policy is random-SEED, straggler-RANK-SEED, priorities-SEED or preemptions-POINT.POINT…",
                hint="write for example priorities-7, or straggler-2-7 for a slow rank 2",
            )
        kind, seed, rank, late, points = found.groups()
        if kind is not None:
            return Policy("priorities" if kind == "priorities" else "random", int(seed))
        if rank is not None:
            return Policy("straggler", int(late), int(rank))
        return Policy("preemptions", at=tuple(int(p) for p in points.split(".") if p))

    def turns(self) -> Turns:
        if self.kind == "priorities":
            return Priorities(self.seed)
        if self.kind == "preemptions":
            return Preemptions(self.at)
        return Chance(self.seed, self.rank if self.kind == "straggler" else None)


class Turns(Protocol):
    """Those who can run, and who of them does."""

    def __len__(self) -> int: ...

    def add(self, agent: Agent) -> None:
        """It can run: it is new, or what it waited for has come."""

    def next(self) -> Agent:
        """Take the one whose turn it is."""
        ...

    def yields(self, agent: Agent) -> bool:
        """At a signal, a wait or a copy: whether the running agent goes back to the others; it is added if so."""
        ...

    def interrupts(self) -> bool:
        """At an ordinary access: whether to ask `yields`."""
        ...


class Chance:
    """Anybody, with equal chance; a straggler when there is nobody else."""

    def __init__(self, seed: int, straggler: int | None) -> None:
        self._random = random.Random(seed)
        self._straggler = straggler
        self._ready: list[Agent] = []
        self._slow: list[Agent] = []

    def __len__(self) -> int:
        return len(self._ready) + len(self._slow)

    def add(self, agent: Agent) -> None:
        (self._slow if agent.rank == self._straggler else self._ready).append(agent)

    def next(self) -> Agent:
        pool = self._ready or self._slow
        at = int(self._random.random() * len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        return pool.pop()

    def yields(self, agent: Agent) -> bool:
        self.add(agent)
        return True

    def interrupts(self) -> bool:
        return self._random.random() < INTERRUPT_CHANCE


class Priorities:
    """The highest of random priorities, which now and then becomes the lowest."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._priority: dict[tuple[int, int | None, int | None], float] = {}
        self._ready: list[Agent] = []
        self._lowest = 0.0

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, agent: Agent) -> None:
        self._ready.append(agent)

    def next(self) -> Agent:
        best = max(self._ready, key=self._of)
        self._ready.remove(best)
        return best

    def yields(self, agent: Agent) -> bool:
        if self._random.random() < DEMOTION_CHANCE:
            self._lowest -= 1
            self._priority[_key(agent)] = self._lowest
        self._ready.append(agent)
        return True

    def interrupts(self) -> bool:
        return self._random.random() < INTERRUPT_CHANCE

    def _of(self, agent: Agent) -> float:
        return self._priority.setdefault(_key(agent), self._random.random())


class Preemptions:
    """In order of arrival, each until it has to wait; at the points `at` it steps back behind all others.

    `points`: how many there were so far. Ordinary accesses are none: what is not ordered there, the race detector says.
    """

    def __init__(self, at: tuple[int, ...]) -> None:
        self.points = 0
        self._at = frozenset(at)
        self._ready: deque[Agent] = deque()
        self._back: list[Agent] = []

    def __str__(self) -> str:
        return str(Policy("preemptions", at=tuple(sorted(self._at))))

    def __len__(self) -> int:
        return len(self._ready) + len(self._back)

    def add(self, agent: Agent) -> None:
        self._ready.append(agent)

    def next(self) -> Agent:
        return self._ready.popleft() if self._ready else self._back.pop(0)

    def yields(self, agent: Agent) -> bool:
        """Where nobody else can run there is no point."""
        self.points += 1
        if self.points - 1 not in self._at:
            return False
        self._back.append(agent)
        return True

    def interrupts(self) -> bool:
        return False


def _key(agent: Agent) -> tuple[int, int | None, int | None]:
    return (agent.rank, agent.stream, agent.worker)
