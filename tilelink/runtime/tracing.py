"""What a traced call writes down: kernels into memory of their own, streams as stamps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from tilelink.ir import formula as F
from tilelink.ir.kernel import TraceLayout
from tilelink.ir.plan import Plan
from tilelink.runtime.backend import Backend, Stream

UNKNOWN = 256
"""Tiles of a worker that there is room for where nobody knows how many there will be; further ones take the last place."""


@dataclass(frozen=True, slots=True)
class KernelEvents:
    """`memory`: per worker one flag for its multiprocessor, then `layout.slots` flags for each of `tiles` tiles, for each
    function that it runs in turn."""

    layout: TraceLayout
    workers: int
    tiles: int
    memory: torch.Tensor

    @staticmethod
    def allocate(backend: Backend, plan: Plan, layout: TraceLayout, workers: int) -> KernelEvents:
        tiles = max(_tiles(backend, plan, layout, workers))
        memory = backend.zeros(workers * (1 + layout.turns * tiles * layout.slots), torch.int64)
        return KernelEvents(layout, workers, tiles, memory)


def _tiles(backend: Backend, plan: Plan, layout: TraceLayout, workers: int) -> list[int]:
    """Per role: the most that one worker takes."""
    left, found = workers, list[int]()
    for role in layout.roles:
        mine = role.workers if role.workers is not None else max(left, 1)
        left -= role.workers or 0
        if role.total is None:
            found.append(UNKNOWN)
            continue
        total = int(F.evaluate(role.total, plan.env(backend.rank)))
        found.append(max(1, min(total, UNKNOWN) if role.drawn else -(-total // mine)))
    return found


What: TypeAlias = Literal["wait", "copy", "compute"]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """What a stream did between two stamps, for step `path`."""

    stream: int
    path: str
    what: What
    detail: str
    begin: Any
    end: Any


@dataclass(slots=True)
class CallEvents:
    """One traced call of one rank. Kernels' memory is the same in every call through a slot."""

    kernels: dict[str, KernelEvents] = field(default_factory=dict[str, KernelEvents])
    streams: list[StreamEvent] = field(default_factory=list[StreamEvent])

    def clear(self) -> None:
        """Forget the calls before."""
        self.streams.clear()
        for kernel in self.kernels.values():
            kernel.memory.zero_()

    def around(
        self,
        stream: Stream,
        number: int,
        path: str,
        what: What,
        detail: str,
        act: Callable[[], None],
    ) -> None:
        """Let a stream do something between two stamps."""
        begin = stream.stamp()
        act()
        self.streams.append(StreamEvent(number, path, what, detail, begin, stream.stamp()))
