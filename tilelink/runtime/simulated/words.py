"""When, in simulated time, a word came to hold a value.

Coroutines do not run in the order of their clocks, so a waiter may find a word far beyond what it waits for. What it
has to wait for in simulated time is the write that first satisfied it.
"""

from __future__ import annotations

from collections.abc import Callable

WORD = 8
"""Bytes."""


class WordClocks:
    """Per word, its values and when they can be seen."""

    def __init__(self) -> None:
        self._history: dict[int, list[tuple[int, float]]] = {}

    def write(self, address: int, before: int, after: int, time: float) -> None:
        history = self._history.get(address)
        if history is None:
            history = self._history[address] = [(before, 0.0)]
        # A counter has reached a value when the last of its writers has come.
        history.append((after, max(time, history[-1][1])))

    def satisfied(self, address: int, condition: Callable[[int], bool]) -> float:
        """When the word began to satisfy `condition`, as it does now."""
        when = 0.0
        for value, time in reversed(self._history.get(address, ())):
            if not condition(value):
                break
            when = time
        return when

    def latest(self, address: int) -> float:
        history = self._history.get(address)
        return history[-1][1] if history else 0.0

    def forget(self, start: int, end: int) -> None:
        for address in [a for a in self._history if start <= a < end]:
            del self._history[address]
