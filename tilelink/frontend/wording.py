"""Words that many diagnostics share."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Container, Iterable


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 axis`, `2 axes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def numbered(wish: str, taken: Container[str]) -> str:
    """A name that nothing else has: `wish`, else `wish_2`, `wish_3`, …"""
    further = (f"{wish}_{k}" for k in itertools.count(2))
    return next(name for name in itertools.chain([wish], further) if name not in taken)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.7)), None)
