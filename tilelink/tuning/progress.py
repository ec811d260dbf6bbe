"""How far something is that takes its time: a bar on a terminal, else a line now and then, both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PERIOD = 5.0
"""Seconds between two lines where there is no terminal."""

Advance = Callable[[float, str], None]
"""How much of the total is done, and what to say of it."""


@contextmanager
def bar(what: str, total: float, *, quiet: bool = False) -> Generator[Advance]:
    """Show how far `what` is, of `total`, until it is done."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        said = time.monotonic()

        def line(done: float, words: str) -> None:
            nonlocal said
            if not quiet and time.monotonic() - said >= PERIOD:
                said = time.monotonic()
                print(f"{what}: {words or f'{done / total:.0%}'}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)

        def advance(done: float, words: str) -> None:
            progress.update(task, completed=min(done, total), description=f"{what}: {words}" if words else what)

        yield advance
