"""`python -m benchmarks.mutants.programs`: every change of a write of every placed operator's programs, and who notices."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.mutants.mappings import Mapping as Placement
from benchmarks.mutants.mappings import mappings, operators
from benchmarks.mutants.programs.changes import Change
from benchmarks.mutants.programs.judging import Placed, Row
from benchmarks.mutants.programs.table import WRONG, Key, appended, read, score, spread, to_simulate, write
from benchmarks.mutants.working import Task, rows_of_tasks, tasks


def main(
    out: Annotated[Path, typer.Option(help="Where the table goes.")] = Path(
        "benchmarks/results/mutants-programs-cpu.json"
    ),
    rows: Annotated[Path, typer.Option(help="Rows as they are made; what is there already is not made again.")] = Path(
        "out/mutants/programs.jsonl"
    ),
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    only: Annotated[str, typer.Option(help="One operator.")] = "",
    most: Annotated[int, typer.Option(help="Changes of each placed operator, chosen by chance.")] = 1_000_000,
    simulate: Annotated[int, typer.Option(help="Placements in which a change that the proof takes is simulated.")] = 2,
    again: Annotated[bool, typer.Option(help="Make those again that are not refused.")] = False,
    limit: Annotated[float, typer.Option(help="Seconds for which a run is simulated.")] = 60,
    seconds: Annotated[float, typer.Option(help="Stop after so many; the rows made are kept.")] = float("inf"),
) -> None:
    """Change, plan, prove; of what the proof takes, simulate each change in some placements, and if one of them is harmed
    in all. Ends with 1 if a mutant survives or the compiler fails, with 3 if rows or simulations miss."""
    until = time.monotonic() + seconds
    placed = [m for name, op in operators().items() if only in ("", name) for m in mappings(op)]
    wanted: dict[Key, Placement] = {}
    said: dict[Key, Change] = {}
    for m in placed:
        found = Placed(m).found
        for n in _some(m, len(found), most):
            wanted[m.key(n)], said[m.key(n)] = m, found[n][2]
    stands = [r for r in read(rows).values() if r.key in said and r.is_of(said[r.key])]
    known = {r.key: r for r in stands if r.verdict == "refused" or not again}

    def make(keys: Sequence[Key], *, simulated: bool) -> None:
        for row in _made(wanted, keys, jobs, partial(_rows, limit, simulated), until):
            appended(rows, row)
            known[row.key] = row

    make([key for key in wanted if key not in known], simulated=False)
    while (keys := to_simulate(known.values(), simulate)) and time.monotonic() < until:
        make(keys, simulated=True)
    ordered = spread([known[key] for key in wanted if key in known])
    missing = len(wanted) - len(ordered) + len(to_simulate(known.values(), simulate))
    write(out, ordered, missing)
    _print(Console(), ordered)
    if any(r.verdict in WRONG for r in ordered):
        raise typer.Exit(1)
    if missing:
        raise typer.Exit(3)


def _some(m: Placement, count: int, most: int) -> list[int]:
    """The same each time, and others in another placement."""
    return sorted(random.Random(repr(m.key(0))).sample(range(count), min(count, most)))


def _made(
    wanted: Mapping[Key, Placement],
    keys: Sequence[Key],
    jobs: int,
    rows_of: Callable[[Task], Iterator[Row]],
    until: float,
) -> Iterator[Row]:
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for operator, schedule, number in keys:
        numbers[operator, schedule].append(number)
    found = [task for of, mine in numbers.items() for task in tasks(wanted[*of, mine[0]], mine, ())]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    made = rows_of_tasks(found, jobs, rows_of, until)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield from progress.track(made, total=len(keys), description="mutants")


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
    typer.run(main)
