"""A trace for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilelink.ir.kernel import KernelSource
from tilelink.tracing.spans import Kind, Lane, Span

COLOURS: dict[Kind, str] = {
    "compute": "good",
    "compute + communicate": "rail_animation",
    "communicate": "bad",
    "wait": "generic_work",
    "set up": "grey",
}
"""Names of the trace viewer's palette."""


def trace_events(lanes: Sequence[Lane], source: KernelSource | None = None) -> list[dict[str, Any]]:
    """Events in Chrome's trace format: a process per rank, a thread per lane, microseconds.

    Args:
        source: the emitted file, from which spans get the user's line.
    """
    events: list[dict[str, Any]] = []
    for rank in sorted({lane.rank for lane in lanes}):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for thread, lane in enumerate([lane for lane in lanes if lane.rank == rank]):
            here = {"pid": rank, "tid": thread}
            title = lane.label if lane.worker is None else f"{lane.place}: {lane.label}"
            events.append({"ph": "M", "name": "thread_name", **here, "args": {"name": title}})
            events += [_event(span, source) | here for span in lane.spans]
    return events


def write_trace(path: Path, lanes: Sequence[Lane], source: KernelSource | None = None) -> Path:
    """The events as a JSON file, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": trace_events(lanes, source), "displayTimeUnit": "ns"}) + "\n")
    return path


def _event(span: Span, source: KernelSource | None) -> dict[str, Any]:
    args: dict[str, Any] = {"kind": span.kind}
    if span.detail:
        args["detail"] = span.detail
    if span.line:
        args["emitted line"] = span.line
        loc = source.location(span.line) if source is not None else None
        if loc is not None:
            args["line"] = str(loc)
    return {
        "ph": "X",
        "name": f"wait in {span.name}" if span.kind == "wait" else span.name,
        "cat": span.kind,
        "cname": COLOURS[span.kind],
        "ts": span.begin,
        "dur": span.end - span.begin,
        "args": args,
    }
