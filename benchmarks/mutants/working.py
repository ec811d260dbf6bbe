"""Many processes that look at mutants, the dearest first, and give each row as they have it.

Processes are forked: plans hold functions and cannot be sent, but what was there before a fork is there behind it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from queue import Empty
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.mutants.mappings import Mapping
from benchmarks.mutants.table import Key

Made = TypeVar("Made")
CHUNK = 16
"""Mutants that a process takes at a time: they share the emitted plan and what it gives."""


@dataclass(frozen=True, slots=True)
class Task:
    """Mutants of one placed operator, by number, and those that are simulated even if they are refused."""

    mapping: Mapping
    numbers: tuple[int, ...]
    simulated: frozenset[int]

    @property
    def cost(self) -> int:
        """More or less: steps take time, and so does what is walked singly."""
        steps = self.mapping.plan.wiring.steps
        singles = {a.name for s in self.mapping.operator.signature.inputs for a in s.axes if a.unit}
        walked = math.prod(size for name, size in self.mapping.case.sizes if name in singles)
        return len(steps) * walked * (1 + len(self.simulated))


def tasks(mapping: Mapping, numbers: Sequence[int], simulated: Container[Key]) -> Iterator[Task]:
    for at in range(0, len(numbers), CHUNK):
        mine = tuple(numbers[at : at + CHUNK])
        yield Task(mapping, mine, frozenset(n for n in mine if mapping.key(n) in simulated))


def rows_of_tasks(
    found: Sequence[Task], jobs: int, rows_of: Callable[[Task], Iterator[Made]], until: float
) -> Iterator[Made]:
    """The rows of all tasks as they come, with a bar of how many; the processes begin at once.

    Args:
        jobs: processes.
        rows_of: gives one for each number of a task.
        until: the monotonic clock at which nobody goes on.

    Raises:
        RuntimeError: a process has ended that should not have.
    """
    context = get_context("fork")
    ordered = sorted(found, key=lambda task: task.cost, reverse=True)
    taken, rows = context.Value("q", 0), context.Queue()
    processes = [context.Process(target=_serve, args=(ordered, taken, rows, rows_of)) for _ in range(jobs)]
    for process in processes:
        process.start()
    return _gathered(processes, rows, sum(len(task.numbers) for task in ordered), until)


def _gathered(processes: Sequence[BaseProcess], rows: Any, left: int, until: float) -> Iterator[Any]:
    columns = (TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        # Its thread begins here, behind the forks.
        with Progress(*columns, console=Console(stderr=True)) as progress:
            bar = progress.add_task("", total=left)
            while left and time.monotonic() < until:
                failed = [p for p in processes if p.exitcode not in (None, 0)]
                if failed:
                    raise RuntimeError(f"{len(failed)} of {len(processes)} processes failed")
                try:
                    yield rows.get(timeout=1)
                    left -= 1
                    progress.advance(bar)
                except Empty:
                    continue
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _serve(ordered: Sequence[Task], taken: Any, rows: Any, rows_of: Callable[[Task], Iterator[Any]]) -> None:
    torch.set_num_threads(1)
    while True:
        with taken.get_lock():
            at, taken.value = taken.value, taken.value + 1
        if at >= len(ordered):
            return
        for row in rows_of(ordered[at]):
            rows.put(row)
