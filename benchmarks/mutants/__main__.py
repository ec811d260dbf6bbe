"""`python -m benchmarks.mutants`: every mutant of every placed operator, the score, and who caught what as JSON."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.mutants.mappings import mappings, operators
from benchmarks.mutants.mutations import mutations
from benchmarks.mutants.scoring import Placed
from benchmarks.mutants.table import Key, Row, earlier, read, score, write
from benchmarks.mutants.working import Task, rows_of_tasks, tasks

EVERY = 5
"""Seconds after which the file is written again."""
Said = tuple[str, str]
"""A mutation and its signal."""


def main(
    out: Annotated[Path, typer.Option(help="Where the rows go as JSON.")] = Path("benchmarks/results/mutants-cpu.json"),
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    only: Annotated[str, typer.Option(help="One operator; the rows of others stay as they are in OUT.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Keep the rows of OUT, and make those that miss.")] = False,
    again: Annotated[bool, typer.Option(help="Make those again that the simulation missed.")] = False,
    simulate: Annotated[int, typer.Option(help="Mutants of an operator simulated whatever is proven.")] = 10_000,
    each: Annotated[int, typer.Option(help="Mutants of an operator that are made, by chance.")] = 10_000,
    limit: Annotated[float, typer.Option(help="Seconds for which one mutant is simulated.")] = 120,
    seconds: Annotated[float, typer.Option(help="Stop after so many; the rows made are kept.")] = float("inf"),
) -> None:
    """Mutate, verify, simulate. Ends with 1 if a mutant survives, with 3 if rows miss.

    Mutants that are accepted are always simulated. The file is written every few seconds.
    """
    until = time.monotonic() + seconds
    placed = [m for name, op in operators().items() if only in ("", name) for m in mappings(op)]
    said = {m.key(n): (x.name, x.signal) for m in placed for n, x in enumerate(mutations(m.plan))}
    chosen = _chosen(said, simulate)
    old = read(out) if resume or only else []
    kept = earlier(out) if only else []
    rows = {r.key: r for r in old if resume and _stands(r, said, chosen) and not (again and r.missed)}
    others = [r for r in old if only and r.operator != only]
    wanted = _chosen(said, each)
    missing = [key for key in said if key in wanted and key not in rows]
    found = [task for m in placed for task in tasks(m, [n for *of, n in missing if m.key(n)[:2] == tuple(of)], chosen)]

    def save() -> list[Row]:
        ordered = sorted([*others, *(rows[key] for key in said if key in rows)], key=lambda r: r.operator)
        write(out, ordered, len(said) - len(rows), kept)
        return ordered

    _collect(rows, found, jobs, limit, until, save)
    ordered = save()
    _print(Console(), ordered)
    if any(r.caught_by == "survived" for r in ordered):
        raise typer.Exit(1)
    if any(key not in rows for key in wanted):
        raise typer.Exit(3)


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


def _collect(
    rows: dict[Key, Row], found: list[Task], jobs: int, limit: float, until: float, save: Callable[[], object]
) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Processes are forked before there are threads here.
    made = rows_of_tasks(found, jobs, partial(_rows, limit), until)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("mutants", total=sum(len(task.numbers) for task in found))
        saved = time.monotonic()
        for row in made:
            rows[row.key] = row
            progress.advance(bar)
            if time.monotonic() > saved + EVERY:
                save()
                saved = time.monotonic()


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
    typer.run(main)
