"""Running a case in the backend that is there, and measuring how wrong it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from tilelink.cost import H200, Machine
from tilelink.explore.cases import Case
from tilelink.explore.comparison import PRODUCT, against, error_of, simulated_groups
from tilelink.explore.replay import again
from tilelink.pipeline.tuning import explored, modelled_study
from tilelink.runtime.launching import along, simulated
from tilelink.runtime.session import Session, require, using
from tilelink.runtime.simulated.machine import Recorder
from tilelink.runtime.simulated.scheduler import Blame, Turns, turns_of
from tilelink.tracing import Trace
from tilelink.tuning.search import Limits
from tilelink.tuning.study import On, Study
from tilelink.tuning.tables import Entry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Relative Frobenius errors by rank, the worst of all calls; empty when there is nothing to compare with.

    `against`: what there is to compare with, in words. `seconds`: wall time of all calls with planning, compiling and comparing.
    `again`: how to simulate the same run once more, in sentences.
    """

    errors: tuple[float, ...]
    seconds: float
    again: tuple[str, ...] = ()
    against: str | None = None

    @property
    def worst(self) -> float:
        """NaN if any is."""
        return float(torch.tensor(self.errors, dtype=torch.float64).amax()) if self.errors else 0.0

    def within(self, tolerance: float) -> bool:
        return self.worst <= tolerance  # false for NaN


def run_case(
    case: Case,
    session: Session | None = None,
    *,
    calls: int = 1,
    seed: int = 0,
    policy: str | Turns | None = None,
    delayed_stores: bool = False,
    recorder: Recorder | None = None,
    check: bool = True,
) -> Outcome:
    """Call the operator on the case's inputs on every rank.

    Args:
        session: this process's rank (`runtime.session.current()`); None: all ranks simulated, as the other arguments
            say.
        calls: back to back, with other inputs each.
        check: whether results are compared.

    An exception of a simulated run carries the token of the run as a note.
    """
    begin = time.perf_counter()
    known = against(case) if check else None
    if session is not None and session.backend.group is None and known != PRODUCT:
        known = None  # somebody else simulates the ranks, and unfused forms do not know them
    told: tuple[str, ...] = ()
    if session is None:
        policy = policy if isinstance(policy, Turns) else turns_of(policy or f"random-{seed}")
        told = again(case, calls, str(policy), delayed_stores)
    with Blame(*told):
        errors = _on_ranks(
            case,
            session,
            lambda: _errors(case, calls, known is not None),
            policy=policy,
            delayed_stores=delayed_stores,
            recorder=recorder,
        )
    return Outcome(tuple(errors), time.perf_counter() - begin, told, known)


def trace_case(case: Case, session: Session | None = None) -> Trace:
    """Trace a call of the operator on the case's inputs: as this process's rank, or on simulated ranks."""

    return _on_ranks(case, session, lambda: case.operator.trace(*_arguments(case), **case.given))


def tune_case(
    case: Case,
    session: Session | None = None,
    *,
    budget: float,
    fresh: bool = False,
) -> tuple[Entry, Study | None]:
    """Tune the operator for the case, as this process's rank or on simulated ranks; no study of what the cache had."""

    def rank() -> tuple[Entry, Study | None]:
        return case.operator.tuning(*_arguments(case), **case.given).found(budget, fresh=fresh)

    return _on_ranks(case, session, rank)


def explore_case(
    case: Case,
    session: Session | None = None,
    *,
    limits: Limits,
    on: On = "model",
    machine: Machine = H200,
) -> Study:
    """What `Operator.explore` gives for the case: on the model from its sizes alone, else as this process's rank or on
    simulated ranks."""
    if on == "model":
        bound = case.bound(case.topology_on(machine))
        return modelled_study(case.operator, bound, limits, None, machine)

    def rank() -> Study:
        return explored(case.operator, _arguments(case), case.given, on, limits)

    return _on_ranks(case, session, rank)


def _on_ranks(case: Case, session: Session | None, rank: Callable[[], T], **options: Any) -> T:
    """What `rank` gives as this process's rank, or as the first of simulated ones with `options`, along the case's axes."""
    axes = None if isinstance(case.ranks, int) else dict(case.ranks)
    if session is None:
        with simulated_groups():
            return simulated(rank, case.topology.ranks, axes=axes, **options)[0]
    with using(along(session, axes)):
        return rank()


# -------------------------------------------------------------------------------------------------------------- on one rank
def _here() -> tuple[int, str]:
    """Which rank this is, and where its tensors lie."""
    backend = require().backend
    return backend.rank, "cpu" if backend.topology.backend == "simulated" else "cuda"


def _arguments(case: Case) -> list[torch.Tensor]:
    return case.arguments(*_here())


def _errors(case: Case, calls: int, compared: bool) -> list[float]:
    """Of all ranks."""
    inputs = [replace(case, seed=case.seed + k) for k in range(calls)]
    results = [case.operator(*_arguments(c), **case.given) for c in inputs]
    if not compared:
        return []
    mine = [error_of(c, require().backend, _here()[1], y) for y, c in zip(results, inputs, strict=True)]
    return [float(e) for e in require().backend.agree(float(torch.tensor(mine, dtype=torch.float64).amax()))]
