"""`python -m benchmarks.mutants`: every mutant of every placed operator, the score, and who caught what as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import torch
import triton
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.mutants.mappings import mappings, operators
from benchmarks.mutants.scoring import Row, rows_of_number
from tilelink.bench.running import commit

HOWS = ("static", "equivalent", "simulation", "survived")


def main(
    out: Annotated[Path, typer.Option(help="Where the rows go as JSON.")] = Path("benchmarks/results/mutants.json"),
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    only: Annotated[str, typer.Option(help="One operator; the rows of others stay as they are in OUT.")] = "",
    simulate: Annotated[int, typer.Option(help="Mutants of an operator simulated though refused before.")] = 700,
) -> None:
    """Mutate, verify, simulate. Ends with 1 if a mutant survives or only the simulation sees it.

    Mutants that the static checks do not refuse are always simulated.
    """
    console = Console()
    tasks = [(name, k) for name, op in operators().items() if only in ("", name) for k, _ in enumerate(mappings(op))]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: dict[tuple[str, int], list[Row]] = {}
    with (
        Progress(*columns, console=Console(stderr=True)) as progress,
        ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool,
    ):
        bar = progress.add_task("placed operators", total=len(tasks))
        futures = {pool.submit(rows_of_number, *task, simulate): task for task in tasks}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            progress.advance(bar)
    rows = [row for task in tasks for row in found[task]]
    if only and out.is_file():
        known = [Row(**r) for r in json.loads(out.read_text())["rows"] if r["operator"] != only]
        rows = sorted([*known, *rows], key=lambda r: r.operator)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": about(rows), "rows": [r.as_json() for r in rows]}, indent=1) + "\n")
    console.print(score(rows))
    _print_each(console, "redundant signals", rows, "equivalent")
    _print_each(console, "missed by the static checks", rows, "simulation")
    _print_each(console, "SURVIVED", rows, "survived")
    if any(r.caught_by in ("simulation", "survived") for r in rows):
        raise typer.Exit(1)


def about(rows: list[Row]) -> dict[str, object]:
    """What the rows were made with, and their sums."""
    counts = Counter(r.caught_by for r in rows)
    harmful = [r for r in rows if r.caught_by != "equivalent"]
    return {
        "commit": commit(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "mutants": len(rows),
        **{how: counts[how] for how in HOWS},
        "seen by the simulation, of those that are not equivalent": round(_share(harmful), 4),
    }


def score(rows: list[Row]) -> Table:
    """By kind of mutation."""
    table = Table("mutation", "mutants", *HOWS, "simulation sees", title="mutants")
    for name in dict.fromkeys(r.mutation for r in rows):
        mine = [r for r in rows if r.mutation == name]
        table.add_row(name, *_numbers(mine))
    table.add_section()
    table.add_row("all", *_numbers(rows))
    return table


def _numbers(rows: list[Row]) -> Iterable[str]:
    counts = Counter(r.caught_by for r in rows)
    harmful = [r for r in rows if r.caught_by != "equivalent"]
    return (
        str(len(rows)),
        *(str(counts[how] or "") for how in HOWS),
        f"{100 * _share(harmful):.0f} %" if harmful else "",
    )


def _share(rows: list[Row]) -> float:
    """Of those that it was asked for."""
    asked = [r.simulation_too for r in rows if r.simulation_too is not None]
    return sum(asked) / len(asked) if asked else 1.0


def _print_each(console: Console, title: str, rows: list[Row], how: str) -> None:
    mine = [r for r in rows if r.caught_by == how]
    if mine:
        console.print(f"\n{title}:")
        for r in mine:
            console.print(f"  {r.operator} ({r.schedule}): {r.mutation}, {r.signal}: {r.by or r.seen}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
