"""`tilelink tune`, `anomalies` and `bench`: what searches and what measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilelink.cli.terminal import (
    Answered,
    Dtype,
    Json,
    MachineName,
    Name,
    RankCount,
    Schedule,
    console_of,
    first,
    here,
    ranks_of,
    say,
)
from tilelink.errors import TilelinkError

if TYPE_CHECKING:
    from tilelink.bench import BenchCase
    from tilelink.pipeline.operator import Operator

SEARCHED = 20
"""Calls of a search at the least, about."""
OwnShape = Annotated[str | None, typer.Option(help="Global sizes, instead of its own cases.", metavar="MxNxK")]
CaseName = Annotated[str, typer.Option("--case", help="Only cases whose name begins so, as MLP-1.")]
Tokens = Annotated[str, typer.Option(help="Rows instead of each case's own: 64,128 or sweep.")]


def tune(
    op: Name, shape: OwnShape = None, cases: CaseName = "", tokens: Tokens = "",
    rank_count: RankCount = "4", dtype: Dtype = "bf16",
    budget: Annotated[float, typer.Option(help="Seconds of search for each case.", min=0)] = 60.0,
    fresh: Annotated[bool, typer.Option(help="Measure again what the cache has.")] = False,
    table: Annotated[Path | None, typer.Option(help="Put the results into this table, as the package ships one.")] = None,
    on: Annotated[str | None, typer.Option(help="Only look: on the model, simulated ranks or a gpu.", metavar="WHAT")] = None,
    method: Annotated[str | None, typer.Option(help="exhaustive, random, annealing, descent, model or optuna.")] = None,
    trials: Annotated[int, typer.Option(help="Schedules that are tried at most, with --on.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Of methods that draw lots.")] = 0,
    study: Annotated[Path | None, typer.Option(help="Keep trials here, and go on from those that are there.")] = None,
    machine: MachineName = "8xH200", as_json: Json = False,
) -> None:  # fmt: skip
    """Search for the fastest schedule of a case; kept in a cache on disk. On GPUs under torchrun; else simulated.

    With --on nothing is kept but in the file of --study: see docs/exploring.md.
    """
    from tilelink.bench import SUBJECTS, BenchCase, commit
    from tilelink.cost import Machine
    from tilelink.explore.cases import Case, names_of, parse_ranks, parse_sizes, topology_of
    from tilelink.explore.documents import asked, tuned_document
    from tilelink.explore.extent import extent
    from tilelink.explore.naming import operator_named
    from tilelink.explore.report_tables import study_sheet, tuned_sheet
    from tilelink.explore.running import explore_case, tune_case
    from tilelink.explore.tables import tables
    from tilelink.tuning.search import Limits
    from tilelink.tuning.study import on_named
    from tilelink.tuning.tables import merge

    session, console = here(as_json)
    ranks = ranks_of(session, parse_ranks(rank_count))
    if shape is None and op not in SUBJECTS:
        raise TilelinkError("TL708", f"`{op}` has no cases of its own", hint="give --shape")
    if on is None and (method or study):
        option = "--method" if method else "--study"
        raise TilelinkError("TL708", f"{option} without --on", hint="--on model, --on simulated or --on gpu")
    count = topology_of(ranks).ranks
    found = (
        [BenchCase(shape, dict(parse_sizes(shape, names_of(operator_named(op)))))]
        if shape
        else _bench_cases(op, None, cases, tokens, count, False)
    )
    documents: list[dict[str, Any]] = []
    for each in found:
        case = Case(operator_named(op), tuple(each.sizes.items()), ranks, dtype)
        if session is None and on != "model":
            say(console, "simulated", extent(case, SEARCHED, ", under each schedule that is tried"))
        if on is not None:
            limits = Limits(method, budget, trials, seed, study)
            looked = explore_case(case, session, on=on_named(on), limits=limits, machine=Machine.load(machine))
            console.print(tables([study_sheet(each.name, looked)]))
            documents.append({**asked(case), "case": each.name, "study": looked.record()})
            continue
        entry, searched = tune_case(case, session, budget=budget, fresh=fresh)
        console.print(tables([tuned_sheet(each.name, entry, searched)]))
        documents.append({**asked(case), **tuned_document(each.name, entry, searched)})
        if table is not None and first(session):
            noted = replace(entry, measured=f"{entry.measured}, {commit()}")
            say(console, "table", str(merge(table, [noted])))
    raise Answered({"ok": True, "cases": documents}, session)


def anomalies(
    op: Name,
    shape: Annotated[str, typer.Option(help="Ranges of global sizes, or one size each.", metavar="M=256:16384,N=…")],
    rank_count: RankCount = "4", schedule: Schedule = None, dtype: Dtype = "bf16",
    machine: MachineName = "8xH200",
    shapes: Annotated[int, typer.Option(help="To look at, at most.", min=1)] = 200,
    budget: Annotated[float, typer.Option(help="Seconds.", min=0)] = 60.0,
    far: Annotated[float, typer.Option(help="Share of the bound from which a gap is one.", min=0)] = 0.5,
    seed: Annotated[int, typer.Option(help="Of the shapes that are drawn.")] = 0,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Walk over shapes on the cost model, and list those at which the schedule is far off its bound."""
    from tilelink.cost import Machine
    from tilelink.explore.anomalies import anomalies as walk
    from tilelink.explore.anomalies import parse_ranges
    from tilelink.explore.cases import parse_ranks
    from tilelink.explore.documents import walk_document
    from tilelink.explore.naming import operator_named
    from tilelink.explore.placements import parse_placements
    from tilelink.explore.report_tables import walk_sheet
    from tilelink.explore.tables import tables

    console, operator = console_of(quiet=as_json), operator_named(op).schedule(parse_placements(schedule or []))
    on, limits = Machine.load(machine), parse_ranges(shape)
    found = walk(
        operator, limits, parse_ranks(rank_count), dtype, machine=on, shapes=shapes, budget=budget, far=far, seed=seed
    )
    console.print(tables([walk_sheet(operator.name, found)]))
    raise Answered({"operator": operator.name, "machine": on.name, "ok": True, **walk_document(found)})


def bench(
    op: Annotated[list[str] | None, typer.Argument(metavar="OP…", help="Those of --list, or all.")] = None,
    shape: OwnShape = None, cases: CaseName = "", tokens: Tokens = "",
    rank_count: Annotated[int, typer.Option("--ranks", help="Number of ranks.", min=1)] = 4, schedule: Schedule = None,
    also: Annotated[list[str] | None, typer.Option(help="'NAME: STEP=PLACEMENT; …': compare this too.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds, in each of which every contender runs once.", min=1)] = 20,
    seconds: Annotated[float, typer.Option(help="Seconds after which no further round of a case begins.")] = 15.0,
    budget: Annotated[float, typer.Option(help="Seconds after which no further case of an operator begins.")] = 600.0,
    out: Annotated[Path | None, typer.Option(help="Write the rows: a .json file, or a folder for one each.")] = None,
    known: Annotated[bool, typer.Option("--list", help="Say what can be measured, against what.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Compare with cuBLAS, NCCL and torch, interleaved in one run: on GPUs under torchrun; else simulated."""
    from tilelink.bench import SUBJECTS, Options, Row, file_name, report, save, subjects_sheet, summary
    from tilelink.bench import bench as measure
    from tilelink.explore.tables import tables

    session, console = here(as_json)
    ranks = ranks_of(session, rank_count)
    if known or not op:
        console.print(tables([subjects_sheet(ranks)]))
        raise Answered({"ok": known, "subjects": list(SUBJECTS)}, session, code=2)
    ops_asked = list(SUBJECTS) if op == ["all"] else op
    _askable(ops_asked, shape or schedule, out)
    rows: list[Row] = []
    for name in ops_asked:
        subject = SUBJECTS[name]
        found = measure(
            subject, _bench_cases(name, shape, cases, tokens, ranks, session is None),
            _variants(subject.operator, schedule or [], also or [], several=len(ops_asked) > 1),
            Options(rounds if session is not None else 1, seconds, budget), session=session, ranks=ranks,
            say=lambda row: console.print(f"{row.case}: {row.schedule}", style="dim", markup=False),
        )  # fmt: skip
        console.print(report(name, found))
        if out is not None and first(session):
            path = out if out.suffix == ".json" else out / file_name(f"bench-{name}", found[0].gpu, ranks)
            say(console, "rows", str(save(path, found)))
        rows += found
    console.print(tables([summary(rows)]))
    raise Answered({"ok": all(row.right for row in rows), "rows": [row.record() for row in rows]}, session)


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
        return [case_of(subject, dict(parse_sizes(shape)))]
    if alone:  # the simulated backend would take hours over an MLP
        return [case_of(subject, subject.small)]
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
