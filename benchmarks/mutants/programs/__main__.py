"""`python -m benchmarks.mutants.programs`: every change of a write of every placed operator's programs, and who notices.

Changes, plans, proves; of what the proof takes, simulates each change in some placements, and if one of them is harmed in all.
Ends with 1 if a mutant survives or the compiler fails, with 3 if rows or simulations miss.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.harness import RESULTS, at_least_one, parser
from benchmarks.mutants.mappings import Mapping, mappings, operators
from benchmarks.mutants.programs.changes import Change
from benchmarks.mutants.programs.judging import Placed, Row
from benchmarks.mutants.programs.table import WRONG, appended, read, score, spread, to_simulate, write
from benchmarks.mutants.table import Key
from benchmarks.mutants.working import Task, rows_of_tasks, tasks


def main() -> int:
    made = parser(__doc__, RESULTS / "mutants-programs-cpu.json")
    said_of_rows = "rows as they are made; what is there already is not made again"
    made.add_argument("--rows", type=Path, default=Path("out/mutants/programs.jsonl"), help=said_of_rows)
    made.add_argument("--jobs", type=at_least_one, default=2, help="processes")
    made.add_argument("--only", default="", help="one operator")
    made.add_argument("--most", type=int, default=1_000_000, help="changes of each placed operator, chosen by chance")
    said_of_simulate = "placements in which a change that the proof takes is simulated"
    made.add_argument("--simulate", type=int, default=2, help=said_of_simulate)
    made.add_argument("--again", action="store_true", help="make those again that are not refused")
    made.add_argument("--limit", type=float, default=60, help="seconds for which a run is simulated")
    made.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many; the rows made are kept")
    given = made.parse_args()

    until = time.monotonic() + given.seconds
    placed = [m for name, op in operators().items() if given.only in ("", name) for m in mappings(op)]
    wanted: dict[Key, Mapping] = {}
    said: dict[Key, Change] = {}
    for m in placed:
        found = Placed(m).found
        for n in _some(m, len(found), given.most):
            wanted[m.key(n)], said[m.key(n)] = m, found[n][2]
    stands = [r for r in read(given.rows).values() if r.key in said and r.is_of(said[r.key])]
    known = {r.key: r for r in stands if r.verdict == "refused" or not given.again}

    def make(keys: Sequence[Key], *, simulated: bool) -> None:
        numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        for operator, schedule, number in keys:
            numbers[operator, schedule].append(number)
        found = [task for of, mine in numbers.items() for task in tasks(wanted[*of, mine[0]], mine, ())]
        for row in rows_of_tasks(found, given.jobs, partial(_rows, given.limit, simulated), until):
            appended(given.rows, row)
            known[row.key] = row

    make([key for key in wanted if key not in known], simulated=False)
    while (keys := to_simulate(known.values(), given.simulate)) and time.monotonic() < until:
        make(keys, simulated=True)
    ordered = spread([known[key] for key in wanted if key in known])
    missing = len(wanted) - len(ordered) + len(to_simulate(known.values(), given.simulate))
    write(given.out, ordered, missing)
    _print(Console(), ordered)
    if any(r.verdict in WRONG for r in ordered):
        return 1
    return 3 if missing else 0


def _some(m: Mapping, count: int, most: int) -> list[int]:
    """The same each time, and others in another placement."""
    return sorted(random.Random(repr(m.key(0))).sample(range(count), min(count, most)))


def _rows(limit: float, simulated: bool, task: Task) -> Iterator[Row]:
    placed = Placed(task.mapping, limit)
    return (placed.row(number, simulate=simulated) for number in task.numbers)


def _print(console: Console, rows: Sequence[Row]) -> None:
    console.print(score(rows, "operator"))
    console.print(score(rows, "kind"))
    for r in rows:
        if r.verdict in WRONG:
            text = f"  {r.operator} ({r.schedule}) {r.step}: {r.kind}, {r.how}, of {r.what}: {r.by}"
            console.print(text, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
