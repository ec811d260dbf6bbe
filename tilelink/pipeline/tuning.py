"""`Operator.tune` and `Operator.explore`: candidates as a search wants them, and what is kept of its result."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton

from tilelink.cost import H200, Machine, predict
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Schedule
from tilelink.mapping.lower import lower
from tilelink.pipeline.arguments import Bound
from tilelink.pipeline.calls import on_ranks
from tilelink.pipeline.choosing import problem_of, reads_tables
from tilelink.pipeline.compiled import planned, proved
from tilelink.pipeline.operator import Operator
from tilelink.pipeline.prepared import Prepared, Result, Unfused, bind_here
from tilelink.runtime.aliasing import writes_of
from tilelink.runtime.cache import untrue
from tilelink.runtime.session import Session, require
from tilelink.tuning.comparison import apart, results, tolerance
from tilelink.tuning.measuring import attempt, failure, interleaved
from tilelink.tuning.records import known, unknown
from tilelink.tuning.search import Evaluate, Limits, Search, complete
from tilelink.tuning.space import SLOTS, Space, space_of
from tilelink.tuning.study import On, Study, Trial, nbytes_of, nothing_runs
from tilelink.tuning.tables import DiskCache, Entry
from tilelink.version import __version__

log = logging.getLogger("tilelink")


QUICK = 3
"""Calls by which a candidate is judged at first, where times vary; the median counts."""
FINALISTS = 4
ROUNDS = 11
"""In which the finalists are compared, at most."""
KEPT_BACK = 0.25
"""Part of the budget that is left for the finalists."""


@dataclass(slots=True)
class RankCandidate:
    """A schedule that is being tried on one rank; all but its plan and compiling it is collective."""

    operator: Operator
    of: Tuning
    prepared: Prepared | None = None
    opened: bool = False

    def plan(self) -> Plan:
        """Planned, verified and emitted; raises TilelinkError."""
        return self.operator.compiled(self.of.bound, self.of.session.vigil.checks).plan

    def allocate(self) -> Prepared:
        self.opened = self.operator.identity not in self.of.session.workspaces
        self.prepared = Prepared(self.operator, self.of.session, self.of.tensors, (), self.of.given)
        return self.prepared

    def compile(self) -> None:
        """Compile and load its kernels."""
        assert self.prepared is not None
        self.prepared.ready(self.of.tensors)

    def run(self, outs: Sequence[torch.Tensor] = ()) -> Result:
        return (self.prepared or self.allocate()).run(self.of.tensors, outs)

    def close(self) -> None:
        """Give the memory back; a workspace that calls have used before stays with them."""
        self.prepared = None
        if self.opened:
            self.of.session.close(self.operator.identity)


class Tuning:
    """Tuning one operator for one kind of call, on one rank; arguments as of `Calls.__call__`."""

    def __init__(self, operator: Operator, session: Session, tensors: Sequence[Any], given: dict[str, Any]) -> None:
        self.operator, self.session, self.tensors, self.given = operator, session, tensors, given
        self.backend = session.backend
        self.exact = self.backend.topology.backend == "simulated"
        """Whether a call takes the same time whenever it is made, which is that of simulated clocks."""
        self.bound = bind_here(operator, session, tensors, given)
        self.plan = operator.compiled(self.bound).plan
        self.problem = problem_of(operator, self.bound)
        self.cache = DiskCache(f"{__version__} {torch.__version__} {triton.__version__}")
        self.plain: Callable[[], Result] | None = None
        if operator.calls.has_plain(self.backend, self.bound):
            unfused = operator.calls.variant(Schedule(unfused=True))
            self.plain = partial(Unfused(unfused, session, tensors, (), given).run, tensors)
        self.written = [(tensors[k], tensors[k].clone()) for k, _ in writes_of(self.plan)]
        """Arguments that programs write to, and what they were when the call came."""
        self._wanted: tuple[torch.Tensor, ...] | None = None

    def known(self, space: Space | None = None) -> Entry | None:
        """What rank 0 has in its cache, for all ranks, if it may be taken; the log says why not. Collective.

        Before it is taken for the first time in a session, it is called with the caller's tensors, and its result compared.
        """
        found, compared, why = self.backend.agree(self._here() if self.backend.rank == 0 else (None, False, ""))[0]
        if found is not None and not compared:
            why = self._refused(found, space)
            if why and self.backend.rank == 0:
                why = str(untrue(self.cache.path(self.problem), self.problem.operator, why))
            elif not why:
                self.session.compared.add(self._key(found))
        if why and self.backend.rank == 0:
            log.warning(why)
        return None if why else found

    def _here(self) -> tuple[Entry | None, bool, str]:
        """What the cache has, whether that has been compared here, and why it has nothing if it should."""
        try:
            found = self.cache.load(self.problem)
        except TilelinkError as error:
            return None, False, str(error)
        return found, self._key(found) in self.session.compared, ""

    def _key(self, entry: Entry | None) -> tuple[object, ...]:
        return self.operator.identity, entry

    def _refused(self, entry: Entry, space: Space | None) -> str:
        """Why a schedule from disk is not taken; the same on all ranks."""
        further = [p for options in (space or {}).values() for p in options]
        functions = known(self.operator.schedules, self.plan.wiring, further)
        plain = self.plain is not None and not reads_tables(self.plan)
        why = "" if plain or not entry.schedule.unfused else "it is the unfused form, which such calls do not have"
        told = self.backend.agree(unknown(entry.schedule, functions) or why)
        problem = next((why for why in told if why), "")
        if problem or entry.schedule.unfused:
            return problem
        self.expect()
        try:
            own = "" if self._wanted is not None else self.wrong(replace(self.operator.schedules, unfused=False))
            problem = own or self.wrong(entry.schedule)
        finally:
            self.restore()
        return problem and f"{'the operator by default' if own else 'it'} does not run here, or not right: {problem}"

    def restore(self) -> None:
        for t, before in self.written:
            t.copy_(before)

    def expect(self) -> None:
        """The unfused form says what is right; the first candidate, the operator by default, where there is none, or where
        arguments are written to: nobody knows what it does to them. Collective."""
        # Now, and not when a candidate has run: that may happen on some ranks only, and this is collective.
        self._wanted = results(self.plain()) if self.plain is not None and not self.written else None

    def _check(self, candidate: RankCandidate) -> None:
        """Its results, in memory that is 0 where nothing is written, and the arguments that programs write to."""
        assert candidate.prepared is not None
        self.restore()
        values = results(candidate.run([make().zero_() for make in candidate.prepared.fresh]))
        got = (*values, *(t.clone() for t, _ in self.written))
        wanted = self._wanted = got if self._wanted is None else self._wanted
        if not apart(got, wanted) <= tolerance(t.dtype for t in (*self.tensors, *wanted)):
            raise TilelinkError("TL463", "a wrong result")

    def tried(self, schedules: Sequence[Schedule], late: Callable[[], bool]) -> list[Trial]:
        """As of `Evaluate`: made legal and compiled by all ranks together, each its share first, then timed one by one."""
        alive: dict[Schedule, RankCandidate] = {}
        found: dict[Schedule, Trial] = {}
        for schedule in schedules:
            candidate = RankCandidate(self.operator.with_schedule(schedule), self)
            problem = self._allocated(candidate)
            if problem:
                found[schedule] = Trial(schedule, None, problem)
            else:
                alive[schedule] = candidate
        for candidate in list(alive.values())[self.backend.rank :: self.backend.ranks]:
            failure(candidate.compile)  # a share each: what is compiled lies on disk, for all ranks of a machine
        self.backend.agree(None)
        told = self.backend.agree([failure(c.compile) for c in alive.values()])
        for k, (schedule, candidate) in enumerate(alive.items()):
            problem = next((f"rank {r}: {p[k]}" for r, p in enumerate(told) if p[k]), "")
            if problem:
                found[schedule] = Trial(schedule, None, problem)
            elif not late():
                found[schedule] = self._timed(schedule, candidate)
            candidate.close()
        return list(found.values())

    def _allocated(self, candidate: RankCandidate) -> str:
        """Legal on every rank, with memory for it on every rank, which is taken; else why not."""
        problem = attempt(self.backend, candidate.plan)
        if problem:
            return problem
        # Of a GPU with a margin for what kernels and libraries take.
        free = 1 << 40 if self.exact else int(0.9 * torch.cuda.mem_get_info()[0])
        if not all(self.backend.agree(nbytes_of(candidate.plan()) <= free)):
            return "not enough memory"
        problem = attempt(self.backend, candidate.allocate)
        if problem:
            candidate.close()
        return problem

    def wrong(self, schedule: Schedule) -> str:
        """Collective: why a schedule does not run or has a wrong result; empty where it is right."""
        candidate = RankCandidate(self.operator.with_schedule(schedule), self)
        problem = self._allocated(candidate) or attempt(self.backend, candidate.compile)
        problem = problem or attempt(self.backend, lambda: self._check(candidate))
        candidate.close()
        return problem

    def _timed(self, schedule: Schedule, candidate: RankCandidate) -> Trial:
        """Checked, then timed; a simulated call is made once for both."""
        times: list[float] = []
        if self.exact:
            problem = attempt(self.backend, lambda: times.append(self.backend.timed(lambda: self._check(candidate))))
        else:
            problem = attempt(self.backend, lambda: self._check(candidate))
        if problem:
            return Trial(schedule, None, problem)
        times = times or [self.backend.timed(candidate.run) for _ in range(QUICK)]
        slowest = sorted(max(of_ranks) for of_ranks in zip(*self.backend.agree(times), strict=True))
        return Trial.of(schedule, 1e3 * slowest[len(slowest) // 2], candidate.plan())

    def search(self, limits: Limits, space: Space | None = None) -> Study:
        """Try schedules on these tensors. Collective.

        Raises:
            TilelinkError: as of `Search.run`; TL462, none of them runs twice.
        """
        self.expect()
        search = _search(
            self.operator, self.bound, self.plan, "simulated" if self.exact else "gpu", limits, space, self.tried,
            ranks=self.backend, batch=1 if self.exact else max(1, 2 * self.backend.ranks),
            kept_back=0.0 if self.exact else KEPT_BACK,
        )  # fmt: skip
        search.study.plain_may_win = not reads_tables(self.plan)
        try:
            study = search.run()
            self._decide(study, limits.budget - search.seconds)
        finally:
            self.restore()
        return study

    def _decide(self, study: Study, seconds: float) -> None:
        """The best few again, interleaved with one another and with the unfused form, as often as there is time."""
        if self.exact and self.plain is None:
            return
        best = [t.schedule for t in study.ranked[:FINALISTS]]
        candidates = {s: RankCandidate(self.operator.with_schedule(s), self) for s in best}
        runs: dict[Schedule, Callable[[], Any]] = {s: c.run for s, c in candidates.items()}
        if self.plain is not None:
            runs[Schedule(unfused=True)] = self.plain
        final, missing = interleaved(self.backend, runs, 1 if self.exact else ROUNDS, seconds=seconds)
        for candidate in candidates.values():
            candidate.close()
        if not candidates.keys() & final.keys():
            raise nothing_runs(f"no schedule runs twice: {next(iter(missing.values()))}")
        study.final.update(final)

    def found(self, budget: float, space: Space | None = None, *, fresh: bool = False) -> tuple[Entry, Study | None]:
        """The fastest schedule, and the study that has found it; None where it was known, and is not asked for `fresh`."""
        known = None if fresh else self.known(space)
        if known is not None:
            return known, None
        study = self.search(Limits(budget=budget), space)
        return self.kept(study), study

    def kept(self, study: Study) -> Entry:
        """The result as an entry, also in the cache on disk; the unfused form where it is the fastest."""
        plain, schedule = study.plain_ms, study.winner
        us = study.best.us
        assert us is not None
        ms = plain if schedule.unfused and plain is not None else us / 1e3
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        words = f"{today}, torch {torch.__version__}, Triton {triton.__version__}, tilelink {__version__}"
        entry = Entry(self.problem, schedule, ms, plain, words)
        self.session.compared.add(self._key(entry))
        if self.backend.rank == 0:
            try:
                self.cache.save(entry)
            except TilelinkError as error:
                log.warning(str(error))  # measured for nothing, but measured
        return entry


def _search(
    operator: Operator,
    bound: Bound,
    plan: Plan,
    on: On,
    limits: Limits,
    space: Space | None,
    evaluate: Evaluate,
    machine: Machine = H200,
    **more: Any,
) -> Search:
    """A search for schedules of a call. `plan`: of the operator by default; `more`: as of `Search`."""
    method = limits.method or ("descent" if on == "model" else "model")
    study = Study(problem_of(operator, bound), on, method, dict(space_of(plan) if space is None else space))
    slots = SLOTS if space is None and any(b.slots > 1 for b in plan.buffers) else ()

    def estimate(schedule: Schedule) -> float:
        return predict(lower(planned(operator.with_schedule(schedule), bound)), machine).us

    return Search(study, limits, complete(plan, operator.schedules), slots, evaluate, estimate, **more)


# ----------------------------------------------------------------------------------------------------------- on the model
def modelled(operator: Operator, bound: Bound, machine: Machine = H200) -> Trial:
    """One schedule, planned, proved and put before the cost model; `why` is the first line of its diagnostic."""
    try:
        plan = planned(operator, bound)
        lowered, _ = proved(plan)
    except TilelinkError as error:
        return Trial(operator.schedules, None, str(error).splitlines()[0])
    return Trial.of(operator.schedules, predict(lowered, machine).us, plan)


def modelled_study(
    operator: Operator, bound: Bound, limits: Limits, space: Space | None, machine: Machine = H200
) -> Study:
    """A search in which the cost model says how long a schedule takes. In one process, without GPUs."""

    def evaluate(schedules: Sequence[Schedule], late: Callable[[], bool]) -> list[Trial]:
        return [modelled(operator.with_schedule(s), bound, machine) for s in schedules]

    proved(plan := planned(operator, bound))
    return _search(operator, bound, plan, "model", limits, space, evaluate, machine).run()


def explored(
    operator: Operator,
    tensors: Sequence[Any],
    given: dict[str, Any],
    on: On,
    limits: Limits,
    space: Space | None = None,
    group: Any = None,
    session: Session | None = None,
) -> Study:
    """A search in which ranks make the calls, simulated ones or those on GPUs; arguments as of `Operator.explore`."""

    def search(mine: Sequence[Any], here: Session) -> Study:
        backend = here.backend.topology.backend
        if (on == "simulated") != (backend == "simulated") or here.backend.only_references:
            raise TilelinkError(
                "TL469",
                f"there is no search on `{on}` here",
                why=f"this rank is in the backend {backend}",
                hint='on="model" needs no rank; on="simulated" wants simulated ranks or none, on="gpu" GPUs under torchrun',
            )
        return Tuning(operator, here, mine, dict(given)).search(limits, space)

    return on_ranks(tensors, group, session if on == "simulated" else session or require(), search)
