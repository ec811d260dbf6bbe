"""Who runs: one agent per rank's host program, per stream at work, and per worker of a launched kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from greenlet import greenlet

from tilelink.errors import Loc, whole_line
from tilelink.ir.kernel import origin
from tilelink.runtime.simulated.hosts import Host
from tilelink.runtime.simulated.observing import Block


@dataclass(frozen=True, slots=True)
class Argument:
    """Where a tensor argument of a kernel lies, so that an address can be named."""

    name: str
    start: int
    end: int
    itemsize: int

    def indices(self, block: Block) -> str:
        """`64:128, 0:64`, as the strides of the block have it."""
        low, high = block.bounds
        axes = sorted(
            ((stride, size) for size, stride in zip(block.shape, block.strides, strict=True) if size > 1), reverse=True
        )
        if not all(stride > 0 and stride % self.itemsize == 0 for stride, _ in axes):
            return f"{(low - self.start) // self.itemsize}:{-(-(high - self.start) // self.itemsize)}"
        if not axes:
            return str((low - self.start) // self.itemsize)
        at, found = (low - self.start) // self.itemsize, []
        if axes[-1][0] != self.itemsize:
            axes.append((self.itemsize, 1))
        for stride, size in axes:
            first, at = divmod(at, stride // self.itemsize)
            found.append(f"{first}:{first + size}")
        return ", ".join(found)


def named(arguments: Iterable[Argument], block: Block) -> str | None:
    """`words[3]` or `rows[64:128, 0:64]` for what lies inside an argument; the smallest one that holds it names it."""
    low, high = block.bounds
    holding = [a for a in arguments if a.start <= low and high <= a.end]
    if not holding:
        return None
    best = min(holding, key=lambda a: a.end - a.start)
    return f"{best.name}[{best.indices(block)}]"


@dataclass(slots=True, eq=False)
class Launch:
    """One launch of a kernel: what its workers have in common."""

    kernel: str
    file: str
    stream: int
    workers: int
    arguments: tuple[Argument, ...]
    running: int = 0

    lines: tuple[tuple[int, Loc], ...] = ()
    """Emitted line -> the user's line it comes from."""

    def name_of(self, block: Block) -> str | None:
        return named(self.arguments, block)

    def location(self, line: int) -> Loc | None:
        """The user's line that emitted line `line` comes from; the emitted one where there is none."""
        if not line:
            return None
        return origin(self.lines, line) or whole_line(self.file, line)


@dataclass(slots=True, eq=False)
class Wait:
    """What an agent waits for. `key` wakes it; `text` says it in the report, when it is needed."""

    key: Hashable
    text: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Target:
    """What the wait function that is running waits for: that the word is `comparison` (`=`, `>=`, `of call`) `number`."""

    address: int
    condition: Callable[[int], bool]
    comparison: str
    number: int

    @property
    def text(self) -> str:
        """The condition in words."""
        return f"{self.comparison} {self.number}"


@dataclass(slots=True, eq=False)
class Agent:
    """A coroutine. `stream`: None for a host, which is a thread. `worker`, `launch`: of a kernel's worker only."""

    rank: int
    stream: int | None = None
    worker: int | None = None
    launch: Launch | None = None
    clock: float = 0.0
    coroutine: greenlet | Host | None = None
    wait: Wait | None = None
    polled: tuple[int, int | bytes] | None = None
    """Address and value of the last poll, if nothing was accessed since."""
    target: Target | None = None
    looking: bool = False
    """Whether it looks at the clock between two polls: the accesses that this takes are nothing that happens."""
    peeking: bool = False
    """Whether it loads words that may not have come yet: who uses them says so (`Machine.looked`)."""

    @property
    def name(self) -> str:
        if self.launch is not None:
            return f"worker {self.worker} of {self.launch.kernel}"
        if self.stream is None:
            return "host"
        return "main stream" if self.stream == 0 else f"side stream {self.stream - 1}"

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.name}"
