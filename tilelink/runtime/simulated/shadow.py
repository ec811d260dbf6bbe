"""Shadow memory: for every few bytes of watched memory the number of a state: who wrote last, and who has read since.

A grain, which has one number, is as small as the accesses seen so far demand: neighbours that share none of their bytes
share no grain. What the numbers mean is not known here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tilelink.runtime.simulated.agents import Block, Span

BUDGET = 256 << 20
"""Bytes of memory that are kept alive for the sake of their shadow: its addresses would come again as other tensors."""
NUMBER = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class Cells:
    """The numbers of one span: a view of the shadow, or (`index`) a copy of what is scattered in it."""

    numbers: np.ndarray
    index: np.ndarray | None
    shadow: np.ndarray

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
            self.shadow[self.index[where]] = new


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
            return Cells(np.ndarray(*every), None, self.numbers)
        offsets = span.addresses - self.start
        self._refine(math.gcd(self.grain, span.itemsize))
        if (offsets % self.grain).any():
            self._refine(1)
        index = offsets // self.grain
        if span.itemsize > self.grain:
            index = (index[:, None] + np.arange(span.itemsize // self.grain)).reshape(-1)
        return Cells(self.numbers[index], index, self.numbers)

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
        self._shadows: dict[int, Shadow] = {}
        """By start, the most recently opened last."""
        self._starts: list[int] = []

    def open(self, start: int, end: int, keep: object) -> None:
        """From now on accesses to [start, end) are watched. The least recently opened ones are given up for it."""
        known = self._shadows.pop(start, None)
        self._shadows[start] = known or Shadow(start, end, keep)
        if known is not None:
            return
        kept = sum(shadow.end - shadow.start for shadow in self._shadows.values())
        while kept > BUDGET and len(self._shadows) > 1:
            given_up = self._shadows.pop(next(iter(self._shadows)))
            kept -= given_up.end - given_up.start
        self._starts = sorted(self._shadows)

    def close(self, start: int, end: int) -> None:
        self._shadows = {at: s for at, s in self._shadows.items() if s.end <= start or end <= at}
        self._starts = sorted(self._shadows)

    def find(self, span: Span) -> Shadow | None:
        """None for memory that nobody opened, and for a scatter over several allocations."""
        low, high = span.bounds
        at = bisect_right(self._starts, low) - 1
        shadow = self._shadows[self._starts[at]] if at >= 0 else None
        return shadow if shadow is not None and high <= shadow.end else None

    def clear(self) -> None:
        for shadow in self._shadows.values():
            shadow.numbers.fill(0)
