"""Capture, plan, verify, emit, load: what an operator with one schedule is compiled to for one kind of call.

Plans are made, proved and emitted without torch; it is imported where an emitted file is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tilelink.errors import TilelinkError
from tilelink.frontend import Found, Outside, found_by, trace
from tilelink.ir.kernel import KernelSource
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Keep, Plan, Stage, StepPlan, Transfer
from tilelink.ir.schedule import ByRuns, Library, Shaped
from tilelink.ir.streams import Compute, actions
from tilelink.ir.verdict import Verdict
from tilelink.ir.wiring import Wiring
from tilelink.mapping import make_plan
from tilelink.mapping.judge import judged
from tilelink.mapping.lower import lower
from tilelink.pipeline.arguments import Bound, axes_of
from tilelink.runtime.functions import function_of

if TYPE_CHECKING:
    from tilelink.pipeline.operator import Operator
    from tilelink.runtime.call import Loaded


@dataclass(slots=True, eq=False)
class Compiled:
    """What has been made for one set of sizes on one topology. `outside`: what its functions read in modules and closures; None:
    nothing."""

    plan: Plan
    lowered: Lowered
    verdict: Verdict
    source: KernelSource
    outside: Outside | None = None
    loaded: dict[int, Loaded] = field(default_factory=dict[int, "Loaded"])

    def on(self, rank: int) -> Loaded:
        """What runs on a rank."""
        if rank not in self.loaded:
            from tilelink.runtime.call import Loaded
            from tilelink.runtime.kernels import load

            moving = [h.executor for h in self.plan.host if isinstance(h, (Transfer, Keep, Stage))]
            streams = {name: actions(self.lowered, name, rank) for name in moving}
            self.loaded[rank] = Loaded(self.plan, self.source, load(self.source), streams)
        return self.loaded[rank]


def proved(plan: Plan) -> tuple[Lowered, Verdict]:
    """The lowered plan and its verdict. Raises the diagnostic of the proof, if it refuses the plan."""
    verdict, lowered = judged(plan)
    if verdict.error is not None:
        raise verdict.error
    return lowered or lower(plan), verdict


def unproven(operator: Operator, bound: Bound) -> Plan:
    """The plan for bound arguments, to be looked at, whatever the proof would say of it."""
    plan = planned(operator, bound)
    return replace(plan, notes=(*plan.notes, "its proof was left out: a call may be refused"))


def wired(operator: Operator, bound: Bound, found: list[Found] | None = None) -> Wiring:
    """Tensors and steps; `found`: as of `planned`."""
    return trace(
        operator.name, operator.fn, operator.signature, dict(bound.sizes), bound.dtypes, dict(bound.constants),
        operator.loc, axes=axes_of(operator, bound.topology), found=found,
    )  # fmt: skip


def planned(operator: Operator, bound: Bound, found: list[Found] | None = None) -> Plan:
    """The plan for bound arguments, of which nothing is shown yet; `found`: takes up what it depends on outside the operator."""
    found, schedule = [] if found is None else found, operator.schedules
    wiring = wired(operator, bound, found)
    layouts = dict(zip(wiring.arguments, bound.layouts, strict=True))
    plan = make_plan(wiring, bound.topology, schedule, dict(bound.sizes), layouts)
    # What steps get whose function refuses and whose placement says what to do then.
    others = {
        s.path: (library.fallback, library, why) for s, library, why in refusals(plan) if library.fallback is not None
    }
    if others:
        merged = schedule.merged({path: fallback for path, (fallback, _, _) in others.items()})
        plan = make_plan(wiring, bound.topology, merged, dict(bound.sizes), layouts)
        notes = (f"{path}: not by {library.name}, because {why}" for path, (_, library, why) in others.items())
        plan = replace(plan, notes=(*plan.notes, *notes))
    found += [f for s in plan.steps if s.sort_key is not None for f in found_by(s.sort_key)]
    return plan


# ------------------------------------------------------------------------------------------------ functions by panels
def refused(plan: Plan) -> TilelinkError | None:
    """TL411, where a function cannot run on GPUs as it is placed; the same on all ranks."""
    for step, library, why in refusals(plan):
        return TilelinkError(
            "TL411",
            f"`{library.name}` cannot compute `{step.path}` on GPUs",
            loc=step.step.loc,
            why=why,
            hint=f"place it on SMs: {step.path}=tilelink.sms(…)",
        )
    return None


def refusals(plan: Plan) -> Iterator[tuple[StepPlan, Library, str]]:
    """Steps whose function cannot take what rank 0 has, and why; simulated ones take anything."""
    lowered: Lowered | None = None
    for step in plan.steps if plan.topology.backend != "simulated" else ():
        function = function_of(step.library.function) if step.library is not None and step.by_panels else None
        if step.library is None or not isinstance(function, ByRuns) or function.refuses is None:
            continue
        lowered = lowered or lower(plan)
        done = (action for stream in actions(lowered, step.path, 0) for action in stream)
        run = next((a for a in done if isinstance(a, Compute) and a.output is None), None)
        if run is None:
            continue
        at = {dim: (begin, end) for dim, begin, end in run.at}
        extents = [(tuple(end - begin for begin, end in p.box), plan.wiring.tensor(p.buffer).dtype) for p in run.inputs]
        inputs = [Shaped(shape, dtype, plan.topology.device) for shape, dtype in extents]
        why = function.refuses(*inputs, at=at, **dict(step.step.constants))
        if why:
            yield step, step.library, why
