"""`Operator.tune`: candidates as the search wants them, and what is kept of its result."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import platformdirs
import torch
import triton

from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Schedule
from tilelink.pipeline.arguments import Bound
from tilelink.pipeline.choosing import reads_tables
from tilelink.pipeline.preparing import prepare, run
from tilelink.pipeline.stages import Stages
from tilelink.runtime import environment
from tilelink.runtime.call import Prepared
from tilelink.runtime.memory import regions
from tilelink.runtime.session import Session
from tilelink.tuning import SLOTS, DiskCache, Entry, Problem, Report, Search, Space, space_of
from tilelink.version import __version__

if TYPE_CHECKING:
    from tilelink.pipeline.operator import Operator

TOLERANCE = 3e-2
"""Of a candidate's result against the plain form's; both are rounded."""


@dataclass(slots=True)
class Trial:
    """A candidate of `tuning.search`: the operator with one schedule, on this rank's tensors."""

    operator: Operator
    session: Session
    bound: Bound
    tensors: Sequence[Any]
    given: dict[str, Any]
    prepared: Prepared | None = None

    def legal(self) -> None:
        self._stages()

    def needs(self) -> int:
        return sum(r.nbytes for r in regions(self._stages().plan))

    def _stages(self) -> Stages:
        return self.operator.stages(self.bound, self.session.world.topology, self.session.vigil.checks)

    def allocate(self) -> None:
        self.prepared = prepare(self.operator.maker, self.session, self.tensors, (), self.given)

    def compile(self) -> None:
        assert self.prepared is not None
        self.prepared.load(self.tensors)

    def run(self, outs: Sequence[torch.Tensor] = ()) -> Any:
        if self.prepared is None:
            self.allocate()
        assert self.prepared is not None
        values = run(self.session, self.prepared, self.tensors, outs)
        return values[0] if len(values) == 1 else values

    def checked(self) -> Any:
        assert self.prepared is not None
        return self.run([make().zero_() for make in self.prepared.fresh])

    def close(self) -> None:
        self.prepared = None
        self.session.close(self.operator.maker.identity)


@dataclass(slots=True)
class Tuning:
    """Tuning one operator for one kind of call, on one rank."""

    operator: Operator
    session: Session
    tensors: Sequence[Any]
    given: dict[str, Any]
    bound: Bound
    problem: Problem
    plan: Plan
    plain: Callable[[], Any] | None

    def known(self) -> Entry | None:
        """What rank 0 has in its cache, for all ranks. Collective."""
        found = self.cache().load(self.problem) if self.session.world.rank == 0 else None
        return self.session.world.agree(found)[0]

    def search(self, budget: float, space: Space | None) -> Report:
        """Collective."""
        # Now, and not when a candidate has run: that may happen on some ranks only, and this is collective.
        wanted = [_tensors(self.plain())] if self.plain is not None else []
        world = self.session.world

        def same(got: Any) -> bool:
            """As the plain form, or as the first candidate, which is the operator as it comes."""
            if not wanted:
                wanted.append(_tensors(got))
            return all(_close(a, b) for a, b in zip(_tensors(got), wanted[0], strict=True))

        def make(schedule: Schedule) -> Trial:
            return Trial(self.operator.with_schedule(schedule), self.session, self.bound, self.tensors, self.given)

        return Search(
            world=world,
            plan=self.plan,
            start=self.operator.schedules,
            space=space if space is not None else space_of(self.plan),
            make=make,
            same=same,
            reference=self.plain,
            plain_may_win=not reads_tables(self.plan),
            free=_free if world.topology.world != "simulated" else lambda: 1 << 40,
            budget=budget,
            rounds=1 if world.topology.world == "simulated" else 11,
            slots=SLOTS if space is None and any(b.slots > 1 for b in self.plan.buffers) else (),
        ).run()

    def kept(self, report: Report) -> Entry:
        """The result as an entry, also in the cache on disk; the plain form where it is the fastest."""
        plain, schedule = report.sequential_ms, report.winner
        ms = plain if schedule.sequential and plain is not None else report.best_ms
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        words = f"{today}, torch {torch.__version__}, Triton {triton.__version__}, tilelink {__version__}"
        entry = Entry(self.problem, schedule, ms, plain, words)
        if self.session.world.rank == 0:
            self.cache().save(entry)
        return entry

    def cache(self) -> DiskCache:
        root = environment.cache_root() or platformdirs.user_cache_path("tilelink")
        return DiskCache(root / "tuned", f"{__version__} {torch.__version__} {triton.__version__}")


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    if got.shape != want.shape:
        return False
    if not want.dtype.is_floating_point:
        return torch.equal(got.long(), want.long())
    return bool((got.float() - want.float()).norm() <= TOLERANCE * want.float().norm())  # false for NaN


def _free() -> int:
    """Bytes that this GPU has left, with a margin for what kernels and libraries take."""
    free, _ = torch.cuda.mem_get_info()
    return int(0.9 * free)
