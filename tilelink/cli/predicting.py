"""`tilelink estimate` and `calibrate`: what the cost model says of a plan, and what it knows of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    head,
    here,
    say,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tilelink.cost import Machine
    from tilelink.ir.plan import Plan


def estimate(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    machine: MachineName = "8xH200",
) -> None:  # fmt: skip
    """Predict how long a call takes on a machine, what its executors do until then, and how far that is from the bound."""
    from tilelink.explore.model import Machine

    console, case, on = console_of(), case_of(op, shape, rank_count, schedule, dtype), Machine.load(machine)
    head(console, case)
    say_estimate(console, case.unproven(case.topology_on(on)), on)


def calibrate(
    out: Annotated[Path, typer.Option(help="The file to write.", metavar="FILE.toml")],
    name: Annotated[str, typer.Option(help="What to call the machine; default: as the file.")] = "",
) -> None:
    """Measure the GPU at hand, and under torchrun the links between several, for `--machine FILE.toml`."""
    import torch

    from tilelink.bench.calibration import calibrate as measured
    from tilelink.bench.calibration import file_of
    from tilelink.cost.machine import parse

    session, console = here()
    gpu, found = measured(session)
    major, minor = torch.cuda.get_device_capability()
    text = file_of(name or out.stem, gpu, 10 * major + minor, session.backend.ranks if session else 1, found)
    parse(text, str(out))
    for figure, value in found.items():
        say(console, figure, f"{value.value:.4g}  {value.said}")
    if first(session):
        out.write_text(text, encoding="utf-8")
    say(console, "machine", str(out))


def say_estimate(console: Console, plan: Plan, machine: Machine) -> None:
    """What the cost model says of a plan."""
    from tilelink.explore.model import bound

    found = bound(plan, machine)
    fitted = sum(source.startswith("fitted") for _, source in machine.sources)
    say(console, "machine", f"{machine.name}: {fitted} figures fitted, others said")
    say(console, "predicted", f"{found.prediction.us:.1f} µs")
    for executor, end in found.prediction.ends.items():
        say(console, executor, f"{found.prediction.begins[executor].min():.1f} to {end.max():.1f} µs")
    for limit in found.limits:
        say(console, limit.resource, f"at least {limit.us:.1f} µs, on rank {limit.rank}")
    say(console, "bound", str(found))
