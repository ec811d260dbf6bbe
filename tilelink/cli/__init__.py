"""The command line, `tilelink`: what it plans, proves, emits, runs, draws, watches, searches and measures.

Takes: words of a shell. Gives: tables, files, one JSON object, a status.
Knows: every room below, none of it before a command needs it.
Never knows: how a plan is made, proved or run.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilelink.cli import looking, predicting, searching
from tilelink.cli.terminal import (
    Answered,
    Commands,
    Dtype,
    Json,
    MaybeMachine,
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
from tilelink.errors import TilelinkError
from tilelink.version import __version__

# What a command needs it imports itself: options are explained, and typing errors refused, without the compiler, and plans
# made, proved and emitted without torch.
if TYPE_CHECKING:
    from rich.console import Console

    from tilelink.explore.cases import Case
    from tilelink.explore.running import Outcome
    from tilelink.ir.topology import Topology
    from tilelink.runtime.simulated.machine import Recorder
    from tilelink.tracing.spans import Lane


class Target(StrEnum):
    """What a plan is made for."""

    simulated = "simulated"
    h200 = "h200"


DRAWN = "FILE.svg|html"


def _drawable(path: Path | None) -> Path | None:
    """Before any work: what cannot be written would be known behind it."""
    if path is not None and path.suffix.lower() not in (".svg", ".html"):
        raise typer.BadParameter(f"{path} names no picture: end it in .svg, or in .html for zoom")
    return path


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        print(f"tilelink {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Say which it is.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Tile programs whose communication hides behind computation: planned, proved, emitted, run, measured."""


Delayed = Annotated[bool, typer.Option("--delayed-stores", help="Simulated stores may arrive late, until ordered.")]
For = Annotated[Target, typer.Option("--target", help="The device to plan for.")]


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the timeline.")] = Path("out")) -> None:
    """AG+GEMM on four simulated ranks: the derived mapping, the proof, the emitted file, the error, a timeline."""
    from tilelink.explore.cases import Case
    from tilelink.explore.report_tables import plan_sheets, verdict_sheets
    from tilelink.explore.tables import tables
    from tilelink.ops import ag_gemm
    from tilelink.runtime.kernels import load
    from tilelink.runtime.simulated.machine import Recorder
    from tilelink.tracing.spans import lanes_of

    console = console_of()
    case = Case(ag_gemm, (("M", 512), ("N", 512), ("K", 512)), ranks=4)
    stages = case.compiled(case.topology)
    head(console, case)
    console.print(tables([*plan_sheets(stages.plan), *verdict_sheets(stages.verdict)]))
    say(console, "emitted file", str(load(stages.source).__file__))
    recorder = Recorder()
    outcome = _run(case, recorder, calls=1, policy="random-0")
    good = _report(console, case, outcome)
    lanes = lanes_of(recorder.records, stages.plan, stages.source)
    say(console, "timeline", str(_timeline(case, lanes, out / f"{case.operator.name}-timeline.html")))
    raise typer.Exit(0 if good else 1)


@app.command()
def emit(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    target: For = Target.simulated,
) -> None:  # fmt: skip
    """Print the emitted Triton file."""
    case = case_of(op, shape, rank_count, schedule, dtype)
    text = case.compiled(_topology(target, case)).source.text
    if sys.stdout.isatty():
        from rich.syntax import Syntax

        console_of().print(Syntax(text, "python", background_color="default"))
    else:
        print(text, end="")


@app.command()
def plan(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    target: For = Target.simulated,
    verify: Annotated[bool, typer.Option(help="Prove it first.")] = True,
    picture: Annotated[Path | None, typer.Option(help="Draw the order of tiles.", metavar=DRAWN, callback=_drawable)] = None,
    machine: MaybeMachine = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Print the derived mapping: tiles, orders, owners, channels, credits, the steps of a call, and how long it may take."""
    from tilelink.cost import Machine
    from tilelink.explore.documents import asked, plan_document
    from tilelink.explore.report_tables import plan_sheets
    from tilelink.explore.tables import tables

    console, case = console_of(quiet=as_json), case_of(op, shape, rank_count, schedule, dtype)
    on = Machine.load(machine) if machine is not None else None
    topology = case.topology_on(on) if on is not None else _topology(target, case)
    made = case.compiled(topology).plan if verify else case.unproven(topology)
    head(console, case)
    console.print(tables(plan_sheets(made)))
    if on is not None:
        predicting.say_estimate(console, made, on)
    if picture is not None:
        from tilelink.explore.views import tiles_svg, written

        say(console, "picture", str(written(picture, case.operator.name, tiles_svg(made))))
    raise Answered({**asked(case), "ok": True, **plan_document(made)})


@app.command()
def verify(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    target: For = Target.simulated,
    picture: Annotated[Path | None, typer.Option(help="Draw what goes wrong.", metavar=DRAWN, callback=_drawable)] = None,
    certificate: Annotated[Path | None, typer.Option(help="Write what is proved as JSON, for a checker of its own.")] = None,
    emitted: Annotated[bool, typer.Option("--emitted", help="Run the file on simulated ranks, and compare.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Prove the plan, or print the diagnostic on the line of the tile program, with what can go wrong, and end with 1."""
    from tilelink.explore.documents import asked, verdict_document
    from tilelink.explore.report_tables import verdict_sheets
    from tilelink.explore.tables import tables
    from tilelink.ir.certificate import certificate as text_of
    from tilelink.mapping.lower import lower

    console, case = console_of(quiet=as_json), case_of(op, shape, rank_count, schedule, dtype)
    topology = _topology(target, case)
    verdict = case.verdict(topology)
    console.print(tables(verdict_sheets(verdict)))
    if certificate is not None:
        made = case.unproven(topology)
        if not made.unverified:
            certificate.write_text(text_of(lower(made)), encoding="utf-8")
        raw = f"none, since `{made.unverified[0]}` uses raw pointers" if made.unverified else str(certificate)
        say(console, "certificate", raw)
    if picture is not None and verdict.counterexample is not None:
        from tilelink.explore.views import counterexample_svg, written

        say(console, "picture", str(written(picture, case.operator.name, counterexample_svg(verdict.counterexample))))
    if verdict.error is not None:
        print(verdict.error, file=sys.stderr)
    say(console, "verdict", verdict.said)
    validation = case.validation(topology) if emitted and verdict.ok else None
    if validation is not None:
        print(validation)
        if validation.error is not None:
            print(validation.error, file=sys.stderr)
    raise Answered({**asked(case), **verdict_document(verdict, validation)})


@app.command()
def run(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    calls: Annotated[int, typer.Option(help="Calls back to back, with other inputs each.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of the simulated backend's scheduler.")] = 0,
    policy: Annotated[str | None, typer.Option(help="Whose turn it is in the simulated backend, as priorities-7.")] = None,
    delayed_stores: Delayed = False,
    check: Annotated[bool, typer.Option(help="Compare with the product that the signature states, or the unfused form.")] = True,
    timeline: Annotated[Path | None, typer.Option(help="Draw the simulated run.", metavar=DRAWN, callback=_drawable)] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the simulated run for ui.perfetto.dev, as JSON.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run it and compare with torch in fp32: on GPUs under torchrun, which sets the number of ranks; else simulated."""
    from tilelink.explore.documents import asked, outcome_document
    from tilelink.explore.extent import extent
    from tilelink.explore.running import run_case
    from tilelink.runtime.simulated.machine import Recorder
    from tilelink.tracing.chrome import write_trace
    from tilelink.tracing.spans import lanes_of

    session, console = here(as_json)
    case = case_of(op, shape, rank_count, schedule, dtype, session)
    head(console, case)
    if session is not None and (timeline is not None or trace is not None):
        option = "--trace" if timeline is None else "--timeline"
        raise TilelinkError(
            "TL707",
            f"{option} without a trace",
            why="only the simulated backend keeps one of each run",
            hint="`tilelink trace` draws what GPUs did",
        )
    recorder = Recorder()
    if session is None:
        say(console, "simulated", extent(case, calls, "" if calls == 1 else f", {calls} calls"))
        outcome = _run(case, recorder, calls, policy or f"random-{seed}", delayed_stores, check)
    else:
        outcome = run_case(case, session, calls=calls, check=check)
    good = _report(console, case, outcome, check)
    if timeline is not None or trace is not None:
        made = case.compiled(case.topology)
        lanes = lanes_of(recorder.records, made.plan, made.source)
        if timeline is not None:
            say(console, "timeline", str(_timeline(case, lanes, timeline)))
        if trace is not None:
            say(console, "trace", str(write_trace(trace, lanes, made.source)))
    raise Answered({**asked(case), **outcome_document(outcome, case.tolerance, good)}, session)


@app.command()
def stress(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    runs: Annotated[int, typer.Option(help="Schedules to try.", min=1)] = 30,
    calls: Annotated[int, typer.Option(help="Calls back to back in each.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="To begin with.", min=0)] = 0,
    preemptions: Annotated[int | None, typer.Option(help="Search all schedules of so many.", min=0)] = None,
    delayed_stores: Delayed = False,
    check: Annotated[bool, typer.Option(help="Compare results, as `run` does.")] = True,
) -> None:  # fmt: skip
    """Simulate it under many schedules until one goes wrong: by chance, with stragglers, by priorities."""
    from tilelink.explore.comparison import against
    from tilelink.explore.extent import extent
    from tilelink.explore.stress import stress as try_many

    console, case = console_of(), case_of(op, shape, rank_count, schedule, dtype)
    head(console, case)
    say(console, "simulated", extent(case, runs * calls, f", {calls} calls under each of {runs} schedules"))
    done = try_many(
        case, runs=runs, calls=calls, first=seed, preemptions=preemptions, delayed_stores=delayed_stores, check=check
    )
    right = "all right" if check and against(case) else "without race or deadlock, results not compared"
    say(console, "schedules", f"{done.runs}, {right}" + (", and there are no more" if done.complete else ""))


@app.command()
def replay(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="What a failed simulated run has printed.")],
    file: Annotated[Path | None, typer.Option(help="Runs, and has the operator, if no tilelink.ops.", metavar="FILE.py")] = None,
) -> None:  # fmt: skip
    """Simulate a run once more, exactly: the same operator, data, ranks, schedule and turns."""
    from tilelink.explore.replay import Recipe
    from tilelink.explore.running import run_case
    from tilelink.runtime.simulated.scheduler import turns_of

    made = Recipe.parse(token)
    case, turns, console = made.case(file), turns_of(made.policy), console_of()
    head(console, case)
    say(console, "policy", str(turns) + (", stores delayed" if made.delayed_stores else ""))
    outcome = run_case(case, calls=made.calls, policy=turns, delayed_stores=made.delayed_stores)
    raise typer.Exit(0 if _report(console, case, outcome) else 1)


@app.command()
def trace(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    picture: Annotated[Path, typer.Option(help="The timeline.", metavar=DRAWN, callback=_drawable)] = Path("trace.html"),
    perfetto: Annotated[Path, typer.Option(help="The same for ui.perfetto.dev, as JSON.")] = Path("trace.json"),
    as_json: Json = False,
) -> None:  # fmt: skip
    """Say what every SM did when, from inside the kernels: on GPUs under torchrun; else simulated."""
    from tilelink.explore.documents import asked, trace_document
    from tilelink.explore.report_tables import totals_sheet
    from tilelink.explore.running import trace_case
    from tilelink.explore.tables import tables
    from tilelink.explore.views import written

    session, console = here(as_json)
    case = case_of(op, shape, rank_count, schedule, dtype, session)
    head(console, case)
    found = trace_case(case, session)
    console.print(tables([totals_sheet(found)]))
    untraced = found.ms_untraced
    cost = "simulated" if untraced is None else f"traced; {untraced:.4f} ms untraced: {found.cost:+.1%}"
    say(console, "time", f"{found.ms:.4f} ms a call, with its launches, {cost}")
    if first(session):
        say(console, "timeline", str(written(picture, case.operator.name, found.svg())))
        say(console, "trace", str(found.chrome(perfetto)))
    files = {"picture": str(picture), "perfetto": str(perfetto)}
    raise Answered({**asked(case), "ok": True, **trace_document(found), **files}, session)


app.command()(looking.report)
app.command()(looking.watch)
app.command()(predicting.estimate)
app.command()(predicting.calibrate)
app.command()(searching.tune)
app.command()(searching.anomalies)
app.command()(searching.bench)


# ------------------------------------------------------------------------------------------------- from text to a case
def _topology(target: Target, case: Case) -> Topology:
    from tilelink.cost import H200

    return case.topology if target is Target.simulated else case.topology_on(H200)


# ------------------------------------------------------------------------------------------------- running and reporting
def _run(
    case: Case, recorder: Recorder, calls: int, policy: str, delayed_stores: bool = False, check: bool = True
) -> Outcome:
    """A simulated run under a bar."""
    from tilelink.explore.progress import watched
    from tilelink.explore.running import run_case

    plan = case.compiled(case.topology).plan
    with watched(f"{case.operator.name} on {case.topology.ranks} simulated ranks", plan, recorder, calls):
        return run_case(case, calls=calls, policy=policy, delayed_stores=delayed_stores, recorder=recorder, check=check)


def _report(console: Console, case: Case, outcome: Outcome, check: bool = True) -> bool:
    """Print an outcome; whether it is right as far as one looked."""
    from tilelink.explore.comparison import hint_of

    good = True
    if check and outcome.against is not None:
        good = outcome.within(case.tolerance)
        say(console, "reference", outcome.against)
        say(console, "error", f"{outcome.worst:.2e} relative Frobenius norm, at most {case.tolerance:.0e}")
    elif check:
        say(console, "error", "not compared: no product of two tensors, and no unfused form for such inputs")
    say(console, "wall time", f"{outcome.seconds:.2f} s")
    if not good:
        say(console, "result", f"differs from {outcome.against}")
        say(console, "", hint_of(case))
        for line in outcome.again:
            say(console, "", line)
    return good


def _timeline(case: Case, lanes: tuple[Lane, ...], path: Path) -> Path:
    from tilelink.explore.views import written
    from tilelink.tracing.timeline import timeline_svg
    from tilelink.tracing.trace import SIMULATED

    title = f"{case.operator.name}: {case}"
    return written(path, case.operator.name, timeline_svg(lanes, title, SIMULATED, axis="simulated time, µs"))
