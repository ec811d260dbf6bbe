"""Memory of a simulated machine: which addresses a program may touch, and stores that arrive late."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np
import torch

from tilelink.runtime.memory import extent
from tilelink.runtime.simulated.agents import Agent, Block, Span

# ---------------------------------------------------------------------------------------------------------------------
# Which addresses a program may touch: the arenas, and the tensors passed to a running kernel, to the element.
#
# A wild address would end the process, and an access to a peer's private memory would end a GPU's: both are refused,
# address by address, before anything is read or written. So is a neighbour in the same storage, which on GPUs may be
# another rank's.


def block_of(tensor: torch.Tensor) -> Block:
    size = tensor.element_size()
    return Block(tensor.data_ptr(), tuple(tensor.shape), tuple(s * size for s in tensor.stride()), size)


@dataclass(slots=True, eq=False)
class Region:
    """One tensor's memory. `home`: the rank that holds it (None: no rank in particular); `users`: uses by rank."""

    start: int
    end: int
    name: str
    home: int | None
    symmetric: bool
    data: np.ndarray
    users: Counter[int] = field(default_factory=Counter)
    peers: tuple[Region, ...] = ()
    """Of a symmetric region: the instances of all ranks."""
    times: np.ndarray | None = None
    """When each flag of 64 bits that says itself that it has come could be seen; None: there was none so far."""

    def open_to(self, rank: int) -> bool:
        return self.symmetric or rank in self.users

    def word(self, address: int, itemsize: int = 8) -> int:
        """The integer at `address`."""
        offset = address - self.start
        return int(self.data[offset : offset + itemsize].view(f"i{itemsize}")[0])


class MemoryMap:
    """All regions, by start and end. They may overlap: views of one tensor."""

    def __init__(self) -> None:
        self._regions: dict[tuple[int, int], Region] = {}
        self._bounds: list[tuple[int, int]] = []
        """Sorted."""

    def add(self, tensor: torch.Tensor, rank: int, name: str, *, symmetric: bool = False) -> Region | None:
        """Open a tensor to `rank`; one `drop` each. None if it has no bytes, or lies in an arena, which is open."""
        start, end = extent(tensor)
        if start == end:
            return None
        region = self._regions.get((start, end))
        if region is None:
            if any(r.symmetric for r in self._around(start, end)):
                return None
            storage = tensor.untyped_storage()
            whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
            data = whole[start - storage.data_ptr() : end - storage.data_ptr()]
            region = self._regions[start, end] = Region(start, end, name, rank, symmetric, data)
            insort(self._bounds, (start, end))
        if not region.symmetric and region.home != rank:
            region.home = None
        region.users[rank] += 1
        return region

    def drop(self, region: Region, rank: int) -> None:
        region.users[rank] -= 1
        region.users += Counter()  # only those are left that use it
        if not region.users:
            del self._regions[region.start, region.end]
            self._bounds.remove((region.start, region.end))

    def find(self, low: int, high: int, rank: int | None = None) -> Region | None:
        """A region that holds [low, high), and is open to `rank` if one is named."""
        at = bisect_left(self._bounds, (low + 1,)) - 1
        if at >= 0:
            region = self._regions[self._bounds[at]]
            if high <= region.end and (rank is None or region.open_to(rank)):
                return region
        return next((r for r in self._around(low, high) if rank is None or r.open_to(rank)), None)

    def local(self, rank: int, *tensors: torch.Tensor) -> bool:
        """Whether all of these lie on the GPU of the rank."""
        found = [self.find(*extent(t)) for t in tensors if t.numel()]
        return all(r is None or not r.symmetric or r.home == rank for r in found)

    def nearest(self, address: int) -> Region | None:
        """The region that ends or begins closest to `address`."""
        return min(self._regions.values(), key=lambda r: max(r.start - address, address - r.end), default=None)

    def check(self, span: Span, rank: int) -> Region | int:
        """The region of a rectangle, or of the lowest address of a scatter, every single one of which is checked; else the first
        address that the rank may not touch."""
        low, high = span.bounds
        region = self.find(low, high, rank)
        if region is not None:
            return region
        first = self.find(low, low + span.itemsize, rank)
        if first is None:
            return low
        if isinstance(span, Block):
            return first.end
        ends = ((at, self.find(at, at + span.itemsize, rank)) for at in np.unique(span.addresses).tolist())
        return next((at for at, region in ends if region is None), first)

    def _around(self, low: int, high: int) -> list[Region]:
        return [self._regions[bounds] for bounds in self._bounds if bounds[0] <= low and high <= bounds[1]]


# ---------------------------------------------------------------------------------------------------------------------
# Stores that arrive late: what a program has stored may be seen by others in any order, until something orders it.
#
# A store becomes visible when its program releases it, ends, stores to or loads from the same bytes, or by chance. A
# release covers what a race detector would say it covers: not what other threads store without a barrier before it, nor
# bulk stores that nobody has waited for. So a missing release, barrier or fence gives wrong numbers as well as a race.

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
    """Of all programs of a run. `delays`: whether stores are late at all."""

    def __init__(self, seed: int, *, delays: bool) -> None:
        self._delays = delays
        self._random = random.Random(seed)
        self._pending: dict[Agent, list[Pending]] = {}

    def put(self, agent: Agent, span: Span, stage: Stage, write: Callable[[], None]) -> None:
        if agent.launch is None or not self._delays:
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
        """Time passes, or the program ends: all that it has stored is seen in the end."""
        self._apply(agent, lambda p: True)
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


# ---------------------------------------------------------------------------------------------------------------------
# What flags have held, and what came with each value: when it could be seen, or what was released with it.
#
# Coroutines do not run in the order of their clocks, so a waiter may find a flag far beyond what it waits for. What it
# has to wait for is the write that first satisfied it: another schedule would have shown it no more.

T = TypeVar("T")


class Histories(Generic[T]):
    """Of every flag that was written. `first`: what a flag comes with that nobody has written. `most`: writes remembered per
    flag; None: all. An older wait is credited with more than it needed."""

    def __init__(self, first: T, most: int | None = None) -> None:
        self._first = first
        self._most = most
        self._words: dict[int, list[tuple[int, T]]] = {}

    def write(self, address: int, before: int, after: int, following: Callable[[T], T]) -> None:
        """`following`: what comes with the value `after`, by what came with the one before it."""
        history = self._words.setdefault(address, [(before, self._first)])
        history.append((after, following(history[-1][1])))
        if self._most is not None and len(history) > self._most:
            del history[: self._most // 2]

    def satisfied(self, address: int, condition: Callable[[int], bool]) -> T:
        """Of the write that first satisfied `condition`, as all later ones do."""
        found = self._first
        for value, came in reversed(self._words.get(address, ())):
            if not condition(value):
                break
            found = came
        return found

    def latest(self, address: int) -> T:
        history = self._words.get(address)
        return history[-1][1] if history else self._first

    def forget(self, start: int, end: int) -> None:
        for address in [a for a in self._words if start <= a < end]:
            del self._words[address]
