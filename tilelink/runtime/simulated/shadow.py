"""Shadow memory: for every few bytes of watched memory the number of a state: who wrote last, and who has read since.

A grain, which has one number, is as small as the accesses seen so far demand: neighbours that share none of their bytes
share no grain. What the numbers mean is not known here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tilelink.runtime.simulated.observing import Block, Span

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

    def replace(self, old: int, new: int) -> None:
        """Put `new` where `old` is."""
        if self.index is None:
            self.numbers[self.numbers == old] = new
        else:
            self.shadow.numbers[self.index[self.numbers == old]] = new

    def fill(self, new: int) -> None:
        if self.index is None:
            self.numbers.fill(new)
        else:
            self.shadow.numbers[self.index] = new


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
            runs = _runs(span.itemsize, span.shape, span.strides)
            self._refine(math.gcd(self.grain, span.address - self.start, runs.length, *runs.strides))
            shape, strides = runs.numbers(self.grain)
            offset = (span.address - self.start) // self.grain * NUMBER.itemsize
            return Cells(self, np.ndarray(shape, NUMBER, self.numbers, offset, strides), None)
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


@dataclass(frozen=True, slots=True)
class _Runs:
    """A block as runs of bytes: the length of one, how many there are along each axis, and how far apart they are."""

    length: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def numbers(self, grain: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of their numbers."""
        item = NUMBER.itemsize
        return (*self.shape, self.length // grain), (*(s // grain * item for s in self.strides), item)


@lru_cache(maxsize=1024)
def _runs(itemsize: int, sizes: tuple[int, ...], steps: tuple[int, ...]) -> _Runs:
    """Of a block of these sizes and strides."""
    length, shape, strides = itemsize, [], []
    for size, stride in zip(reversed(sizes), reversed(steps), strict=True):
        if size == 1 or stride == 0:
            continue
        if stride == length and not shape:
            length *= size
        else:
            shape.insert(0, size)
            strides.insert(0, stride)
    return _Runs(length, tuple(shape), tuple(strides))


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
        if at < 0:
            return None
        shadow = self._shadows[at]
        return shadow if high <= shadow.end else None

    def clear(self) -> None:
        for shadow in self._shadows:
            shadow.numbers.fill(0)

    def _drop(self, shadow: Shadow) -> None:
        at = self._shadows.index(shadow)
        del self._shadows[at], self._starts[at], self._recent[shadow.start]
        self._kept -= shadow.end - shadow.start
