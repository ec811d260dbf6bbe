"""Words that hold the number of a call beside their data: what they hold, and when, in simulated time, they came."""

from __future__ import annotations

import numpy as np

from tilelink.runtime.simulated.memory import Region
from tilelink.runtime.simulated.observing import Block, Span

NUMBER = (1 << 32) - 1
"""The bits of a word's upper half, where the number is, and of its lower half."""


def addresses(span: Span) -> np.ndarray:
    """Of every word, in one row."""
    if not isinstance(span, Block):
        return span.addresses.astype(np.int64)
    found = np.array(span.address, dtype=np.int64)
    for size, stride in zip(span.shape, span.strides, strict=True):
        found = found[..., None] + np.arange(size, dtype=np.int64) * stride
    return found.reshape(-1)


def contents(span: Span, region: Region) -> np.ndarray:
    """What the words hold now."""
    return _of(span, region, region.data.view(np.int64))


def _of(span: Span, region: Region, each: np.ndarray) -> np.ndarray:
    return each[(addresses(span) - region.start) // each.itemsize]


class Arrivals:
    """When words can be seen by those who look at them."""

    def __init__(self) -> None:
        self._times: dict[int, np.ndarray] = {}

    def write(self, span: Span, region: Region, time: float) -> None:
        times = self._times.get(region.start)
        if times is None:
            times = self._times[region.start] = np.zeros(len(region.data) // 8)
        times[(addresses(span) - region.start) // 8] = time

    def latest(self, span: Span, region: Region) -> float:
        """When the last of these words came."""
        times = self._times.get(region.start)
        return 0.0 if times is None else float(_of(span, region, times).max())

    def forget(self, start: int, end: int) -> None:
        for at in [at for at in self._times if start <= at < end]:
            del self._times[at]
