"""The rows while they are made, a line each; and the table of them that is committed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.table import Table

from benchmarks.harness import about, save
from benchmarks.mutants.programs.judging import VERDICTS, Row
from benchmarks.mutants.table import Key, by_column

WRONG = ("slow", "survived", "crashed")
"""Verdicts that nobody is to get."""


def read(path: Path) -> dict[Key, Row]:
    """Rows of a file, the last of each mutant; a line that was not written to its end is none."""
    if not path.is_file():
        return {}
    lines = path.read_text().splitlines(keepends=True)
    rows = [Row(**json.loads(line)) for line in lines if line.endswith("\n")]
    return {row.key: row for row in rows}


def appended(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")


def _by_change(rows: Iterable[Row]) -> Iterable[tuple[list[Row], list[Row]]]:
    """Of each change that the proof takes: the rows of placements in which it was simulated, and of the others."""
    found: dict[tuple[str, ...], tuple[list[Row], list[Row]]] = {}
    for r in rows:
        if r.verdict not in ("refused", "assumed", "crashed"):
            found.setdefault(r.change, ([], []))[r.verdict == "taken"].append(r)
    return found.values()


def to_simulate(rows: Iterable[Row], most: int) -> list[Key]:
    """A change that the proof takes is simulated in so many placements, and in all if one of them is harmed."""
    keys: list[Key] = []
    for seen, left in _by_change(rows):
        wrong = any(r.verdict in WRONG for r in seen)
        count = len(left) if wrong else min(len(left), max(0, most - len(seen)))
        keys += [r.key for r in random.Random(repr(left)).sample(left, count)]
    return keys


def spread(rows: Sequence[Row]) -> list[Row]:
    """In placements in which it was not simulated a change is what it is in those in which it was, at worst."""
    found = {r.key: r for r in rows}
    for seen, left in _by_change(rows):
        if seen:
            worst = max(seen, key=lambda r: VERDICTS.index(r.verdict))
            by = f"{worst.by} (in {len(seen)} other placements)"
            found |= {r.key: replace(r, verdict=worst.verdict, by=by) for r in left}
    return [found[r.key] for r in rows]


def write(path: Path, rows: Sequence[Row], missing: int) -> None:
    """What the rows sum up to, and those that should not be. `missing`: rows and simulations still to be made."""
    found = {
        "operators": len({r.operator for r in rows}),
        "placed operators": len({(r.operator, r.schedule) for r in rows}),
        "missing": missing,
        "all": sums(rows),
        "by kind": {kind: sums(r for r in rows if r.kind == kind) for kind in sorted({r.kind for r in rows})},
        "by operator": {
            name: sums(r for r in rows if r.operator == name) for name in sorted({r.operator for r in rows})
        },
        "wrong": [asdict(r) for r in rows if r.verdict in WRONG],
    }
    save(path, about(), found)


def sums(rows: Iterable[Row]) -> dict[str, object]:
    """How many were made, and of each verdict; of refusals, by code."""
    every = list(rows)
    counts = Counter(r.verdict for r in every)
    codes = Counter(r.by for r in every if r.verdict == "refused")
    return {
        "made": len(every),
        **{verdict: counts[verdict] for verdict in VERDICTS},
        "codes": dict(sorted(codes.items())),
    }


def score(rows: Sequence[Row], column: str) -> Table:
    """By `kind` or by `operator`."""
    return by_column("mutants of programs", rows, column, ("made", *VERDICTS), _numbers)


def _numbers(rows: Sequence[Row]) -> Iterable[str]:
    counts = Counter(r.verdict for r in rows)
    return str(len(rows)), *(str(counts[verdict] or "") for verdict in VERDICTS)
