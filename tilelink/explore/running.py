"""Running a case in the world that is there, and measuring how wrong it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from tilelink.explore.cases import Case, relative_error
from tilelink.ir.topology import Device
from tilelink.runtime.session import Session, require, simulated, using
from tilelink.runtime.simulated.records import Recorder


@dataclass(frozen=True, slots=True)
class Outcome:
    """Relative Frobenius errors by rank, the worst of all calls; empty when there is nothing to compare with.

    `seconds`: wall time of all calls with planning, compiling and comparing.
    """

    errors: tuple[float, ...]
    seconds: float

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
    device: Device | None = None,
    recorder: Recorder | None = None,
) -> Outcome:
    """Call the operator on the case's inputs on every rank.

    Args:
        session: this process's rank (`runtime.session.current()`); None: all ranks simulated, by `seed`, `device` and
            `recorder`.
        calls: back to back, with other inputs each.
    """
    begin = time.perf_counter()
    if session is not None:
        with using(session):
            errors = _rank(case, calls)
    else:
        errors = simulated(
            lambda: _rank(case, calls), case.ranks, seed=seed, device=device or Device(), recorder=recorder
        )[0]
    return Outcome(tuple(errors), time.perf_counter() - begin)


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
