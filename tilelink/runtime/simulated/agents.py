"""Who runs: one agent per rank's host program, per stream at work, and per worker of a launched kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from greenlet import greenlet


@dataclass(frozen=True, slots=True)
class Argument:
    """Where a tensor argument of a kernel lies, so that an address can be named."""

    name: str
    start: int
    end: int
    itemsize: int


@dataclass(slots=True, eq=False)
class Launch:
    """One launch of a kernel: what its workers have in common."""

    kernel: str
    file: str
    stream: int
    workers: int
    arguments: tuple[Argument, ...]
    running: int = 0

    def name_of(self, address: int) -> str | None:
        """`words[3]` for an address inside an argument; the smallest argument that holds it names it."""
        holding = [a for a in self.arguments if a.start <= address < a.end]
        if not holding:
            return None
        best = min(holding, key=lambda a: a.end - a.start)
        return f"{best.name}[{(address - best.start) // best.itemsize}]"


@dataclass(slots=True, eq=False)
class Wait:
    """What an agent waits for. `key` wakes it; `text` says it in the report, when it is needed."""

    key: Hashable
    text: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Target:
    """What the wait function that is running waits for: `text` is the condition in words."""

    address: int
    condition: Callable[[int], bool]
    text: str


@dataclass(slots=True, eq=False)
class Agent:
    """A coroutine. `stream`: None for a host. `worker`, `launch`: of a kernel's worker only."""

    rank: int
    stream: int | None = None
    worker: int | None = None
    launch: Launch | None = None
    clock: float = 0.0
    coroutine: greenlet | None = None
    wait: Wait | None = None
    polled: tuple[int, int] | None = None
    """Address and value of the last poll, if nothing was accessed since."""
    target: Target | None = None

    @property
    def name(self) -> str:
        if self.launch is not None:
            return f"worker {self.worker} of {self.launch.kernel}"
        if self.stream is None:
            return "host"
        return "main stream" if self.stream == 0 else f"side stream {self.stream - 1}"

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.name}"
