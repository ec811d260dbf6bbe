"""What a search has tried: every schedule with its time, the multiprocessors that it takes and its memory; kept in a file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from tilelink.errors import TilelinkError
from tilelink.ir import Shown
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Placement, Schedule
from tilelink.runtime.memory import regions
from tilelink.tuning.measuring import Times
from tilelink.tuning.records import form_of, made, object_of, record_of, taken
from tilelink.tuning.tables import Problem
from tilelink.version import __version__

T = TypeVar("T")
On = Literal["model", "simulated", "gpu"]
"""What says how long a schedule takes: the cost model, simulated ranks, or GPUs."""


def on_named(name: str) -> On:
    """What is called so. Raises TL468."""
    return one_of(get_args(On), name, "place to search on")


def one_of(known: Iterable[T], name: str, what: str) -> T:
    """That of some names. Raises TL468, it is none of them."""
    for each in known:
        if each == name:
            return each
    raise TilelinkError("TL468", f"`{name}` is no {what}", hint=f"one of {', '.join(map(str, known))}")


TIE = 0.01
"""Schedules whose times differ by less are equally good: two GPUs of one kind differ by more."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A schedule that was tried. `us`: microseconds of a call; None: it cannot run, and `why` says so in one line. `estimated`:
    by the cost model, where something else gave `us`. `sms`: multiprocessors that copies have to themselves. `nbytes`: of a
    rank's own memory."""

    schedule: Schedule
    us: float | None
    why: str = ""
    estimated: float | None = None
    sms: int = 0
    nbytes: int = 0

    @staticmethod
    def of(schedule: Schedule, us: float, plan: Plan) -> Trial:
        """Of a schedule that runs, with what its plan takes."""
        copying = {s.path for s in plan.steps if s.copies and s.engine.by == "kernel"}
        roles = [role for k in plan.kernels for role in (*k.beside, k.roles[-1])]
        sms = sum(workers or 0 for path, workers in roles if path in copying)
        return Trial(schedule, us, sms=sms, nbytes=nbytes_of(plan))


def nbytes_of(plan: Plan) -> int:
    """A rank's own memory."""
    return sum(r.nbytes for r in regions(plan))


@dataclass(slots=True)
class Study(Shown):
    """A search and what it has found, growing while it runs.

    Attributes:
        problem: the operator, its sizes, dtypes and ranks, and the GPU.
        on: what gave the times: `model`, `simulated` or `gpu`.
        method: how the next schedules were chosen.
        space: placements by step.
        tried: trials by schedule, in the order in which they were made.
        final: of the best few and of the unfused form, which is `Schedule(unfused=True)`, times that were measured
            interleaved; empty where times do not vary.
        estimated_away: how many were not tried since the cost model expects nothing of them.
        left: how many were to come next when the search ended.
        plain_may_win: whether the unfused form is more than a comparison.
    """

    problem: Problem
    on: On
    method: str
    space: dict[str, tuple[Placement, ...]]
    tried: dict[Schedule, Trial] = field(default_factory=dict[Schedule, Trial])
    final: dict[Schedule, Times] = field(default_factory=dict[Schedule, Times])
    estimated_away: int = 0
    left: int = 0
    plain_may_win: bool = True

    @property
    def trials(self) -> tuple[Trial, ...]:
        """In the order in which they were made."""
        return tuple(self.tried.values())

    @property
    def failed(self) -> tuple[Trial, ...]:
        """Those that cannot run."""
        return tuple(t for t in self.trials if t.us is None)

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """Those that run, the fastest first; those that were measured interleaved before all others."""
        final = {s: 1e3 * times.median for s, times in self.final.items()}
        runs = [replace(t, us=final.get(t.schedule, t.us)) for t in self.trials if t.us is not None]
        return tuple(sorted(runs, key=lambda t: (t.schedule not in final, t.us)))

    @property
    def best(self) -> Trial:
        """The fastest.

        Raises:
            TilelinkError: TL462, none runs.
        """
        if not self.ranked:
            raise nothing_runs(f"no schedule of `{self.problem.operator}` runs", "look at `failed`, which says why")
        return self.ranked[0]

    @property
    def ties(self) -> tuple[Trial, ...]:
        """The best, and those that are as fast as it but for a hundredth."""
        first, *others = self.ranked
        return (first, *(t for t in others if _us(t) <= _us(first) * (1 + TIE)))

    @property
    def pareto(self) -> tuple[Trial, ...]:
        """The trials than which no other is better in time, multiprocessors taken and memory at once, the fastest first."""
        front: list[Trial] = []
        for trial in sorted(self.ranked, key=_costs):
            if not any(all(a <= b for a, b in zip(_costs(t), _costs(trial), strict=True)) for t in front):
                front.append(trial)
        return tuple(front)

    @property
    def plain_ms(self) -> float | None:
        """Milliseconds of the unfused form, where it was measured."""
        plain = self.final.get(Schedule(unfused=True))
        return None if plain is None else plain.median

    @property
    def winner(self) -> Schedule:
        """The best schedule, or the unfused form where that is faster and may win."""
        plain = self.plain_ms if self.plain_may_win else None
        return Schedule(unfused=True) if plain is not None and 1e3 * plain < _us(self.best) else self.best.schedule

    @property
    def won(self) -> str:
        """Which form won: `unfused`, `library` or `Triton`."""
        return form_of(self.winner)

    # ---------------------------------------------------------------------------------------------------------- to look at
    def __repr__(self) -> str:
        best = f", best {_us(self.best):.1f} µs: {self.best.schedule}" if self.ranked else ""
        return f"<study of {self.problem.operator} on {self.on}: {len(self.tried)} trials, {len(self.failed)} cannot run{best}>"

    def table(self) -> Any:
        """A pandas `DataFrame` with a row per trial, the fastest first: `us`, `estimated`, `sms`, `nbytes`, `pareto`, a column
        per step with its placement, and `why` it cannot run.

        Raises:
            TilelinkError: TL467, pandas is not installed.
        """
        pandas, front = wanted("pandas", "a table of trials"), {t.schedule for t in self.pareto}
        rows = [
            {
                "us": t.us,
                "estimated": t.estimated,
                "sms": t.sms,
                "nbytes": t.nbytes,
                "pareto": t.schedule in front,
                **{path: repr(placement) for path, placement in t.schedule.entries},
                "slots": t.schedule.slots,
                "why": t.why,
            }
            for t in (*self.ranked, *self.failed)
        ]
        return pandas.DataFrame(rows)

    def plot(self, path: Path | str) -> Path:
        """Draws time against the SMs that copies take, with the Pareto front as a line: what a notebook shows of a study.

        Args:
            path: where to; SVG, or HTML.
        """
        views = importlib.import_module("tilelink.explore.views")  # above all that it draws
        return views.written(Path(path), self.problem.operator, views.study_svg(self))

    def record(self) -> dict[str, Any]:
        """All of it as JSON. A schedule with a function of the user's is text only."""
        return {
            "operator": self.problem.operator,
            "sizes": dict(self.problem.sizes),
            "dtypes": list(self.problem.dtypes),
            "ranks": self.problem.ranks,
            "gpu": self.problem.gpu,
            "on": self.on,
            "method": self.method,
            "won": self.won,
            "best": _shown(self.best),
            "ties": [str(t.schedule) for t in self.ties[1:]],
            "sequential_us": None if self.plain_ms is None else 1e3 * self.plain_ms,
            "pareto": [str(t.schedule) for t in self.pareto],
            "trials": [_shown(t) for t in (*self.ranked, *self.failed)],
            "estimated_away": self.estimated_away,
            "left": self.left,
        }


def nothing_runs(what: str, hint: str | None = None) -> TilelinkError:
    """TL462, of a search in which nothing runs."""
    return TilelinkError("TL462", what, hint=hint)


def wanted(module: str, what: str) -> Any:
    """A module that an extra brings.

    Raises:
        TilelinkError: TL467, it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TilelinkError(
            "TL467",
            f"{what} needs `{module}`, which is not installed",
            hint="pip install 'tilelink-triton[search]'",
        ) from error


def _us(trial: Trial) -> float:
    assert trial.us is not None
    return trial.us


def _costs(trial: Trial) -> tuple[float, int, int]:
    return _us(trial), trial.sms, trial.nbytes


def _shown(trial: Trial) -> dict[str, Any]:
    return asdict(replace(trial, schedule=Schedule())) | {
        "schedule": str(trial.schedule),
        "placements": record_of(trial.schedule),
    }


# --------------------------------------------------------------------------------------------------------------- the file
# Trials as lines of JSON, behind one that says what they are trials of. It is written to after each batch, so a search that is
# interrupted goes on where it was; what was tried is not tried again.


def read(path: Path, study: Study) -> list[Trial]:
    """The trials that are in a file; none where there is no file, which is then begun.

    Raises:
        TilelinkError: TL466, it has trials of something else, or is damaged.
    """
    head = {"tilelink": __version__, "on": study.on, **(record_of(study.problem) or {})}
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        return []
    try:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # the search may have ended amid a line
        first, *lines = whole.splitlines() or [""]
        known = taken(first, lambda record: object_of(record, "study"))
        trials = [taken(line, lambda record: made(Trial, record)) for line in lines]
    except (OSError, ValueError) as error:
        raise _refused(path, f"it does not read: {error}") from error
    if known != head:
        other = next((k for k in head if known.get(k) != head[k]), "its fields")
        raise _refused(path, f"its `{other}` is {known.get(other)!r}, and this search has {head.get(other)!r}")
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return trials


def add(path: Path, trials: Sequence[Trial]) -> None:
    """Put down trials; those with a function of the user's are left out."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(r) + "\n" for r in map(record_of, trials) if r is not None))


def _refused(path: Path, why: str) -> TilelinkError:
    return TilelinkError("TL466", f"`{path}` holds no trials of this search", why=why, hint="name another file")
