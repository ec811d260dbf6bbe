"""`Operator.tune`: candidates as the search wants them, and what is kept of its result."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton

from tilelink.errors import TilelinkError
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Schedule
from tilelink.mapping.lower import lower
from tilelink.pipeline.arguments import Bound
from tilelink.pipeline.calls import Calls
from tilelink.pipeline.choosing import problem_of, reads_tables
from tilelink.pipeline.compiled import Compiled, Compiler
from tilelink.pipeline.library_calls import known, unknown
from tilelink.pipeline.prepared import Prepared, bind_here
from tilelink.runtime.aliasing import stored
from tilelink.runtime.memory import regions
from tilelink.runtime.session import Session
from tilelink.tuning.comparison import apart, results, tolerance
from tilelink.tuning.search import Report, Search
from tilelink.tuning.space import SLOTS, Space, space_of
from tilelink.tuning.tables import DiskCache, Entry, Problem
from tilelink.version import __version__

log = logging.getLogger("tilelink")


Written = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Arguments that programs write to, and what they were when the call came."""


@dataclass(slots=True)
class Trial:
    """A candidate of `tuning.search`: the operator with one schedule, on this rank's tensors."""

    compiler: Compiler
    session: Session
    bound: Bound
    tensors: Sequence[Any]
    given: dict[str, Any]
    written: Written = ()
    prepared: Prepared | None = None
    opened: bool = False

    def legal(self) -> None:
        self._compiled()

    def needs(self) -> int:
        return sum(r.nbytes for r in regions(self._compiled().plan))

    def _compiled(self) -> Compiled:
        return self.compiler.compiled(self.bound, self.session.backend.topology, self.session.vigil.checks)

    def allocate(self) -> None:
        self.opened = self.compiler.identity not in self.session.workspaces
        self.prepared = Prepared(self.compiler, self.session, self.tensors, (), self.given)

    def compile(self) -> None:
        assert self.prepared is not None
        self.prepared.load(self.tensors)

    def run(self, outs: Sequence[torch.Tensor] = ()) -> Any:
        if self.prepared is None:
            self.allocate()
        assert self.prepared is not None
        values = self.prepared.run(self.tensors, outs)
        return values[0] if len(values) == 1 else values

    def checked(self) -> tuple[torch.Tensor, ...]:
        """Results, and arguments that programs write to."""
        assert self.prepared is not None
        restore(self.written)
        values = results(self.run([make().zero_() for make in self.prepared.fresh]))
        return (*values, *(t.clone() for t, _ in self.written))

    def close(self) -> None:
        """A workspace that calls have used before stays with them."""
        self.prepared = None
        if self.opened:
            self.session.close(self.compiler.identity)


@dataclass(slots=True)
class Tuning:
    """Tuning one operator for one kind of call, on one rank."""

    calls: Calls
    session: Session
    tensors: Sequence[Any]
    given: dict[str, Any]
    bound: Bound
    problem: Problem
    plan: Plan
    plain: Callable[[], Any] | None
    written: Written = field(init=False)

    @staticmethod
    def of(calls: Calls, session: Session, tensors: Sequence[Any], given: dict[str, Any]) -> Tuning:
        """Of a call."""
        compiler, topology = calls.compiler, session.backend.topology
        bound = bind_here(compiler, session, tensors, given)
        plain = (
            (lambda: calls.plain(session, tensors, None, given)) if calls.has_plain(session.backend, bound) else None
        )
        problem = problem_of(compiler.name, compiler.signature, bound, topology)
        return Tuning(calls, session, tensors, given, bound, problem, compiler.compiled(bound, topology).plan, plain)

    @property
    def _own(self) -> Schedule:
        """What the operator comes with."""
        return self.calls.compiler.schedule

    def __post_init__(self) -> None:
        self.written = [(self.tensors[k], self.tensors[k].clone()) for k, _ in stored(self.plan)]

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
        return self.calls.compiler.identity, entry

    def _refused(self, entry: Entry, space: Space | None) -> str:
        """Why a schedule from disk is not taken; the same on all ranks."""
        further = [p for options in (space or {}).values() for p in options]
        functions = known(self._own, self.plan.wiring, further)
        told = self.session.backend.agree(unknown(entry.schedule, functions) or self._without_plain(entry))
        problem = next((why for why in told if why), "")
        if problem or entry.schedule.unfused:
            return problem
        search = self._search(0.0, {})
        try:
            own = "" if self._plain_says else search.wrong(replace(self._own, unfused=False))
            problem = own or search.wrong(entry.schedule)
        finally:
            restore(self.written)
        return problem and f"{'the operator by default' if own else 'it'} does not run here, or not right: {problem}"

    def _without_plain(self, entry: Entry) -> str:
        if not entry.schedule.unfused or (self.plain is not None and not reads_tables(self.plan)):
            return ""
        return "it is the unfused form, which such calls do not have"

    def search(self, budget: float, space: Space | None) -> Report:
        """Collective."""
        try:
            return self._search(budget, space).run()
        finally:
            restore(self.written)

    @property
    def _plain_says(self) -> bool:
        """Whether the unfused form says what is right: nobody knows what it does to arguments."""
        return self.plain is not None and not self.written

    def _search(self, budget: float, space: Space | None) -> Search:
        # Now, and not when a candidate has run: that may happen on some ranks only, and this is collective.
        wanted = [results(self.plain())] if self.plain is not None and self._plain_says else []
        backend = self.session.backend

        def same(got: tuple[torch.Tensor, ...]) -> bool:
            """As the unfused form, or as the first candidate, which is the operator by default."""
            if not wanted:
                wanted.append(got)
            return apart(got, wanted[0]) <= tolerance(t.dtype for t in (*self.tensors, *wanted[0]))

        def make(schedule: Schedule) -> Trial:
            compiler = self.calls.compiler.with_schedule(schedule)
            return Trial(compiler, self.session, self.bound, self.tensors, self.given, self.written)

        def lowered(schedule: Schedule) -> Lowered:
            return lower(self.calls.compiler.with_schedule(schedule).unproven(self.bound, backend.topology))

        return Search(
            backend=backend,
            plan=self.plan,
            start=self._own,
            space=space if space is not None else space_of(self.plan),
            make=make,
            lowered=lowered,
            same=same,
            reference=self.plain,
            plain_may_win=not reads_tables(self.plan),
            free=_free if backend.topology.backend != "simulated" else lambda: 1 << 40,
            budget=budget,
            rounds=1 if backend.topology.backend == "simulated" else 11,
            slots=SLOTS if space is None and any(b.slots > 1 for b in self.plan.buffers) else (),
        )

    def kept(self, report: Report) -> Entry:
        """The result as an entry, also in the cache on disk; the unfused form where it is the fastest."""
        plain, schedule = report.sequential_ms, report.winner
        ms = plain if schedule.unfused and plain is not None else report.best_ms
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


def restore(written: Written) -> None:
    for t, before in written:
        t.copy_(before)


def _free() -> int:
    """Bytes that this GPU has left, with a margin for what kernels and libraries take."""
    free, _ = torch.cuda.mem_get_info()
    return int(0.9 * free)
