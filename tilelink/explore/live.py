"""What a live page shows of an operator: loaded from its file again whenever that changes, under the schedule that knobs say."""

from __future__ import annotations

import ast
import linecache
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilelink.errors import TilelinkError
from tilelink.explore.cases import Case, Ranks
from tilelink.explore.knobs import Knob, Setting, schedule_text, setting
from tilelink.explore.model import Machine, bound, predict
from tilelink.explore.naming import operator_named
from tilelink.explore.predicting import beside_measured, prediction_parts
from tilelink.explore.report_tables import plan_sheets, tiles_of
from tilelink.explore.views import diagnostic, document, parts_of, sheet_table, source_view, tiles_svg
from tilelink.explore.views.page import folded
from tilelink.ir.plan import Plan
from tilelink.pipeline.compiled import Compiled
from tilelink.pipeline.operator import Operator
from tilelink.tracing import Trace
from tilelink.tracing.markup import Markup, tag, text

PERIOD = 0.1
"""Seconds between two looks at the files."""
DRAWN = 40_000
"""Tiles of all ranks up to which a view is there within 150 ms: of more while a slider moves, it is said how many they are."""
PINNED = "pinned."
"""What the knobs of the schedule that is kept beside the one that is turned begin with."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is watched: an operator's name, as commands take it, and a case of it on a machine."""

    operator: str
    sizes: tuple[tuple[str, int], ...]
    ranks: Ranks
    dtype: str
    machine: Machine

    @property
    def file(self) -> Path | None:
        """The file that it is in; None: it is of `tilelink.ops`."""
        file, colon, _ = self.operator.rpartition(":")
        return Path(file).resolve() if colon else None


@dataclass(slots=True)
class Watched:
    """`version`: how often it was loaded; `error`: why the last time gave no operator."""

    asked: Asked
    version: int = 0
    operator: Operator | None = None
    error: TilelinkError | None = None
    imports: tuple[str, ...] = ()
    changed: threading.Condition = field(default_factory=threading.Condition)
    stamps: dict[Path, int] = field(default_factory=dict[Path, int])
    plans: dict[int, tuple[Case, Plan]] = field(default_factory=dict[int, "tuple[Case, Plan]"])
    """Of the version that is there: the case, and the plan of the operator by default."""

    def load(self) -> None:
        """Import the file once more, and modules of its folder that it imports."""
        file = self.asked.file
        local = {} if file is None else _local_modules(file)
        for name in [n for n in sys.modules if n.partition(".")[0] in local]:
            del sys.modules[name]
        self.stamps = {} if file is None else {f: _stamp(f) for f in (file, *local.values())}
        operator, error = None, None
        linecache.checkcache()  # of diagnostics, which show lines
        try:
            operator = operator_named(self.asked.operator)
        except TilelinkError as found:
            error = found
        with self.changed:
            self.operator, self.error, self.version = operator, error, self.version + 1
            self.imports = () if file is None else tuple(_imported(file))
            self.changed.notify_all()

    def follow(self, stop: threading.Event) -> None:
        """Load it again whenever a file of its is saved."""
        while not stop.wait(PERIOD):
            if any(_stamp(file) != at for file, at in self.stamps.items()):
                self.load()

    # ------------------------------------------------------------------------------------------------------------- views
    def answer(self, turned: Mapping[str, int], rank: int = 0, moving: bool = False) -> dict[str, Any]:
        """What the page shows; `unfinished`, if it would take longer than somebody who moves a slider waits.

        Args:
            turned: by name of a knob, the number of its value; those behind `pinned.` are of a second schedule.
            rank: whose timeline is drawn.
            moving: a slider moves.

        Raises:
            ValueError: a knob has no such value.
        """
        begin = time.perf_counter()
        with self.changed:
            operator, error, version = self.operator, self.error, self.version
        found: dict[str, Any] = {"version": version, "imports": self.imports, "knobs": [], "schedule": "", "title": ""}
        if operator is None or error is not None:
            return found | {"html": diagnostic(error) if error is not None else ""}
        mine = {n: k for n, k in turned.items() if not n.startswith(PINNED)}
        pinned = {n.removeprefix(PINNED): k for n, k in turned.items() if n.startswith(PINNED)}
        try:
            case, plan = self._as_it_comes(operator, version)
            now = setting(plan, mine)
            found |= {"knobs": [_knob(k) for k in now.knobs], "schedule": schedule_text(operator, now.schedule)}
            found |= {"title": f"{operator.name}  {case}  on {self.asked.machine.name}", "ranks": case.topology.ranks}
            placed = _under(case, now)
            count = tiles_of(placed.unproven(placed.topology_on(self.asked.machine))) if moving else 0
            if count > DRAWN:
                said = f"{count:,} tiles on {case.topology.ranks} ranks: drawn as soon as the slider is let go"
                shown, found["unfinished"] = tag("p", said), True
            else:
                beside = _under(case, setting(plan, pinned)) if pinned else None
                _, shown = case_parts(placed, self.asked.machine, rank, beside)
        except TilelinkError as refused:
            shown = diagnostic(refused)
        return found | {"html": shown, "ms": round(1e3 * (time.perf_counter() - begin), 1)}

    def _as_it_comes(self, operator: Operator, version: int) -> tuple[Case, Plan]:
        if version not in self.plans:
            case = Case(operator, self.asked.sizes, self.asked.ranks, self.asked.dtype)
            self.plans.clear()
            self.plans[version] = case, case.unproven(case.topology_on(self.asked.machine))
        return self.plans[version]


def report_page(case: Case, machine: Machine, trace: Trace | None = None) -> tuple[str, bool]:
    """One file with all that is known of a case, and whether it is proved.

    Args:
        trace: of a call on such a machine, to be shown beside the prediction.
    """
    title = f"{case.operator.name}  {case}  on {machine.name}"
    made, shown = case_parts(case, machine)
    if made is None:
        return document(title, shown), False
    parts = [tag("pre", schedule_text(case.operator, setting(made.plan, {}).schedule), class_="code"), shown]
    if trace is not None:
        found, ranks = predict(made.lowered, machine), range(case.topology.ranks)
        parts.append(tag("h2", "Predicted and measured"))
        parts += [beside_measured(made.plan, found, trace, rank) for rank in ranks]
    return document(title, *parts), True


def case_parts(
    case: Case, machine: Machine, rank: int = 0, beside: Case | None = None
) -> tuple[Compiled | None, Markup]:
    """All that is known of a case: how long it takes and why, its plan, its proof and its emitted file. Of one that the proof
    refuses it is None, and what is wrong with its plan.

    Args:
        rank: whose timeline is drawn.
        beside: the same under a schedule to compare it with.
    """
    topology = case.topology_on(machine)
    try:
        made = case.compiled(topology)
    except TilelinkError:
        verdict = case.verdict(topology)
        if verdict.ok:
            raise
        return None, text(parts_of(verdict), parts_of(case.unproven(topology)))
    compared = None if beside is None else beside.compiled(topology)
    other = None if compared is None else (compared.plan, bound(compared.lowered, machine))
    emitted = source_view(made.source, made.plan.wiring)
    return made, text(
        prediction_parts(made.plan, bound(made.lowered, machine), min(rank, topology.ranks - 1), other),
        folded("Tiles in their order", tiles_svg(made.plan), open_=True),
        folded("Plan", *map(sheet_table, plan_sheets(made.plan))),
        folded("Proof", parts_of(made.verdict)),
        folded("Emitted file beside the tile programs", emitted, open_=True),
    )


def _under(case: Case, chosen: Setting) -> Case:
    """With the schedule that knobs say."""
    return replace(case, operator=case.operator.with_schedule(chosen.schedule))


def _knob(knob: Knob) -> dict[str, Any]:
    return {"name": knob.name, "at": knob.at, "values": [knob.said(k) for k in range(len(knob.values))]}


# --------------------------------------------------------------------------------------------------------------- imports
def _stamp(file: Path) -> int:
    """Changes with each save; 0 while the file is away, as some editors have it for a moment."""
    return file.stat().st_mtime_ns if file.exists() else 0


def _imported(file: Path) -> list[str]:
    """The modules that a file's import statements name; none of a file that is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append(node.module)
    return sorted(set(found))


def _local_modules(file: Path) -> dict[str, Path]:
    """Modules beside a file that it imports, and those that they import."""
    found: dict[str, Path] = {}
    todo = [file]
    while todo:
        for name in {n.partition(".")[0] for n in _imported(todo.pop())} - found.keys() - {"tilelink"}:
            for place in (file.parent / f"{name}.py", file.parent / name / "__init__.py"):
                if place.exists():
                    found[name] = place
                    todo.append(place)
    return found
