"""The rows, what they sum up to, and the file that they are committed in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from rich.table import Table

from benchmarks.harness import about, save

HOWS = ("refused", "accepted", "survived")
Key = tuple[str, str, int]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Row:
    """`number`: of the mutant among those of one placed operator.

    `caught_by`: refused | accepted (and nothing is seen of harm) | survived (accepted, and the simulation sees harm). `by`: the
    code of the refusal, or why it is accepted. `simulation_too`: whether the simulation notices it, whatever else does, None if
    it was not asked, as where no text can be emitted; `seen`: how.
    """

    operator: str
    schedule: str
    number: int
    mutation: str
    signal: str
    caught_by: str
    by: str
    simulation_too: bool | None
    seen: str

    @property
    def key(self) -> Key:
        return self.operator, self.schedule, self.number

    @property
    def harmful(self) -> bool:
        return self.caught_by != "accepted"

    @property
    def missed(self) -> bool:
        """By the simulation, which was asked."""
        return self.harmful and self.simulation_too is False


def read(path: Path) -> list[Row]:
    """No rows where there is no file."""
    if not path.is_file():
        return []
    return [Row(**one) for one in json.loads(path.read_text())["rows"]]


def earlier(path: Path) -> list[dict[str, str]]:
    """What rows of a file that are kept were made with, the oldest first; nothing where there is no file."""
    if not path.is_file():
        return []
    said = json.loads(path.read_text())["about"]
    return [*said.get("earlier", []), {name: said[name] for name in about() if name in said}]


def write(path: Path, rows: list[Row], missing: int = 0, kept: Sequence[dict[str, str]] = ()) -> None:
    """`kept`: what those of other operators were made with."""
    said = {**sums(rows), "missing": missing, **({"earlier": kept} if kept else {})}
    save(path, about(**said), {"rows": [asdict(row) for row in rows]})


def sums(rows: list[Row]) -> dict[str, object]:
    """What the rows sum up to."""
    counts = Counter(r.caught_by for r in rows)
    return {
        "operators": len({r.operator for r in rows}),
        "placed operators": len({(r.operator, r.schedule) for r in rows}),
        "mutants": len(rows),
        **{how: counts[how] for how in HOWS},
        "simulated, of those that are not accepted": sum(r.simulation_too is not None for r in rows if r.harmful),
        "seen by the simulation, of those": round(share(rows), 4),
    }


def share(rows: Iterable[Row]) -> float:
    """How many of the mutants that do harm the simulation sees, of those that it was asked for."""
    asked = [r.simulation_too for r in rows if r.harmful and r.simulation_too is not None]
    return sum(asked) / len(asked) if asked else 1.0


def score(rows: Sequence[Row], column: str) -> Table:
    """By `mutation` or by `operator`."""
    return by_column("mutants", rows, column, ("mutants", *HOWS, "simulation sees"), _numbers)


def by_column(
    title: str, rows: Sequence[R], column: str, heads: Sequence[str], numbers: Callable[[Sequence[R]], Iterable[str]]
) -> Table:
    """A line for the rows of each value that they have in a column, and one for all: what `numbers` makes of them."""
    table = Table(column, *heads, title=title)
    for name in dict.fromkeys(getattr(r, column) for r in rows):
        table.add_row(name, *numbers([r for r in rows if getattr(r, column) == name]))
    table.add_section()
    table.add_row("all", *numbers(rows))
    return table


def _numbers(rows: Sequence[Row]) -> Iterable[str]:
    counts = Counter(r.caught_by for r in rows)
    seen = f"{100 * share(rows):.0f} %" if any(r.harmful for r in rows) else ""
    return str(len(rows)), *(str(counts[how] or "") for how in HOWS), seen
