"""What lists say that `make test` leaves out: `left_out.txt`, which people write, and `repeats.txt`, which `repeats.py` makes.

A line is the id of a case, that of a function, for all its cases, or one with `*`, in the brackets, for any text. With `!` before
it, it takes back what lines above it say. A row of a table has an id, too: that of the table's test, and its name in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

CHOSEN = Path(__file__).with_suffix(".txt")
MEASURED = CHOSEN.with_name("repeats.txt")


def function(case: str) -> str:
    return case.partition("[")[0]


def listed(path: Path, case: str) -> bool:
    """What the last line says that names it."""
    lines = [line for line in _lines(path).get(function(case), ()) if _names(line, case)]
    return bool(lines) and not lines[-1].startswith("!")


def idle(path: Path, cases: Iterable[str]) -> list[str]:
    """Lines that name none of these cases, of files that have some or are gone."""
    there: dict[str, list[str]] = {}
    for case in cases:
        there.setdefault(function(case), []).append(case)
    files = {name.partition("::")[0] for name in there}
    found: list[str] = []
    for name, lines in _lines(path).items():
        file = name.partition("::")[0]
        if file in files or not (CHOSEN.parents[1] / file).exists():
            found += [line for line in lines if not any(_names(line, case) for case in there.get(name, ()))]
    return found


@cache
def _lines(path: Path) -> dict[str, list[str]]:
    """Of each function, in their order; `#` begins a remark."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        if line and not line.startswith("#"):
            found.setdefault(function(line.removeprefix("!")), []).append(line)
    return found


def _names(line: str, case: str) -> bool:
    asked = line.removeprefix("!")
    parts = map(re.escape, asked.split("*"))
    return asked == function(case) or re.fullmatch(".*".join(parts), case) is not None
