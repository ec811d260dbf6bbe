"""Operators that wait for what never comes: one signal of the plan is left out, behind the verifier's back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tests.mapping.plans import emitted
from tilelink.ir.kernel import Checks
from tilelink.ir.topology import Topology
from tilelink.mapping.lower import lower
from tilelink.pipeline.arguments import bind
from tilelink.pipeline.compiled import Compiled
from tilelink.pipeline.operator import Operator


def without_notify(
    operator: Operator, tensors: tuple[torch.Tensor, ...], topology: Topology, checks: Checks, step: str, param: str
) -> Operator:
    """The operator as called with `tensors` on `topology`, but `step` does not notify `param`."""
    broken = replace(operator)  # with a memory of its own
    bound = bind(operator, tensors, {}, topology)
    right = operator.compiled(bound, checks)

    def changed(signal: Any) -> Any:
        hit = (signal.path, signal.op.param, signal.action) == (step, param, "notify")
        return replace(signal, action="elided", reason="left out") if hit else signal

    plan = replace(right.plan, signals=tuple(changed(s) for s in right.plan.signals))
    assert plan != right.plan, f"{step} does not notify {param}"
    # Ranks compare the texts of devices that are alike; this one is to get by.
    plan = replace(plan, topology=replace(topology, device=replace(topology.device, name="of its own")))
    broken.kept[(bound, checks)] = Compiled(plan, lower(plan), right.verdict, emitted(plan, checks))
    return broken
