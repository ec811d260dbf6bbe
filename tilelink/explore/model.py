"""The cost model's door: how long a plan takes on a machine, what everything does until then, how far it is from its bound."""

from __future__ import annotations

from tilelink import cost
from tilelink.cost import H200, MACHINES, Bound, Interval, Limit, Machine, Prediction
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan
from tilelink.mapping.lower import lower


def predict(plan: Plan | Lowered, machine: Machine = H200) -> Prediction:
    """How long a call takes, all ranks beginning it at once. A plan made for `machine.device()` uses as many SMs as that has."""
    return cost.predict(_lowered(plan), machine)


def bound(plan: Plan | Lowered, machine: Machine = H200) -> Bound:
    """The least time that any schedule of the call can have, which resource says so, and how far the plan is from it."""
    return cost.bound(_lowered(plan), machine)


def _lowered(plan: Plan | Lowered) -> Lowered:
    return lower(plan) if isinstance(plan, Plan) else plan


__all__ = ["H200", "MACHINES", "Bound", "Interval", "Limit", "Machine", "Prediction", "bound", "predict"]
