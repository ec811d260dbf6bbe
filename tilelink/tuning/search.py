"""The search: around the best schedule so far one coordinate is varied after the other, all ranks in step.

Every rank sees the same times and the same failures, so every rank decides the same without being told.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilelink.cost import predict
from tilelink.errors import TilelinkError
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Schedule
from tilelink.mapping import placement_of
from tilelink.runtime.backend import Backend
from tilelink.tuning.measuring import Times, attempt, interleaved, problem_of
from tilelink.tuning.records import form_of
from tilelink.tuning.space import Coordinate, Space, changed, coordinates

QUICK = 3
"""Calls by which a candidate is judged at first; the median counts."""
FINALISTS = 4
HOPELESS = 2.5
"""Candidates whose estimate is so many times the best estimate are not measured."""


class Candidate(Protocol):
    """A schedule that is being tried on one rank."""

    def legal(self) -> None:
        """Plan, verify and emit it. On this rank alone; raises TilelinkError."""
        ...

    def needs(self) -> int:
        """Bytes of memory of its own."""
        ...

    def allocate(self) -> None:
        """Take the memory. Collective."""
        ...

    def compile(self) -> None:
        """Compile and load its kernels. On this rank alone."""
        ...

    def run(self) -> Any:
        """Call it once. Collective."""
        ...

    def checked(self) -> Any:
        """Call it once, into memory that is 0 where it writes nothing. Collective."""
        ...

    def close(self) -> None:
        """Give the memory back. Collective."""
        ...


@dataclass(slots=True)
class Report:
    """What a search has found. `ms`: medians, of the slowest rank, of those that ran; `failed`: why the others did not.

    `final`: of the finalists and of `UNFUSED`, interleaved. `estimated_away`, `out_of_time`: how many were not tried.
    `plain_may_win`: whether the unfused form is more than a comparison.
    """

    best: Schedule
    plain_may_win: bool = True
    ms: dict[Schedule, float] = field(default_factory=dict[Schedule, float])
    failed: dict[Schedule, str] = field(default_factory=dict[Schedule, str])
    final: dict[str, Times] = field(default_factory=dict[str, Times])
    finalists: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    estimated_away: int = 0
    out_of_time: int = 0

    @property
    def best_ms(self) -> float:
        return next((self.final[n].median for n, s in self.finalists.items() if s == self.best), float("nan"))

    @property
    def sequential_ms(self) -> float | None:
        return self.final[UNFUSED].median if UNFUSED in self.final else None

    @property
    def winner(self) -> Schedule:
        """The best, or the unfused form where that is faster and may win."""
        plain = self.sequential_ms if self.plain_may_win else None
        return Schedule(unfused=True) if plain is not None and plain < self.best_ms else self.best

    @property
    def won(self) -> str:
        """Which form won: `unfused`, `library` or `Triton`."""
        return form_of(self.winner)


UNFUSED = "unfused"


@dataclass(slots=True)
class Search:
    """One search, on one rank.

    Args:
        plan: of the operator by default.
        start: its schedule.
        space: placements by step.
        make: a candidate of a schedule.
        lowered: what a schedule makes of the operator; raises TilelinkError. On this rank alone.
        same: whether a result is right.
        reference: the unfused form; None where there is none.
        plain_may_win: whether calls can run it, captured ones too.
        free: bytes of memory that candidates may take, on this rank.
        budget: seconds.
        slots: numbers of slots to try.
    """

    backend: Backend
    plan: Plan
    start: Schedule
    space: Space
    make: Callable[[Schedule], Candidate]
    lowered: Callable[[Schedule], Lowered]
    same: Callable[[Any], bool]
    reference: Callable[[], Any] | None
    free: Callable[[], int]
    budget: float
    rounds: int = 11
    slots: tuple[int, ...] = ()
    plain_may_win: bool = True
    _begun: float = field(default_factory=time.monotonic)

    def run(self) -> Report:
        """Collective.

        Raises:
            TilelinkError: what is wrong with the operator's own schedule; TL460, some candidate does not end.
        """
        report = Report(complete(self.plan, self.start), self.plain_may_win)
        with _bar(self.backend, self.plan.wiring.name) as advance:
            self._measure([report.best], report, advance)
            if report.best in report.failed:
                raise TilelinkError(
                    "TL462",
                    f"the schedule to begin with does not run: {report.failed[report.best]}",
                    hint="begin with one that runs: op.schedule(…).tune(…)",
                )
            improved = True
            while improved and not self._late():
                before = report.best
                for path in self.space:
                    self._vary_step(path, report, advance)
                self._vary([replace(report.best, slots=n) for n in self.slots], report, advance)
                improved = report.best != before
        self._decide(report)
        return report

    def _of(self, path: str, best: Schedule) -> list[Coordinate]:
        return [c for c in coordinates(self.space, best) if c.path == path]

    def _vary_step(self, path: str, report: Report, advance: Callable[[int, int], None]) -> None:
        """One coordinate after the other, around whatever is best by then."""
        for k in itertools.count():
            found = self._of(path, report.best)
            if k >= len(found):
                return
            around = [changed(self.space, report.best, path, o) for o in found[k].options]
            self._vary(around, report, advance)

    def _vary(self, around: Sequence[Schedule], report: Report, advance: Callable[[int, int], None]) -> None:
        """Measure all of these, those first that are estimated to be good."""
        new = [s for s in dict.fromkeys(around) if s not in report.ms and s not in report.failed]
        costs = {s: self._estimated(s) for s in new}
        limit = HOPELESS * min(us for us in (self._estimated(report.best), *costs.values()) if us)
        good = sorted((s for s in new if costs[s] <= limit), key=lambda s: costs[s])
        report.estimated_away += len(new) - len(good)
        size = max(1, 2 * self.backend.ranks)
        for at in range(0, len(good), size):
            if self._late():
                report.out_of_time += len(good) - at
                break
            self._measure(good[at : at + size], report, advance)
        report.best = min(report.ms, key=lambda s: report.ms[s])

    def _estimated(self, schedule: Schedule) -> float:
        """Microseconds of a call; 0 of what cannot be planned, so that its turn comes first, and the report says why."""
        try:
            return predict(self.lowered(schedule)).us
        except TilelinkError:
            return 0.0

    def _measure(self, schedules: Sequence[Schedule], report: Report, advance: Callable[[int, int], None]) -> None:
        """A batch: made legal and compiled by all ranks together, each its share first, then timed one by one."""
        alive: dict[Schedule, Candidate] = {}
        for schedule in schedules:
            candidate = self.make(schedule)
            problem = self._prepared(candidate)
            if problem:
                report.failed[schedule] = problem
            else:
                alive[schedule] = candidate
        for candidate in list(alive.values())[self.backend.rank :: self.backend.ranks]:
            problem_of(candidate.compile)  # a share each: what is compiled lies on disk, for all ranks of a machine
        self.backend.agree(None)
        told = self.backend.agree([problem_of(c.compile) for c in alive.values()])
        for k, schedule in enumerate(list(alive)):
            problem = next((f"rank {r}: {p[k]}" for r, p in enumerate(told) if p[k]), "")
            if problem:
                report.failed[schedule] = problem
                alive.pop(schedule).close()
        for schedule, candidate in alive.items():
            self._timed(schedule, candidate, report)
            candidate.close()
        advance(len(report.ms), len(report.failed))

    def _prepared(self, candidate: Candidate) -> str:
        """Legal on every rank, with memory for it on every rank; then it is allocated."""
        problem = attempt(self.backend, candidate.legal)
        if problem:
            return problem
        if not all(self.backend.agree(candidate.needs() <= self.free())):
            return "not enough memory"
        return attempt(self.backend, candidate.allocate)

    def wrong(self, schedule: Schedule) -> str:
        """Collective: why a schedule does not run or has a wrong result; empty where it is right."""
        candidate = self.make(schedule)
        problem = self._prepared(candidate) or attempt(self.backend, candidate.compile) or self._wrong(candidate)
        candidate.close()
        return problem

    def _wrong(self, candidate: Candidate) -> str:
        def checked() -> None:
            if not self.same(candidate.checked()):
                raise TilelinkError("TL463", "a wrong result")

        return attempt(self.backend, checked)

    def _timed(self, schedule: Schedule, candidate: Candidate, report: Report) -> None:
        problem = self._wrong(candidate)
        if problem:
            report.failed[schedule] = problem
            return
        times = [max(self.backend.agree(self.backend.timed(candidate.run))) for _ in range(QUICK)]
        report.ms[schedule] = sorted(times)[len(times) // 2]

    def _decide(self, report: Report) -> None:
        """The best few again, interleaved with one another and with the unfused form."""
        ranked = sorted(report.ms, key=lambda s: report.ms[s])[:FINALISTS]
        candidates = {f"schedule {k + 1}": self.make(s) for k, s in enumerate(ranked)}
        report.finalists = dict(zip(candidates, ranked, strict=True))
        runs: dict[str, Callable[[], Any]] = {name: c.run for name, c in candidates.items()}
        if self.reference is not None:
            runs[UNFUSED] = self.reference
        report.final, missing = interleaved(self.backend, runs, self.rounds, lambda: None)
        for candidate in candidates.values():
            candidate.close()
        left = [n for n in candidates if n in report.final]
        if not left:
            raise TilelinkError("TL462", f"no schedule runs twice: {next(iter(missing.values()))}")
        report.best = report.finalists[min(left, key=lambda n: report.final[n].median)]

    def _late(self) -> bool:
        return max(self.backend.agree(time.monotonic() - self._begun)) > self.budget


def complete(plan: Plan, schedule: Schedule) -> Schedule:
    """The schedule with a placement for every step, also for those that the planner places by itself and those that an
    inlined operator brings along."""
    own = {s.path: placement_of(s.step, plan.wiring, plan.topology, schedule, dict(plan.sizes)) for s in plan.steps}
    return replace(schedule.merged(own), unfused=False)


@contextmanager
def _bar(backend: Backend, name: str) -> Generator[Callable[[int, int], None]]:
    """On rank 0's terminal: how many candidates have been measured, and how many cannot run."""
    console = Console(stderr=True)
    quiet = backend.rank != 0 or not console.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task(f"tuning {name}", total=None)

        def advance(measured: int, failed: int) -> None:
            progress.update(task, completed=measured, description=f"tuning {name} ({failed} cannot run)")

        yield advance
