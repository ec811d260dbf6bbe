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
from tilelink.ir.topology import Topology
from tilelink.mapping.lower import lower
from tilelink.pipeline.arguments import Bound
from tilelink.pipeline.calls import Calls, are_lists, on_ranks
from tilelink.pipeline.choosing import problem_of, reads_tables
from tilelink.pipeline.compiled import Compiler
from tilelink.pipeline.prepared import Prepared, bind_here
from tilelink.runtime.aliasing import stored
from tilelink.runtime.launching import listed
from tilelink.runtime.session import Session, current, require
from tilelink.tuning.comparison import apart, results, tolerance
from tilelink.tuning.records import known, unknown
from tilelink.tuning.search import KEPT_BACK, Evaluate, Limits, Measured, Search, complete
from tilelink.tuning.space import SLOTS, Space, space_of
from tilelink.tuning.study import On, Study, Trial
from tilelink.tuning.tables import DiskCache, Entry
from tilelink.version import __version__

log = logging.getLogger("tilelink")


@dataclass(slots=True)
class RankCandidate:
    """A candidate of a search: the operator with one schedule, on this rank's tensors."""

    compiler: Compiler
    of: Tuning
    prepared: Prepared | None = None
    opened: bool = False

    def plan(self) -> Plan:
        return self.compiler.compiled(self.of.bound, self.of.session.vigil.checks).plan

    def allocate(self) -> None:
        self.opened = self.compiler.identity not in self.of.session.workspaces
        self.prepared = Prepared(self.compiler, self.of.session, self.of.tensors, (), self.of.given)

    def compile(self) -> None:
        assert self.prepared is not None
        self.prepared.load(self.of.tensors)

    def run(self, outs: Sequence[torch.Tensor] = ()) -> Any:
        if self.prepared is None:
            self.allocate()
        assert self.prepared is not None
        values = self.prepared.run(self.of.tensors, outs)
        return values[0] if len(values) == 1 else values

    def checked(self) -> tuple[torch.Tensor, ...]:
        """Results, and arguments that programs write to."""
        assert self.prepared is not None
        self.of.restore()
        values = results(self.run([make().zero_() for make in self.prepared.fresh]))
        return (*values, *(t.clone() for t, _ in self.of.written))

    def close(self) -> None:
        """A workspace that calls have used before stays with them."""
        self.prepared = None
        if self.opened:
            self.of.session.close(self.compiler.identity)


class Tuning:
    """Tuning one operator for one kind of call, on one rank; arguments as of `Calls.__call__`."""

    def __init__(self, calls: Calls, session: Session, tensors: Sequence[Any], given: dict[str, Any]) -> None:
        compiler = calls.compiler
        self.compiler, self.session, self.tensors, self.given = compiler, session, tensors, given
        self.bound = bind_here(compiler, session, tensors, given)
        self.plan = compiler.compiled(self.bound).plan
        self.problem = problem_of(compiler, self.bound)
        self.plain: Callable[[], Any] | None = None
        if calls.has_plain(session.backend, self.bound):
            unfused = calls.variant(Schedule(unfused=True)).unfused(session, tensors, (), given)
            self.plain = partial(unfused.run, tensors)
        self.written = [(tensors[k], tensors[k].clone()) for k, _ in stored(self.plan)]
        """Arguments that programs write to, and what they were when the call came."""

    def known(self, space: Space | None = None) -> Entry | None:
        """What rank 0 has in its cache, for all ranks, if it may be taken; the log says why not. Collective.

        Before it is taken for the first time in a session, it is called with the caller's tensors, and its result compared.
        """
        backend = self.session.backend
        found, compared, why = backend.agree(self._here())[0]
        if found is not None and not compared:
            why = self._refused(found, space)
            if why and backend.rank == 0:
                why = str(self.cache().untrue(found, why))
            elif not why:
                self.session.compared.add(self._key(found))
        if why and backend.rank == 0:
            log.warning(why)
        return None if why else found

    def _here(self) -> tuple[Entry | None, bool, str]:
        """On rank 0 what the cache has, whether that has been compared here, and why it has nothing if it should."""
        if self.session.backend.rank != 0:
            return None, False, ""
        try:
            found = self.cache().load(self.problem)
        except TilelinkError as error:
            return None, False, str(error)
        return found, self._key(found) in self.session.compared, ""

    def _key(self, entry: Entry | None) -> tuple[object, ...]:
        return self.compiler.identity, entry

    def _refused(self, entry: Entry, space: Space | None) -> str:
        """Why a schedule from disk is not taken; the same on all ranks."""
        further = [p for options in (space or {}).values() for p in options]
        functions = known(self.compiler.schedule, self.plan.wiring, further)
        plain = self.plain is not None and not reads_tables(self.plan)
        why = "" if plain or not entry.schedule.unfused else "it is the unfused form, which such calls do not have"
        told = self.session.backend.agree(unknown(entry.schedule, functions) or why)
        problem = next((why for why in told if why), "")
        if problem or entry.schedule.unfused:
            return problem
        measured = self.measured()
        try:
            own = "" if self._plain_says else measured.wrong(replace(self.compiler.schedule, unfused=False))
            problem = own or measured.wrong(entry.schedule)
        finally:
            self.restore()
        return problem and f"{'the operator by default' if own else 'it'} does not run here, or not right: {problem}"

    def restore(self) -> None:
        for t, before in self.written:
            t.copy_(before)

    @property
    def _plain_says(self) -> bool:
        """Whether the unfused form says what is right: nobody knows what it does to arguments."""
        return self.plain is not None and not self.written

    def measured(self) -> Measured:
        """What tries schedules on these tensors. Collective."""
        # Now, and not when a candidate has run: that may happen on some ranks only, and this is collective.
        wanted = [results(self.plain())] if self.plain is not None and self._plain_says else []
        backend = self.session.backend

        def same(got: tuple[torch.Tensor, ...]) -> bool:
            """As the unfused form, or as the first candidate, which is the operator by default."""
            if not wanted:
                wanted.append(got)
            return apart(got, wanted[0]) <= tolerance(t.dtype for t in (*self.tensors, *wanted[0]))

        def make(schedule: Schedule) -> RankCandidate:
            return RankCandidate(replace(self.compiler, schedule=schedule), self)

        free = _free if backend.topology.backend != "simulated" else lambda: 1 << 40
        return Measured(backend, make, same, self.plain, free)

    def search(self, limits: Limits, space: Space | None = None) -> Study:
        """Try schedules on these tensors. Collective."""
        measured, backend = self.measured(), self.session.backend
        simulated = measured.exact
        search = _search(
            self.compiler, self.bound, self.plan, "simulated" if simulated else "gpu", limits, space, measured,
            ranks=backend, batch=1 if simulated else max(1, 2 * backend.ranks), kept_back=0.0 if simulated else KEPT_BACK,
        )  # fmt: skip
        search.study.plain_may_win = not reads_tables(self.plan)
        try:
            study = search.run()
            measured.decide(study, search.seconds_left)
        finally:
            self.restore()
        return study

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
        if self.session.backend.rank == 0:
            try:
                self.cache().save(entry)
            except TilelinkError as error:
                log.warning(str(error))  # measured for nothing, but measured
        return entry

    def cache(self) -> DiskCache:
        return DiskCache(f"{__version__} {torch.__version__} {triton.__version__}")


def _search(
    compiler: Compiler,
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
    study = Study(problem_of(compiler, bound), on, method, dict(space_of(plan) if space is None else space))
    slots = SLOTS if space is None and any(b.slots > 1 for b in plan.buffers) else ()

    def estimate(schedule: Schedule) -> float:
        return predict(lower(replace(compiler, schedule=schedule).unproven(bound)), machine).us

    return Search(study, limits, complete(plan, compiler.schedule), slots, evaluate, estimate, **more)


# ----------------------------------------------------------------------------------------------------------- on the model
def modelled(compiler: Compiler, bound: Bound, machine: Machine = H200) -> Trial:
    """One schedule, planned, proved and put before the cost model; `why` is the first line of its diagnostic."""
    try:
        plan, lowered, _ = compiler.proved(bound)
    except TilelinkError as error:
        return Trial(compiler.schedule, None, str(error).splitlines()[0])
    return Trial.of(compiler.schedule, predict(lowered, machine).us, plan)


def modelled_study(
    compiler: Compiler, bound: Bound, limits: Limits, space: Space | None, machine: Machine = H200
) -> Study:
    """A search in which the cost model says how long a schedule takes. In one process, without GPUs."""

    def evaluate(schedules: Sequence[Schedule], late: Callable[[], bool]) -> list[Trial]:
        return [modelled(replace(compiler, schedule=s), bound, machine) for s in schedules]

    plan, _, _ = compiler.proved(bound)
    return _search(compiler, bound, plan, "model", limits, space, evaluate, machine).run()


def explored(
    calls: Calls,
    tensors: Sequence[Any],
    given: dict[str, Any],
    on: On,
    limits: Limits,
    space: Space | None = None,
    *,
    ranks: int | None = None,
    topology: Topology | None = None,
    machine: Machine = H200,
    group: Any = None,
    session: Session | None = None,
) -> Study:
    """What `Operator.explore` gives; arguments as of it."""
    session = session or current()
    if on == "model":
        if topology is None and session is None:
            count = listed(tensors, ranks) if are_lists(tensors) else ranks or 1
            topology = Topology(count, "peer", device=machine.device())
        compiler, bound = calls.planned_for(tensors, ranks, topology, given)
        return modelled_study(compiler, bound, limits, space, machine)

    def search(mine: Sequence[Any], here: Session) -> Study:
        backend = here.backend.topology.backend
        if (on == "simulated") != (backend == "simulated") or here.backend.only_references:
            raise TilelinkError(
                "TL469",
                f"there is no search on `{on}` here",
                why=f"this rank is in the backend {backend}",
                hint='on="model" needs no rank; on="simulated" wants simulated ranks or none, on="gpu" GPUs under torchrun',
            )
        return Tuning(calls, here, mine, dict(given)).search(limits, space)

    return on_ranks(tensors, group, session if on == "simulated" else session or require(), search)


def _free() -> int:
    """Bytes that this GPU has left, with a margin for what kernels and libraries take."""
    free, _ = torch.cuda.mem_get_info()
    return int(0.9 * free)
