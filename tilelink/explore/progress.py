"""A bar for simulated runs, on a terminal: what takes longer than two seconds shows how far it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tilelink.explore.report_tables import signals_of
from tilelink.ir.plan import Plan
from tilelink.runtime.simulated.machine import Recorder

PERIOD = 0.2
"""Seconds between two looks at the trace."""


@contextmanager
def watched(what: str, plan: Plan, recorder: Recorder, calls: int = 1) -> Iterator[None]:
    """Show how many of the plan's signals have been given, as the recorder sees them."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False)
    task = progress.add_task(what, total=max(1, calls * signals_of(plan)))
    done = threading.Event()

    def follow() -> None:
        seen = given = 0
        while not done.wait(PERIOD):
            records = recorder.records[seen:]
            seen += len(records)
            given += sum(r.what == "signal" for r in records)
            progress.update(task, completed=given, refresh=True)

    with progress:
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
