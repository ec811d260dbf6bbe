"""Limits of time that hold on any machine: seconds of a processor, in those of the machine that the limits were written on."""

from __future__ import annotations

import time
from collections.abc import Callable

REFERENCE_S = 0.0045
"""What `_reference` takes on that machine while nothing else runs there."""


def _reference() -> int:
    table: dict[int, tuple[int, ...]] = {}
    for k in range(20_000):
        table[k % 977] = (k, *table.get((k * 7) % 977, ())[:3])
    return len(table)


def _cpu_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def least_cpu_s(work: Callable[[], object], limit_s: float, tries: int = 5) -> float:
    """Least CPU seconds of `work` in at most `tries`, fewer once it keeps its limit.

    Each try is divided by how much slower this machine is just now, if it is: others may be at work on its processors.
    """
    least = float("inf")
    for _ in range(tries):
        before = _cpu_s(_reference)
        took = _cpu_s(work)
        slower = max(1.0, (before + _cpu_s(_reference)) / 2 / REFERENCE_S)
        least = min(least, took / slower)
        if least <= limit_s:
            break
    return least
