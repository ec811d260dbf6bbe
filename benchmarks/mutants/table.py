"""The rows, what they sum up to, and the file that they are committed in."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from rich.table import Table

from tilelink.bench.running import commit

HOWS = ("refused", "accepted", "survived")
SHORT = {"n": "number", "of": "signal"}
"""Names in the file, which are there twelve thousand times."""
Key = tuple[str, str, int]


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
    return [_row(one) for one in json.loads(path.read_text())["rows"]]


def _row(one: dict[str, Any]) -> Row:
    fields = {long: one[short] for short, long in SHORT.items() if short in one}
    return Row(**{"seen": "", **{name: value for name, value in one.items() if name not in SHORT}, **fields})


def _line(row: Row) -> str:
    short = {long: name for name, long in SHORT.items()}
    fields = {short.get(name, name): value for name, value in asdict(row).items() if name != "seen" or value}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def earlier(path: Path) -> list[dict[str, str]]:
    """What rows of a file that are kept were made with, the oldest first; nothing where there is no file."""
    if not path.is_file():
        return []
    about = json.loads(path.read_text())["about"]
    return [*about.get("earlier", []), {name: about[name] for name in versions()}]


def versions() -> dict[str, str]:
    """What rows are made with."""
    return {"commit": commit(), "torch": torch.__version__, "triton": triton.__version__}


def write(path: Path, rows: list[Row], missing: int = 0, kept: Sequence[dict[str, str]] = ()) -> None:
    """A line for each row; the old file or the new one, whenever one looks. `kept`: what those of other operators were made
    with."""
    lines = ",\n".join(_line(row) for row in rows)
    about = json.dumps({**sums(rows), "missing": missing, **({"earlier": kept} if kept else {})}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(f'{{"about": {about},\n"rows": [\n{lines}\n]}}\n')
    os.replace(new, path)


def sums(rows: list[Row]) -> dict[str, object]:
    """What the rows were made with, and what they sum up to."""
    counts = Counter(r.caught_by for r in rows)
    return {
        **versions(),
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


def score(rows: list[Row], column: str) -> Table:
    """By `mutation` or by `operator`."""
    table = Table(column, "mutants", *HOWS, "simulation sees", title="mutants")
    for name in dict.fromkeys(getattr(r, column) for r in rows):
        table.add_row(name, *_numbers([r for r in rows if getattr(r, column) == name]))
    table.add_section()
    table.add_row("all", *_numbers(rows))
    return table


def _numbers(rows: list[Row]) -> Iterable[str]:
    counts = Counter(r.caught_by for r in rows)
    seen = f"{100 * share(rows):.0f} %" if any(r.harmful for r in rows) else ""
    return str(len(rows)), *(str(counts[how] or "") for how in HOWS), seen
