"""`tilelink report` and `watch`: pages."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tilelink.cli.terminal import (
    Dtype,
    MachineName,
    Name,
    RankCount,
    Schedule,
    Shape,
    case_of,
    console_of,
    first,
    here,
    say,
)


def report(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    machine: MachineName = "8xH200",
    out: Annotated[Path, typer.Option(help="The page: one file, for offline.", metavar="FILE.html")] = Path("report.html"),
) -> None:  # fmt: skip
    """Write one page: plan, proof, emitted file, predicted timeline; on GPUs under torchrun also what was measured."""
    from tilelink.explore.live import report_page
    from tilelink.explore.model import Machine
    from tilelink.explore.running import trace_case

    session, console = here()
    case = case_of(op, shape, rank_count, schedule, dtype, session)
    trace = None if session is None else trace_case(case, session)
    page, proved = report_page(case, Machine.load(machine), trace)
    if first(session):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
        say(console, "report", str(out))
    raise typer.Exit(0 if proved else 1)


def watch(
    op: Name, shape: Shape, rank_count: RankCount = "4", dtype: Dtype = "bf16",
    machine: MachineName = "8xH200",
    port: Annotated[int, typer.Option(help="Of 127.0.0.1; 0: any that is free.", min=0, max=65535)] = 0,
) -> None:  # fmt: skip
    """Serve a page on this machine that follows a file: plan, proof, emitted file, predicted timeline, sliders for schedules."""
    from tilelink.explore.cases import parse_ranks, parse_sizes
    from tilelink.explore.live import Asked, Watched
    from tilelink.explore.model import Machine
    from tilelink.explore.serving import serving

    console = console_of()
    asked = Asked(op, parse_sizes(shape), parse_ranks(rank_count), dtype, Machine.load(machine))
    with serving(Watched(asked), port) as server:
        say(console, "page", f"{server.address}  (Ctrl-C ends it)")
        if asked.file is not None:
            say(console, "runs", f"{asked.file}, on each save; imports: {', '.join(server.watched.imports) or 'none'}")
        with suppress(KeyboardInterrupt):
            server.stopping.wait()
