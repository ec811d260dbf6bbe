"""The open list: why something that is right is refused."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.fuzz.programs.judging import Judgement

OPEN = Path(__file__).parent / "open.txt"


@cache
def _open() -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """Code, what the message says, and the reason."""
    found: list[tuple[str, re.Pattern[str], str]] = []
    for line in OPEN.read_text().splitlines():
        if line and not line.startswith("#"):
            code, pattern, reason = (part.strip() for part in line.split(" | "))
            found.append((code, re.compile(pattern), reason))
    return tuple(found)


def reason_of(found: Judgement) -> str:
    """Empty: there is none."""
    return next((r for code, said, r in _open() if code == found.code and said.search(found.text)), "")
