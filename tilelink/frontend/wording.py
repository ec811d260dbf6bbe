"""Words that many diagnostics share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 axis`, `2 axes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.7)), None)
