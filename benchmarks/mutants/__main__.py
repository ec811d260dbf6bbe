"""`python -m benchmarks.mutants`: every mutant of every placed operator, the score, and who caught what as JSON.

Mutants that are accepted are always simulated. The file is written every few seconds. Ends with 1 if a mutant survives, with 3
if rows miss.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial

from rich.console import Console

from benchmarks.harness import RESULTS, at_least_one, parser
from benchmarks.mutants.mappings import mappings, operators
from benchmarks.mutants.mutations import mutations
from benchmarks.mutants.scoring import Placed
from benchmarks.mutants.table import Key, Row, earlier, read, score, write
from benchmarks.mutants.working import Task, rows_of_tasks, tasks

EVERY = 5
"""Seconds after which the file is written again."""
Said = tuple[str, str]
"""A mutation and its signal."""


def main() -> int:
    made = parser(__doc__, RESULTS / "mutants-cpu.json")
    made.add_argument("--jobs", type=at_least_one, default=2, help="processes")
    made.add_argument("--only", default="", help="one operator; the rows of others stay as they are in OUT")
    made.add_argument("--resume", action="store_true", help="keep the rows of OUT, and make those that miss")
    made.add_argument("--again", action="store_true", help="make those again that the simulation missed")
    made.add_argument(
        "--simulate", type=int, default=10_000, help="mutants of an operator simulated whatever is proven"
    )
    made.add_argument("--each", type=int, default=10_000, help="mutants of an operator that are made, by chance")
    made.add_argument("--limit", type=float, default=120, help="seconds for which one mutant is simulated")
    made.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many; the rows made are kept")
    given = made.parse_args()

    until = time.monotonic() + given.seconds
    placed = [m for name, op in operators().items() if given.only in ("", name) for m in mappings(op)]
    said = {m.key(n): (x.name, x.signal) for m in placed for n, x in enumerate(mutations(m.plan))}
    chosen = _chosen(said, given.simulate)
    old = read(given.out) if given.resume or given.only else []
    kept = earlier(given.out) if given.only else []
    rows = {r.key: r for r in old if given.resume and _stands(r, said, chosen) and not (given.again and r.missed)}
    others = [r for r in old if given.only and r.operator != given.only]
    wanted = _chosen(said, given.each)
    missing = [key for key in said if key in wanted and key not in rows]
    found = [task for m in placed for task in tasks(m, [n for *of, n in missing if m.key(n)[:2] == tuple(of)], chosen)]

    def save() -> list[Row]:
        ordered = sorted([*others, *(rows[key] for key in said if key in rows)], key=lambda r: r.operator)
        write(given.out, ordered, len(said) - len(rows), kept)
        return ordered

    saved = time.monotonic()
    for row in rows_of_tasks(found, given.jobs, partial(_rows, given.limit), until):
        rows[row.key] = row
        if time.monotonic() > saved + EVERY:
            save()
            saved = time.monotonic()
    ordered = save()
    _print(Console(), ordered)
    if any(r.caught_by == "survived" for r in ordered):
        return 1
    return 3 if any(key not in rows for key in wanted) else 0


def _chosen(keys: Iterable[Key], most: int) -> frozenset[Key]:
    """Some of each operator, the same each time."""
    out: set[Key] = set()
    by_operator: dict[str, list[Key]] = {}
    for key in keys:
        by_operator.setdefault(key[0], []).append(key)
    for mine in by_operator.values():
        out |= set(mine if len(mine) <= most else random.Random(0).sample(mine, most))
    return frozenset(out)


def _stands(row: Row, said: dict[Key, Said], chosen: frozenset[Key]) -> bool:
    """Whether it is of a mutant that there is, and says all that is asked."""
    asked = row.simulation_too is not None or row.key not in chosen
    return asked and said.get(row.key) == (row.mutation, row.signal)


def _rows(limit: float, task: Task) -> Iterator[Row]:
    placed = Placed(task.mapping, limit)
    return (placed.row(number, simulate=number in task.simulated) for number in task.numbers)


def _print(console: Console, rows: list[Row]) -> None:
    console.print(score(rows, "operator"))
    console.print(score(rows, "mutation"))
    for title, how in (("accepted", "accepted"), ("SURVIVED", "survived")):
        mine = [r for r in rows if r.caught_by == how]
        if mine:
            console.print(f"\n{title}:")
            for r in mine:
                console.print(
                    f"  {r.operator} ({r.schedule}): {r.mutation}, {r.signal}: {r.by or r.seen}", highlight=False
                )


if __name__ == "__main__":
    sys.exit(main())
