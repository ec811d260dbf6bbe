"""How far a simulated run is, as its trace says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tilelink.explore.report_tables import signals_of
from tilelink.ir.plan import Plan
from tilelink.runtime.simulated.machine import Recorder
from tilelink.tuning.progress import bar

PERIOD = 0.2
"""Seconds between two looks at the trace."""


@contextmanager
def watched(what: str, plan: Plan, recorder: Recorder, calls: int = 1) -> Iterator[None]:
    """Show how many of the plan's signals have been given, as the recorder sees them."""
    done = threading.Event()
    with bar(what, max(1, calls * signals_of(plan))) as advance:

        def follow() -> None:
            seen = given = 0
            while not done.wait(PERIOD):
                records = recorder.records[seen:]
                seen += len(records)
                given += sum(r.what == "signal" for r in records)
                advance(given, "")

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
