"""Words that many diagnostics share, and names that nothing else has."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Container, Iterable

READ_NOT_RUN = "a tile program becomes a GPU kernel; it is read, not run"


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 axis`, `2 axes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def numbered(wish: str, taken: Container[str]) -> str:
    """A name that nothing else has: `wish`, else `wish_2`, `wish_3`, …"""
    further = (f"{wish}_{k}" for k in itertools.count(2))
    return next(name for name in itertools.chain([wish], further) if name not in taken)


def meant(word: str, known: Iterable[str], otherwise: str, shown: str = "`{}`") -> str:
    """What to do about a word that nobody knows: the one that was probably meant, `shown` in this form; else what to do."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.7)
    return f"did you mean {shown.format(close[0])}?" if close else otherwise
