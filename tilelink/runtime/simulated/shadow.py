"""What the race detector knows of a run: vector clocks, what was released into flags, and who touched which bytes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tilelink.runtime.simulated.agents import Agent, Block, Span

# ---------------------------------------------------------------------------------------------------------------------
# Vector clocks: what each strand of a run has for certain seen of every other.
#
# A strand is what runs in order: a host, a stream, and three in every program: all its threads, the one thread that does
# scalar atomics, and the bulk copies (TMA), which are a memory client of their own.


@dataclass(frozen=True, slots=True)
class Strands:
    """The rows of one agent; the same one three times where it is no program."""

    threads: int
    leader: int
    bulk: int

    @property
    def rows(self) -> set[int]:
        return {self.threads, self.leader, self.bulk}


class Clocks:
    """`rows[a, b]`: strand a knows everything that strand b did while `rows[b, b]` was at most that."""

    def __init__(self) -> None:
        self.rows = np.zeros((64, 64), dtype=np.int32)
        self._count = 0
        self._strands: dict[tuple[int, int, int], Strands] = {}

    def strands(self, agent: Agent) -> Strands:
        """Workers of the same number on one stream are one: their launches are in order."""
        found = self._strands.get(agent.place)
        if found is None:
            rows = [self._add()] * 3 if agent.worker is None else [self._add() for _ in range(3)]
            found = self._strands[agent.place] = Strands(*rows)
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


# ---------------------------------------------------------------------------------------------------------------------
# What an acquire of a flag learns: everything that was released into it up to the write that it had to see.

KEPT = 64
"""Writes remembered per flag: to forget older ones may hide a race, and never invents one."""


@dataclass(frozen=True, slots=True)
class Release:
    """What came with a value of a flag. `system`: what is released to every rank; `device`: to that rank alone."""

    system: np.ndarray | None = None
    device: dict[int, np.ndarray] = field(default_factory=dict)

    def reaches(self, rank: int, scope: str) -> list[np.ndarray]:
        """What an acquire on `rank` in `scope` sees."""
        both = (self.device.get(rank), self.system if scope == "system" else None)
        return [known for known in both if known is not None]

    def plus(self, rank: int, scope: str, known: np.ndarray | None) -> Release:
        """Of the next value: an atomic change passes on what was released before, with or without releasing itself. `known`: what
        the writer releases; None: nothing."""
        if known is None:
            return self
        system = union(self.system, known) if scope == "system" else self.system
        return Release(system, {**self.device, rank: union(self.device.get(rank), known)})


# ---------------------------------------------------------------------------------------------------------------------
# Shadow memory: for every few bytes of watched memory the number of a state: who wrote last, and who has read since.
#
# A grain, which has one number, is as small as the accesses seen so far demand: neighbours that share none of their bytes
# share no grain. What the numbers mean is not known here.

BUDGET = 256 << 20
"""Bytes of memory that are kept alive for the sake of their shadow: its addresses would come again as other tensors."""
NUMBER = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class Cells:
    """The numbers of one span: a view of the shadow, or (`index`) a copy of what is scattered."""

    shadow: Shadow
    numbers: np.ndarray
    index: np.ndarray | None

    def states(self) -> list[int]:
        """Those that occur. Nearly always one: tiles are written and read as a whole."""
        numbers = self.numbers
        low, high = int(np.minimum.reduce(numbers, axis=None)), int(np.maximum.reduce(numbers, axis=None))
        if low == high:
            return [low]
        for axis in range(numbers.ndim if numbers.ndim == 2 else 0):
            # Rows or columns of one state each: many times faster than sorting.
            lows = np.minimum.reduce(numbers, axis=axis)
            if np.array_equal(lows, np.maximum.reduce(numbers, axis=axis)):
                return sorted(set(lows.tolist()))
        return np.unique(numbers).tolist()

    def fill(self, new: int, old: int | None = None) -> None:
        """Put `new` everywhere, or where `old` is."""
        where = slice(None) if old is None else self.numbers == old
        if self.index is None:
            self.numbers[where] = new
        else:
            self.shadow.numbers[self.index[where]] = new


@dataclass(slots=True, eq=False)
class Shadow:
    """Of one allocation, which `keep` holds alive. `grain`: bytes per number; 0 before the first access."""

    start: int
    end: int
    keep: object
    grain: int = 0
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, NUMBER))

    def cells(self, span: Span) -> Cells:
        if isinstance(span, Block):
            length, shape, strides = _runs(span.itemsize, span.shape, span.strides)
            self._refine(math.gcd(self.grain, span.address - self.start, length, *strides))
            offset, *steps = (at // self.grain * NUMBER.itemsize for at in (span.address - self.start, *strides))
            every = (*shape, length // self.grain), NUMBER, self.numbers, offset, (*steps, NUMBER.itemsize)
            return Cells(self, np.ndarray(*every), None)
        offsets = span.addresses.astype(np.int64) - self.start
        self._refine(math.gcd(self.grain, span.itemsize))
        if (offsets % self.grain).any():
            self._refine(1)
        index = offsets // self.grain
        if span.itemsize > self.grain:
            index = (index[:, None] + np.arange(span.itemsize // self.grain)).reshape(-1)
        return Cells(self, self.numbers[index], index)

    def _refine(self, grain: int) -> None:
        if grain == self.grain:
            return
        if self.grain == 0:
            self.numbers = np.zeros(-(-(self.end - self.start) // grain), NUMBER)
        else:
            self.numbers = np.repeat(self.numbers, self.grain // grain)
        self.grain = grain


@lru_cache(maxsize=1024)
def _runs(
    itemsize: int, sizes: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """A block as runs of bytes: the length of one, how many there are along each axis, and how far apart they are."""
    length, shape, strides = itemsize, list[int](), list[int]()
    for size, stride in zip(reversed(sizes), reversed(steps), strict=True):
        if size == 1 or stride == 0:
            continue
        if stride == length and not shape:
            length *= size
        else:
            shape.insert(0, size)
            strides.insert(0, stride)
    return length, tuple(shape), tuple(strides)


class ShadowMemory:
    """The shadows of all memory that was opened. They do not overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._shadows: list[Shadow] = []
        self._recent: OrderedDict[int, Shadow] = OrderedDict()
        self._kept = 0

    def open(self, start: int, end: int, keep: object) -> None:
        """From now on accesses to [start, end) are watched. The least recently opened ones are given up for it."""
        if start in self._recent:
            self._recent.move_to_end(start)
            return
        at = bisect_right(self._starts, start)
        made = Shadow(start, end, keep)
        self._starts.insert(at, start)
        self._shadows.insert(at, made)
        self._recent[start] = made
        self._kept += end - start
        while self._kept > BUDGET and len(self._recent) > 1:
            self._drop(next(iter(self._recent.values())))

    def close(self, start: int, end: int) -> None:
        for shadow in [s for s in self._shadows if start < s.end and s.start < end]:
            self._drop(shadow)

    def find(self, span: Span) -> Shadow | None:
        """None for memory that nobody opened, and for a scatter over several allocations."""
        low, high = span.bounds
        at = bisect_right(self._starts, low) - 1
        return self._shadows[at] if at >= 0 and high <= self._shadows[at].end else None

    def clear(self) -> None:
        for shadow in self._shadows:
            shadow.numbers.fill(0)

    def _drop(self, shadow: Shadow) -> None:
        at = self._shadows.index(shadow)
        del self._shadows[at], self._starts[at], self._recent[shadow.start]
        self._kept -= shadow.end - shadow.start
