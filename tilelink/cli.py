"""The command line: `tilelink demo | plan | estimate | verify | emit | run | stress | replay | trace | tune | bench | …`."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from tilelink.errors import TilelinkError
from tilelink.version import __version__

# What a command needs it imports itself: options are explained, and typing errors refused, without the compiler, and plans
# made, proved and emitted without torch.
if TYPE_CHECKING:
    from rich.console import Console

    from tilelink.bench import BenchCase
    from tilelink.explore.cases import Case, Ranks
    from tilelink.explore.running import Outcome
    from tilelink.ir.plan import Plan
    from tilelink.ir.topology import Topology
    from tilelink.pipeline.compiled import Compiled
    from tilelink.pipeline.operator import Operator
    from tilelink.runtime.session import Session
    from tilelink.runtime.simulated.machine import Recorder
    from tilelink.runtime.simulated.scheduler import Policy
    from tilelink.tracing.spans import Lane

R = TypeVar("R", bound="Ranks")


class Target(StrEnum):
    """What a plan is made for."""

    simulated = "simulated"
    h200 = "h200"


class Commands(TyperGroup):
    """Diagnostics are printed as they are rendered, and end the command with 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TilelinkError as error:
            print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
            raise typer.Exit(1) from error


SEARCHED = 20
"""Calls of a search at the least, about."""

DRAWN = "FILE.png|svg|pdf"


def _drawable(path: Path | None) -> Path | None:
    """Before any work: what matplotlib cannot write would be known behind it."""
    if path is not None and path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{path} names no picture: end it in .png, .svg or .pdf")
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


Name = Annotated[str, typer.Argument(metavar="OP", help="An operator of tilelink.ops, or FILE.py:NAME.")]
Shape = Annotated[str, typer.Option(help="Global sizes: MxNxK, or by name M=512,N=512,K=512.", metavar="MxNxK")]
RankCount = Annotated[
    str,
    typer.Option("--ranks", help="Number of ranks; along axes: NODE=2,GPU=2.", metavar="N|AXIS=N,…"),
]
Schedule = Annotated[
    list[str] | None,
    typer.Option("--schedule", help="STEP=PLACEMENT(…), as 'gather=copy_engine(M=128, push=True)'. Repeatable."),
]
Dtype = Annotated[str, typer.Option(help="Of the inputs: bf16, f16 or f32.")]
Delayed = Annotated[bool, typer.Option("--delayed-stores", help="Simulated stores may arrive late, until ordered.")]
On = Annotated[
    str | None, typer.Option(help="A machine by name, as 8xH200, or a file; predict on it.", metavar="NAME|FILE.toml")
]
For = Annotated[Target, typer.Option("--target", help="The device to plan for.")]


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the timeline.")] = Path("out")) -> None:
    """AG+GEMM on four simulated ranks: the derived mapping, the proof, the emitted file, the error, a timeline."""
    from tilelink.explore.cases import Case
    from tilelink.explore.tables import plan_table, verdict_table
    from tilelink.ops import ag_gemm
    from tilelink.runtime.simulated.machine import Recorder
    from tilelink.runtime.simulated.scheduler import Policy
    from tilelink.tracing.spans import lanes_of

    console = _console()
    case = Case(ag_gemm, (("M", 512), ("N", 512), ("K", 512)), ranks=4)
    stages = case.compiled(_topology(Target.simulated, case))
    _head(console, case)
    console.print(plan_table(stages.plan))
    console.print(verdict_table(stages.verdict))
    _say(console, "emitted file", str(_emitted_file(stages)))
    recorder = Recorder()
    outcome = _run(case, stages, recorder, calls=1, policy=Policy())
    good = _report(console, case, outcome)
    lanes = lanes_of(recorder.records, stages.plan, stages.source)
    _say(console, "timeline", str(_timeline(case, lanes, out / f"{case.operator.name}-timeline.png")))
    raise typer.Exit(0 if good else 1)


@app.command()
def emit(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    target: For = Target.simulated,
) -> None:  # fmt: skip
    """Print the emitted Triton file."""
    case = _case(op, shape, rank_count, schedule, dtype)
    text = case.compiled(_topology(target, case)).source.text
    if sys.stdout.isatty():
        from rich.syntax import Syntax

        _console().print(Syntax(text, "python", background_color="default"))
    else:
        print(text, end="")


@app.command()
def plan(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    target: For = Target.simulated,
    verify: Annotated[bool, typer.Option(help="Prove it first.")] = True,
    picture: Annotated[Path | None, typer.Option(help="Draw the order of tiles.", metavar=DRAWN, callback=_drawable)] = None,
    machine: On = None,
) -> None:  # fmt: skip
    """Print the derived mapping: tiles, orders, owners, channels, credits, the steps of a call, and how long it may take."""
    from tilelink.explore.tables import plan_table

    console, case = _console(), _case(op, shape, rank_count, schedule, dtype)
    topology = _on(machine, case) if machine is not None else _topology(target, case)
    made = case.compiled(topology).plan if verify else case.unproven(topology)
    _head(console, case)
    console.print(plan_table(made))
    if machine is not None:
        _estimate(console, made, machine)
    if picture is not None:
        from tilelink.explore.tiles import mapping_picture

        _say(console, "picture", str(mapping_picture(made, picture)))


@app.command()
def estimate(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16", machine: On = "8xH200",
) -> None:  # fmt: skip
    """Predict how long a call takes on a machine, what its executors do until then, and how far that is from the bound."""
    console, case = _console(), _case(op, shape, rank_count, schedule, dtype)
    _head(console, case)
    _estimate(console, case.unproven(_on(machine or "8xH200", case)), machine or "8xH200")


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option(help="The file to write.", metavar="FILE.toml")],
    name: Annotated[str, typer.Option(help="What to call the machine; default: as the file.")] = "",
) -> None:
    """Measure the GPU at hand, and under torchrun the links between several, for `--machine FILE.toml`."""
    import torch

    from tilelink.bench.calibration import calibrate as measured
    from tilelink.bench.calibration import file_of
    from tilelink.cost.machine import parse

    session, console = _here()
    gpu, found = measured(session)
    major, minor = torch.cuda.get_device_capability()
    text = file_of(name or out.stem, gpu, 10 * major + minor, session.backend.ranks if session else 1, found)
    parse(text, str(out))
    for figure, value in found.items():
        _say(console, figure, f"{value.value:.4g}  {value.said}")
    if not console.quiet:
        out.write_text(text, encoding="utf-8")
    _say(console, "machine", str(out))


@app.command()
def verify(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    target: For = Target.simulated,
    picture: Annotated[Path | None, typer.Option(help="Draw what goes wrong.", metavar=DRAWN, callback=_drawable)] = None,
    certificate: Annotated[Path | None, typer.Option(help="Write what is proved as JSON, for a checker of its own.")] = None,
    emitted: Annotated[bool, typer.Option("--emitted", help="Run the file on simulated ranks, and compare.")] = False,
) -> None:  # fmt: skip
    """Prove the plan, or print the diagnostic on the line of the tile program, with what can go wrong, and end with 1."""
    from tilelink.explore.tables import verdict_table
    from tilelink.ir.certificate import certificate as text_of
    from tilelink.mapping.lower import lower

    console, case = _console(), _case(op, shape, rank_count, schedule, dtype)
    topology = _topology(target, case)
    verdict = case.verdict(topology)
    console.print(verdict_table(verdict))
    if certificate is not None:
        made = case.unproven(topology)
        if not made.unverified:
            certificate.write_text(text_of(lower(made)), encoding="utf-8")
        raw = f"none, since `{made.unverified[0]}` uses raw pointers" if made.unverified else str(certificate)
        _say(console, "certificate", raw)
    if picture is not None and verdict.counterexample is not None:
        from tilelink.explore.interleaving import counterexample_picture

        _say(console, "picture", str(counterexample_picture(verdict.counterexample, picture)))
    if verdict.error is not None:
        print(verdict.error, file=sys.stderr)
    refused = "refused" if verdict.error is not None else "not verified"
    _say(console, "verdict", "proved" if verdict.ok else refused)
    validation = case.validation(topology) if emitted and verdict.ok else None
    if validation is not None:
        print(validation)
        if validation.error is not None:
            print(validation.error, file=sys.stderr)
    raise typer.Exit(0 if verdict.ok and (validation is None or validation.ok) else 1)


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
) -> None:  # fmt: skip
    """Run it and compare with torch in fp32: on GPUs under torchrun, which sets the number of ranks; else simulated."""
    from tilelink.explore.extent import extent
    from tilelink.explore.running import run_case
    from tilelink.runtime.simulated.machine import Recorder
    from tilelink.runtime.simulated.scheduler import Policy
    from tilelink.tracing.chrome import write_trace
    from tilelink.tracing.spans import lanes_of

    session, console = _here()
    case = _case(op, shape, rank_count, schedule, dtype, session)
    _head(console, case)
    if session is not None:
        if timeline is not None or trace is not None:
            option = "--trace" if timeline is None else "--timeline"
            raise TilelinkError(
                "TL707",
                f"{option} without a trace",
                why="only the simulated backend keeps one of each run",
                hint="`tilelink trace` draws what GPUs did",
            )
        good = _report(console, case, run_case(case, session, calls=calls, check=check), check)
        raise typer.Exit(0 if good else 1)
    stages = case.compiled(_topology(Target.simulated, case))
    _say(console, "simulated", extent(case, calls, "" if calls == 1 else f", {calls} calls"))
    recorder = Recorder()
    turns = Policy.parse(policy) if policy is not None else Policy(seed=seed)
    good = _report(console, case, _run(case, stages, recorder, calls, turns, delayed_stores, check), check)
    lanes = lanes_of(recorder.records, stages.plan, stages.source) if timeline or trace else ()
    if timeline is not None:
        _say(console, "timeline", str(_timeline(case, lanes, timeline)))
    if trace is not None:
        _say(console, "trace", str(write_trace(trace, lanes, stages.source)))
    raise typer.Exit(0 if good else 1)


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

    console, case = _console(), _case(op, shape, rank_count, schedule, dtype)
    _head(console, case)
    _say(console, "simulated", extent(case, runs * calls, f", {calls} calls under each of {runs} schedules"))
    done = try_many(
        case, runs=runs, calls=calls, first=seed, preemptions=preemptions, delayed_stores=delayed_stores, check=check
    )
    right = "all right" if check and against(case) else "without race or deadlock, results not compared"
    _say(console, "schedules", f"{done.runs}, {right}" + (", and there are no more" if done.complete else ""))


@app.command()
def replay(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="What a failed simulated run has printed.")],
    file: Annotated[Path | None, typer.Option(help="Runs, and has the operator, if no tilelink.ops.", metavar="FILE.py")] = None,
) -> None:  # fmt: skip
    """Simulate a run once more, exactly: the same operator, data, ranks, schedule and turns."""
    from tilelink.explore.replay import Recipe
    from tilelink.explore.running import run_case
    from tilelink.runtime.simulated.scheduler import Policy

    made = Recipe.parse(token)
    case, policy, console = made.case(file), Policy.parse(made.policy), _console()
    _head(console, case)
    _say(console, "policy", str(policy) + (", stores delayed" if made.delayed_stores else ""))
    outcome = run_case(case, calls=made.calls, policy=policy, delayed_stores=made.delayed_stores)
    raise typer.Exit(0 if _report(console, case, outcome) else 1)


@app.command()
def trace(
    op: Name, shape: Shape, rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    picture: Annotated[Path, typer.Option(help="The timeline.", metavar=DRAWN, callback=_drawable)] = Path("trace.png"),
    perfetto: Annotated[Path, typer.Option(help="The same for ui.perfetto.dev, as JSON.")] = Path("trace.json"),
) -> None:  # fmt: skip
    """Say what every SM did when, from inside the kernels: on GPUs under torchrun; else simulated."""
    from tilelink.explore.report_tables import totals_sheet
    from tilelink.explore.running import trace_case
    from tilelink.explore.tables import tables

    session, console = _here()
    case = _case(op, shape, rank_count, schedule, dtype, session)
    _head(console, case)
    found = trace_case(case, session)
    console.print(tables([totals_sheet(found)]))
    untraced = found.ms_untraced
    cost = "simulated" if untraced is None else f"traced; {untraced:.4f} ms untraced: {found.cost:+.1%}"
    _say(console, "time", f"{found.ms:.4f} ms a call, with its launches, {cost}")
    if not console.quiet:
        _say(console, "timeline", str(found.picture(picture)))
        _say(console, "trace", str(found.chrome(perfetto)))


@app.command()
def tune(
    op: Name,
    shape: Annotated[str | None, typer.Option(help="Global sizes, instead of its own cases.", metavar="MxNxK")] = None,
    cases: Annotated[str, typer.Option("--case", help="Only cases whose name begins so, as MLP-1.")] = "",
    tokens: Annotated[str, typer.Option(help="Rows instead of each case's own: 64,128 or sweep.")] = "",
    rank_count: RankCount = "4", dtype: Dtype = "bf16",
    budget: Annotated[float, typer.Option(help="Seconds of search for each case.", min=0)] = 60.0,
    fresh: Annotated[bool, typer.Option(help="Measure again what the cache has.")] = False,
    table: Annotated[Path | None, typer.Option(help="Put the results into this table, as the package ships one.")] = None,
) -> None:  # fmt: skip
    """Search for the fastest schedule of a case; kept in a cache on disk. On GPUs under torchrun; else simulated."""
    from tilelink.bench import SUBJECTS, BenchCase, commit
    from tilelink.explore.cases import Case, names_of, parse_ranks, parse_sizes, topology_of
    from tilelink.explore.extent import extent
    from tilelink.explore.naming import operator_named
    from tilelink.explore.report_tables import tuned_sheet
    from tilelink.explore.running import tune_case
    from tilelink.explore.tables import tables
    from tilelink.tuning.tables import merge

    session, console = _here()
    ranks = _ranks(session, parse_ranks(rank_count))
    if shape is None and op not in SUBJECTS:
        raise TilelinkError("TL708", f"`{op}` has no cases of its own", hint="give --shape")
    count = topology_of(ranks).ranks
    found = (
        [BenchCase(shape, dict(parse_sizes(shape, names_of(operator_named(op)))))]
        if shape
        else _bench_cases(op, None, cases, tokens, count, False)
    )
    for each in found:
        case = Case(operator_named(op), tuple(each.sizes.items()), ranks, dtype)
        if session is None:
            _say(console, "simulated", extent(case, SEARCHED, ", under each schedule that is tried"))
        entry, report = tune_case(case, session, budget=budget, fresh=fresh)
        console.print(tables([tuned_sheet(each.name, entry, report)]))
        if table is not None and not console.quiet:
            noted = replace(entry, measured=f"{entry.measured}, {commit()}")
            _say(console, "table", str(merge(table, [noted])))


@app.command("bench")
def bench_command(
    op: Annotated[list[str] | None, typer.Argument(metavar="OP…", help="Those of --list, or all.")] = None,
    shape: Annotated[str | None, typer.Option(help="Global sizes, instead of its own cases.", metavar="MxNxK")] = None,
    cases: Annotated[str, typer.Option("--case", help="Only cases whose name begins so, as MLP-1.")] = "",
    tokens: Annotated[str, typer.Option(help="Rows instead of each case's own: 64,128 or sweep.")] = "",
    rank_count: Annotated[int, typer.Option("--ranks", help="Number of ranks.", min=1)] = 4, schedule: Schedule = None,
    also: Annotated[list[str] | None, typer.Option(help="'NAME: STEP=PLACEMENT; …': compare this too.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds, in each of which every contender runs once.", min=1)] = 20,
    seconds: Annotated[float, typer.Option(help="Seconds after which no further round of a case begins.")] = 15.0,
    budget: Annotated[float, typer.Option(help="Seconds after which no further case of an operator begins.")] = 600.0,
    out: Annotated[Path | None, typer.Option(help="Write the rows: a .json file, or a folder for one each.")] = None,
    known: Annotated[bool, typer.Option("--list", help="Say what can be measured, against what.")] = False,
) -> None:  # fmt: skip
    """Compare with cuBLAS, NCCL and torch, interleaved in one run: on GPUs under torchrun; else simulated."""
    from tilelink.bench import SUBJECTS, Options, Row, bench, report, save, subjects_sheet, summary
    from tilelink.explore.tables import tables

    session, console = _here()
    ranks = _ranks(session, rank_count)
    if known or not op:
        console.print(tables([subjects_sheet(ranks)]))
        raise typer.Exit(0 if known else 2)
    ops_asked = list(SUBJECTS) if op == ["all"] else op
    _askable(ops_asked, shape or schedule, out)
    rows: list[Row] = []
    for name in ops_asked:
        subject = SUBJECTS[name]
        found = bench(
            name, subject, _bench_cases(name, shape, cases, tokens, ranks, session is None),
            _variants(subject.operator, schedule or [], also or [], several=len(ops_asked) > 1),
            Options(rounds if session is not None else 1, seconds, budget), session=session, ranks=ranks,
            say=lambda row: console.print(f"{row.case}: {row.schedule}", style="dim", markup=False),
        )  # fmt: skip
        console.print(report(name, found))
        if out is not None and not console.quiet:
            path = out if out.suffix == ".json" else out / f"bench-{name}-{ranks}.json"
            _say(console, "rows", str(save(path, found)))
        rows += found
    console.print(tables([summary(rows)]))
    raise typer.Exit(0 if all(row.right for row in rows) else 1)


# ------------------------------------------------------------------------------------------------- from text to a case
def _askable(names: list[str], special: Any, out: Path | None) -> None:
    """Raises TL708: there is no such benchmark, or what is said of one operator is said of several."""
    from tilelink.bench import SUBJECTS

    for name in names:
        if name not in SUBJECTS:
            why = f"those that have: {', '.join(SUBJECTS)}"
            raise TilelinkError("TL708", f"`{name}` has no benchmark", why=why, hint="name some of them, or all")
    if len(names) > 1 and special:
        raise TilelinkError("TL708", "a shape or a schedule for several operators", hint="measure one operator")
    if len(names) > 1 and out is not None and out.suffix == ".json":
        raise TilelinkError("TL708", f"rows of several operators for the one file `{out}`", hint="name a folder")


def _bench_cases(op: str, shape: str | None, prefix: str, tokens: str, ranks: int, alone: bool) -> list[BenchCase]:
    from tilelink.bench import SUBJECTS, case_of, sweep
    from tilelink.explore.cases import parse_sizes

    subject = SUBJECTS[op]
    if shape is not None:
        return [case_of(op, subject, dict(parse_sizes(shape)))]
    if alone:  # the simulated backend would take hours over an MLP
        return [case_of(op, subject, subject.small)]
    if tokens and not subject.rows:
        raise TilelinkError("TL708", f"the cases of `{op}` have no number of tokens", hint="leave --tokens out")
    rows = sweep(ranks) if tokens == "sweep" else tuple(int(t) for t in tokens.split(",") if t)
    found = subject.cases(ranks, rows)
    if not any(c.name.startswith(prefix) for c in found):
        why = f"it has {', '.join(c.name for c in found)}"
        raise TilelinkError("TL708", f"`{op}` has no case `{prefix}`", why=why, hint="give the beginning of a name")
    return [c for c in found if c.name.startswith(prefix)]


def _variants(
    operator: Operator | None, schedule: list[str], also: list[str], *, several: bool = False
) -> dict[str, Operator]:
    """Ours and further schedules of it, by name; those for steps of another one of several operators are missing there."""
    from tilelink.bench import OURS
    from tilelink.explore.placements import parse_placements

    if operator is None:
        if schedule or (also and not several):
            raise TilelinkError(
                "TL708", "a schedule for what is made of several operators", hint="leave --schedule and --also out"
            )
        return {}
    ours = operator.schedule(parse_placements(schedule))
    further: dict[str, Operator] = {}
    for text in also:
        name, _, entries = text.partition(":")
        further[name.strip()] = ours.schedule(parse_placements([e for e in entries.split(";") if e.strip()], "--also"))
    return {OURS: ours} | further


def _case(
    op: str, shape: str, ranks: str, schedule: list[str] | None, dtype: str, session: Session | None = None
) -> Case:
    """`session`: of `torchrun`, whose number of ranks counts."""
    from tilelink.explore.cases import Case, names_of, parse_ranks, parse_sizes
    from tilelink.explore.naming import operator_named
    from tilelink.explore.placements import parse_placements

    asked = _ranks(session, parse_ranks(ranks))
    operator = operator_named(op).schedule(parse_placements(schedule or []))
    return Case(operator, parse_sizes(shape, names_of(operator)), asked, dtype)


def _topology(target: Target, case: Case) -> Topology:
    from tilelink.ir.topology import Device

    if target is Target.simulated:
        return case.topology
    device = Device(name="NVIDIA H200", sms=132, capability=90, copy_engines=3)
    return replace(case.topology, backend="peer", device=device)


def _on(machine: str, case: Case) -> Topology:
    """As many of the machine's GPUs as the case has ranks."""
    from tilelink.explore.model import Machine

    return replace(case.topology, backend="peer", device=Machine.load(machine).device())


# ------------------------------------------------------------------------------------------------- running and reporting
def _estimate(console: Console, plan: Plan, machine: str) -> None:
    """What the cost model says of a plan."""
    from tilelink.explore.model import Machine, bound

    on = Machine.load(machine)
    found = bound(plan, on)
    _say(
        console,
        "machine",
        f"{on.name}: {sum(s.startswith('fitted') for _, s in on.sources)} figures fitted, others said",
    )
    _say(console, "predicted", f"{found.prediction.us:.1f} µs")
    for executor, end in found.prediction.ends.items():
        _say(console, executor, f"{found.prediction.begins[executor].min():.1f} to {end.max():.1f} µs")
    for limit in found.limits:
        _say(console, limit.resource, f"at least {limit.us:.1f} µs, on rank {limit.rank}")
    _say(console, "bound", str(found))


def _run(
    case: Case,
    compiled: Compiled,
    recorder: Recorder,
    calls: int,
    policy: Policy,
    delayed_stores: bool = False,
    check: bool = True,
) -> Outcome:
    """A simulated run under a bar."""
    from tilelink.explore.progress import watched
    from tilelink.explore.running import run_case

    with watched(f"{case.operator.name} on {case.topology.ranks} simulated ranks", compiled.plan, recorder, calls):
        return run_case(case, calls=calls, policy=policy, delayed_stores=delayed_stores, recorder=recorder, check=check)


def _report(console: Console, case: Case, outcome: Outcome, check: bool = True) -> bool:
    """Print an outcome; whether it is right as far as one looked."""
    from tilelink.explore.comparison import hint_of

    good = True
    if check and outcome.against is not None:
        good = outcome.within(case.tolerance)
        _say(console, "reference", outcome.against)
        _say(console, "error", f"{outcome.worst:.2e} relative Frobenius norm, at most {case.tolerance:.0e}")
    elif check:
        _say(console, "error", "not compared: no product of two tensors, and no unfused form for such inputs")
    _say(console, "wall time", f"{outcome.seconds:.2f} s")
    if not good:
        _say(console, "result", f"differs from {outcome.against}")
        _say(console, "", hint_of(case))
        for line in outcome.again:
            _say(console, "", line)
    return good


def _emitted_file(compiled: Compiled) -> Path:
    from tilelink.runtime.kernels import load

    source = compiled.source
    module = load(source.text, source.digest, source.name, source.lines, source.advice)
    assert module.__file__ is not None
    return Path(module.__file__)


def _timeline(case: Case, lanes: tuple[Lane, ...], path: Path) -> Path:
    from tilelink.tracing.timeline import timeline_picture
    from tilelink.tracing.trace import SIMULATED

    return timeline_picture(lanes, path, f"{case.operator.name}: {case}", SIMULATED)


def _console(quiet: bool = False) -> Console:
    """Wide enough for tables where nobody sees the edge."""
    from rich.console import Console

    return Console(quiet=quiet, width=None if sys.stdout.isatty() else 140, highlight=False)


def _here() -> tuple[Session | None, Console]:
    """The session of `torchrun`, if that has started this, and a console that is rank 0's alone."""
    from tilelink.runtime.session import current

    session = current()
    return session, _console(quiet=session is not None and session.backend.rank != 0)


def _ranks(session: Session | None, asked: R) -> R | int:
    """The ranks that there are, or the axes that they are to lie along."""
    return session.backend.ranks if session is not None and isinstance(asked, int) else asked


def _head(console: Console, case: Case) -> None:
    console.print(case.operator.name, style="bold", end="  ")
    console.print(f"{case.operator.signature}  ({case})\n", markup=False)


def _say(console: Console, what: str, text: str) -> None:
    console.print(f"{what:>14}  ", style="dim", end="")
    console.print(text, markup=False, soft_wrap=True)


if __name__ == "__main__":
    app()
