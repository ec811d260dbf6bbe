"""What an acquire of a word learns: everything that was released into it up to the write that it had to see.

A wait that ends late finds more releases than it needed. It is credited with those up to the first value that satisfies
it: another schedule would have shown it no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilelink.runtime.simulated.clocks import union

KEPT = 64
"""Writes remembered per word. An older wait is credited with more than it needed: it may hide a race, never invent one."""


@dataclass(frozen=True, slots=True)
class Release:
    """A value that a word had. `system`: what is released to every rank; `device`: to that rank alone."""

    value: int
    system: np.ndarray | None = None
    device: dict[int, np.ndarray] = field(default_factory=dict)

    def reaches(self, rank: int, scope: str) -> list[np.ndarray]:
        """What an acquire on `rank` in `scope` sees."""
        own = self.device.get(rank)
        both = (own, self.system if scope == "system" else None)
        return [known for known in both if known is not None]

    def plus(self, value: int, rank: int, scope: str, known: np.ndarray | None) -> Release:
        """The next value: an atomic change passes on what was released before, with or without releasing itself."""
        if known is None:
            return Release(value, self.system, self.device)
        system = union(self.system, known) if scope == "system" else self.system
        return Release(value, system, {**self.device, rank: union(self.device.get(rank), known)})


class Releases:
    """The history of every word that was released into."""

    def __init__(self) -> None:
        self._words: dict[int, list[Release]] = {}

    def write(
        self, address: int, before: int, after: int, rank: int, scope: str, known: np.ndarray | None, *, atomic: bool
    ) -> None:
        """`known`: what the writer releases, None without release. A write that is not atomic ends older releases."""
        history = self._words.get(address)
        if history is None:
            history = self._words[address] = [Release(before)]
        last = history[-1] if atomic else Release(before)
        history.append(last.plus(after, rank, scope, known))
        if len(history) > KEPT:
            del history[: KEPT // 2]

    def satisfied(self, address: int, condition: Callable[[int], bool] | None) -> Release | None:
        """The write that first satisfied `condition`, as all later ones do; the last one without a condition."""
        history = self._words.get(address)
        if history is None:
            return None
        if condition is None:
            return history[-1]
        found = None
        for release in reversed(history):
            if not condition(release.value):
                break
            found = release
        return found

    def forget(self, start: int, end: int) -> None:
        for address in [a for a in self._words if start <= a < end]:
            del self._words[address]
