"""Running a case in the world that is there, and measuring how wrong it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from tilelink.explore.cases import Case, relative_error
from tilelink.explore.replay import Recipe, recipe
from tilelink.ir.topology import Device
from tilelink.runtime.grid import grid_of
from tilelink.runtime.launching import simulated
from tilelink.runtime.session import Session, require, using
from tilelink.runtime.simulated.policy import Policy, Turns
from tilelink.runtime.simulated.records import Recorder
from tilelink.runtime.simulated.scheduler import Blame
from tilelink.tracing import Trace
from tilelink.tuning import Entry, Report


@dataclass(frozen=True, slots=True)
class Outcome:
    """Relative Frobenius errors by rank, the worst of all calls; empty when there is nothing to compare with.

    `seconds`: wall time of all calls with planning, compiling and comparing. `again`: how to simulate the same run once
    more, in sentences.
    """

    errors: tuple[float, ...]
    seconds: float
    again: tuple[str, ...] = ()

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
    policy: Policy | Turns | None = None,
    delayed_stores: bool = False,
    device: Device | None = None,
    recorder: Recorder | None = None,
) -> Outcome:
    """Call the operator on the case's inputs on every rank.

    Args:
        session: this process's rank (`runtime.session.current()`); None: all ranks simulated, as the other arguments
            say.
        calls: back to back, with other inputs each.

    An exception of a simulated run carries the token of the run as a note.
    """
    begin = time.perf_counter()
    again: tuple[str, ...] = ()
    if session is not None:
        with using(_laid_out(session, case)):
            errors = _rank(case, calls)
    else:
        policy = policy if policy is not None else Policy(seed=seed)
        again = _again(recipe(case, calls, str(policy), delayed_stores))
        with Blame(*again):
            errors = simulated(
                lambda: _rank(case, calls),
                case.ranks,
                policy=policy,
                delayed_stores=delayed_stores,
                device=device or Device(),
                recorder=recorder,
                axes=_axes(case),
            )[0]
    return Outcome(tuple(errors), time.perf_counter() - begin, again)


def _again(made: Recipe | None) -> tuple[str, ...]:
    return () if made is None else (f"the same run again: tilelink replay {made.token}",)


def trace_case(case: Case, session: Session | None = None) -> Trace:
    """Trace a call of the operator on the case's inputs: as this process's rank, or on simulated ranks."""

    def rank() -> Trace:
        world = require().world
        on = "cpu" if world.topology.world == "simulated" else "cuda"
        return case.operator.trace(*case.arguments(world.rank, on), **case.given)

    if session is None:
        return simulated(rank, case.ranks, axes=_axes(case))[0]
    with using(_laid_out(session, case)):
        return rank()


def tune_case(
    case: Case, session: Session | None = None, *, budget: float, fresh: bool = False
) -> tuple[Entry, Report | None]:
    """Tune the operator for the case, as this process's rank or on simulated ranks; no report of what the cache had."""

    def rank() -> tuple[Entry, Report | None]:
        world = require().world
        on = "cpu" if world.topology.world == "simulated" else "cuda"
        tuning = case.operator.tuning(*case.arguments(world.rank, on), **case.given)
        known = None if fresh else tuning.known()
        if known is not None:
            return known, None
        report = tuning.search(budget, None)
        return tuning.kept(report), report

    if session is None:
        return simulated(rank, case.ranks, axes=_axes(case))[0]
    with using(_laid_out(session, case)):
        return rank()


def _axes(case: Case) -> dict[str, int] | None:
    return dict(case.axes) or None


def _laid_out(session: Session, case: Case) -> Session:
    """The session with its ranks along the case's axes, if it has any."""
    return session.of(grid_of(dict(case.axes))) if case.axes else session


def _rank(case: Case, calls: int) -> list[float]:
    """On one rank: the errors of all ranks."""
    world = require().world
    on = "cpu" if world.topology.world == "simulated" else "cuda"
    inputs = [replace(case, seed=case.seed + k) for k in range(calls)]
    results = [case.operator(*c.arguments(world.rank, on), **case.given) for c in inputs]
    if case.contraction is None:
        return []
    mine = [relative_error(y, c.expected(world.rank, on)) for y, c in zip(results, inputs, strict=True)]
    return [float(e) for e in world.agree(float(torch.tensor(mine, dtype=torch.float64).amax()))]
