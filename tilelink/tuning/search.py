"""The search: a method proposes schedules, they are tried, and the study keeps what was found; all ranks in step.

Every rank sees the same times and the same failures, so every rank decides the same without being told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Placement, Schedule
from tilelink.mapping import placement_of
from tilelink.runtime.backend import Backend
from tilelink.tuning.methods import METHODS, Batches
from tilelink.tuning.progress import bar
from tilelink.tuning.space import Space, changed, ways
from tilelink.tuning.study import Study, Trial, add, nothing_runs, one_of, read

Progress = Callable[[Study], None]
"""Called with a study whenever something was tried."""


Evaluate = Callable[[Sequence[Schedule], Callable[[], bool]], list[Trial]]
"""Tries schedules, all ranks together; leaves out those that time has run out for, as its second argument says."""


@dataclass(frozen=True, slots=True)
class Alone:
    """One process that searches by itself, in the place of a `Backend`."""

    rank: int = 0
    ranks: int = 1

    def agree(self, value: Any) -> list[Any]:
        return [value]


@dataclass(frozen=True, slots=True)
class Limits:
    """How a search is to go on and when it ends, as of `Operator.explore`. `trials`: those of `file` among them; `progress`:
    called on each rank; None: rank 0 shows a bar."""

    method: str | None = "descent"
    budget: float = 60.0
    trials: float = math.inf
    seed: int = 0
    file: Path | None = None
    progress: Progress | None = None


@dataclass(slots=True)
class Search:
    """One search, on one rank, and what its method chooses from.

    Args:
        start: the schedule to begin with, which is tried before a method is asked.
        slots: numbers of slots to try besides that of `start`.
        estimate: microseconds by the cost model; raises TilelinkError. On this rank alone.
        batch: how many schedules are tried together.
    """

    study: Study
    limits: Limits
    start: Schedule
    slots: tuple[int, ...]
    evaluate: Evaluate
    estimate: Callable[[Schedule], float]
    ranks: Backend | Alone = Alone()
    batch: int = 1
    kept_back: float = 0.0
    _estimated: dict[Schedule, float] = field(default_factory=dict[Schedule, float])
    _begun: float = field(init=False, default=0.0)

    def run(self) -> Study:
        """Collective.

        Raises:
            TilelinkError: TL462 the schedule to begin with does not run, TL460 some candidate does not end, TL466 the file has
                trials of something else, TL467 an extra is not installed, TL468 there is no such method.
        """
        self._begun = time.monotonic()
        method = METHODS[one_of(METHODS, self.study.method, "method of search")]
        file = self.limits.file if self.ranks.rank == 0 else None
        known = self.ranks.agree([] if file is None else read(file, self.study))[0]
        self.study.tried.update({trial.schedule: trial for trial in known})
        self._try([self.start], lambda: False)
        first = self.study.tried[self.start]
        if first.us is None:
            hint = "begin with one that runs: op.schedule(…).tune(…)"
            raise nothing_runs(f"the schedule to begin with does not run: {first.why}", hint)
        if self.late():
            return self.study
        # Rank 0 shows the seconds, or the trials, that are over, unless the caller does.
        quiet = self.ranks.rank != 0 or self.limits.progress is not None
        with bar(f"searching {self.study.problem.operator}", 1.0, quiet=quiet) as advance:
            for batch in method(self):
                room = self.limits.trials - len(self.study.tried)
                if room <= 0 or self.late():
                    break
                self._try(batch[: int(min(room, len(batch)))], self.late)
                seconds, tried, best = self.seconds, len(self.study.tried), self.study.best.us
                said = f"best {best:.1f} µs of {tried} schedules, {seconds:.0f} of {self.limits.budget:.0f} s"
                advance(max(seconds / self.limits.budget, tried / self.limits.trials), said)
                if any(s not in self.study.tried for s in batch):
                    break
        return self.study

    @property
    def seconds(self) -> float:
        """That are over on this rank."""
        return time.monotonic() - self._begun

    def late(self) -> bool:
        """Whether time has run out but for what is kept back. Collective."""
        return max(self.ranks.agree(self.seconds)) > self.limits.budget * (1 - self.kept_back)

    # ------------------------------------------------------------------------------------------- what a method chooses from
    @property
    def space(self) -> Space:
        return self.study.space

    @property
    def slot_counts(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((self.start.slots, *self.slots)))

    @property
    def count(self) -> int:
        """How many schedules there are."""
        return math.prod(len(options) for options in self.space.values()) * len(self.slot_counts)

    def numbered(self, number: int) -> Schedule:
        """One of the `count` schedules; steps that come last in the space vary first."""
        number, slots = divmod(number, len(self.slot_counts))
        chosen: dict[str, Placement] = {}
        for path, options in reversed([*self.space.items()]):
            number, at = divmod(number, len(options))
            chosen[path] = options[at]
        return replace(self.start.merged(chosen), slots=self.slot_counts[slots])

    @property
    def parts(self) -> tuple[str | None, ...]:
        """What schedules differ in: the paths of steps; None: how many slots."""
        return (*self.space, None)

    def around(self, schedule: Schedule, part: str | None) -> list[list[Schedule]]:
        """Schedules that differ in one part; what each list has is to be tried at once, one list after the other."""
        if part is None:
            return [[replace(schedule, slots=slots) for slots in self.slot_counts]]
        return [[changed(self.space, schedule, part, o) for o in way] for way in ways(self.space, schedule, part)]

    def batches(self, schedules: Sequence[Schedule]) -> Batches:
        """The schedules that have not been tried, in their order; the study says how many are left."""
        new = [s for s in dict.fromkeys(schedules) if s not in self.study.tried]
        for at in range(0, len(new), self.batch):
            self.study.left = len(new) - at
            yield new[at : at + self.batch]
        self.study.left = 0

    def estimates(self, schedules: Sequence[Schedule]) -> list[float]:
        """Microseconds of schedules; 0 of what cannot be planned. Collective: each rank estimates a share of them."""
        new = [s for s in schedules if s not in self._estimated]
        shares = self.ranks.agree([self._cost(s) for s in new[self.ranks.rank :: self.ranks.ranks]])
        for rank, share in enumerate(shares):
            self._estimated.update(zip(new[rank :: self.ranks.ranks], share, strict=True))
        return [self._estimated[s] for s in schedules]

    def _cost(self, schedule: Schedule) -> float:
        try:
            return self.estimate(schedule)
        except TilelinkError:
            return 0.0

    def _try(self, schedules: Sequence[Schedule], late: Callable[[], bool]) -> None:
        new = [s for s in dict.fromkeys(schedules) if s not in self.study.tried]
        if not new:
            return
        found = [replace(t, estimated=self._estimated.get(t.schedule) or None) for t in self.evaluate(new, late)]
        self.study.tried.update({trial.schedule: trial for trial in found})
        if self.limits.file is not None and self.ranks.rank == 0:
            add(self.limits.file, found)
        if self.limits.progress is not None:
            self.limits.progress(self.study)


def complete(plan: Plan, schedule: Schedule) -> Schedule:
    """The schedule with a placement for every step, also for those that the planner places by itself and those that an
    inlined operator brings along."""
    own = {s.path: placement_of(s.step, replace(plan, schedule=schedule)) for s in plan.steps}
    return replace(schedule.merged(own), unfused=False)
