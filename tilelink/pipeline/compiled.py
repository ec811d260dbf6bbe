"""Capture, plan, verify, emit, load: what an operator with one schedule is compiled to, once per kind of call.

Plans are made, proved and emitted without torch; it is imported where an emitted file is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tilelink.codegen import emit
from tilelink.errors import TilelinkError
from tilelink.frontend import Found, Outside, found_by, trace
from tilelink.ir.kernel import Checks, KernelSource
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Keep, Plan, Stage, StepPlan, Transfer
from tilelink.ir.schedule import ByRuns, Library, Placement, Schedule, Shaped
from tilelink.ir.streams import Actions, Compute, actions
from tilelink.ir.verdict import Verdict
from tilelink.ir.wiring import Wiring
from tilelink.mapping import make_plan
from tilelink.mapping.judge import judge, judged
from tilelink.mapping.lower import lower
from tilelink.pipeline.arguments import Bound, Declared, axes_of
from tilelink.runtime.cache import Recent
from tilelink.runtime.functions import function_of

if TYPE_CHECKING:
    from tilelink.runtime.call import Loaded

KEPT = 256
"""Plans, proofs and emitted texts that an operator keeps: one per set of sizes, memory layouts and checks."""


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

            source = self.source
            module = load(source.text, source.digest, source.name, source.lines, source.advice)
            self.loaded[rank] = Loaded(self.plan, source, module, self.streams(rank))
        return self.loaded[rank]

    def streams(self, rank: int) -> dict[str, Actions]:
        """What its streams do, by executor."""
        moving = [h.executor for h in self.plan.host if isinstance(h, (Transfer, Keep, Stage))]
        return {name: actions(self.lowered, name, rank) for name in moving}

    def traced(self, checks: Checks) -> Compiled:
        """The same plan, emitted so that it writes down when it does what."""
        source = emit(self.plan, self.lowered, checks, traced=True)
        return Compiled(self.plan, self.lowered, self.verdict, source, self.outside)


def emitted(plan: Plan, checks: Checks = Checks(), *, traced: bool = False) -> KernelSource:
    """The text of a plan; `checks`, `traced`: as of `tilelink.codegen.emit`."""
    return emit(plan, lower(plan), checks, traced=traced)


class Identity:
    """Which operator with which schedule, by value; its hash is computed once."""

    __slots__ = ("_hash", "_value")

    def __init__(self, *value: object) -> None:
        self._value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._value == other._value


@dataclass(slots=True, eq=False)
class Compiler(Declared):
    """Compiles what a user has declared, with one schedule, and keeps what it has made."""

    schedule: Schedule
    identity: Identity = field(init=False)
    kept: Recent[Compiled] = field(init=False)

    def __post_init__(self) -> None:
        self.identity = Identity(self.fn, self.signature, self.name, self.loc, self.schedule)
        self.kept = Recent[Compiled](KEPT)

    def compiled(self, bound: Bound, checks: Checks = Checks()) -> Compiled:
        """Plan, verdict and source for bound arguments, made once."""
        key = (bound, checks)
        known = self.kept.get(key)
        if known is None or (known.outside is not None and known.outside.changed()):
            found: list[Found] = []
            plan, lowered, verdict = self.proved(bound, found)
            outside = Outside(found) if found else None
            known = self.kept[key] = Compiled(plan, lowered, verdict, emit(plan, lowered, checks), outside)
        return known

    def proved(self, bound: Bound, found: list[Found] | None = None) -> tuple[Plan, Lowered, Verdict]:
        """Plan, lowered plan and verdict for bound arguments; `found`: takes up what they depend on outside of the operator.

        Raises:
            TilelinkError: there is no plan, or the proof refuses it.
        """
        plan = self._planned(bound, found)
        verdict, lowered = judged(plan)
        if verdict.error is not None:
            raise verdict.error
        return plan, lowered or lower(plan), verdict

    def verdict(self, bound: Bound) -> Verdict:
        """The verdict on the plan for bound arguments, whichever it is."""
        return judge(self._planned(bound))

    def unproven(self, bound: Bound) -> Plan:
        """The plan for bound arguments, to be looked at, whatever the proof would say of it."""
        plan = self._planned(bound)
        return replace(plan, notes=(*plan.notes, "its proof was left out: a call may be refused"))

    def wiring(self, bound: Bound, found: list[Found] | None = None) -> Wiring:
        """Tensors and steps; `found`: as of `proved`."""
        return trace(
            self.name, self.fn, self.signature, dict(bound.sizes), bound.dtypes, dict(bound.constants), self.loc,
            ranks=bound.topology.ranks, axes=axes_of(self, bound.topology), found=found,
        )  # fmt: skip

    def _planned(self, bound: Bound, found: list[Found] | None = None) -> Plan:
        found = [] if found is None else found
        wiring = self.wiring(bound, found)
        layouts = dict(zip(wiring.arguments, bound.layouts, strict=True))
        plan = make_plan(wiring, bound.topology, self.schedule, dict(bound.sizes), layouts)
        others, notes = instead(plan)
        if others:
            plan = make_plan(wiring, bound.topology, self.schedule.merged(others), dict(bound.sizes), layouts)
            plan = replace(plan, notes=plan.notes + notes)
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


def instead(plan: Plan) -> tuple[dict[str, Placement], tuple[str, ...]]:
    """What steps get whose function refuses and whose placement says what to do then; and why, as notes of the plan."""
    found = [(s.path, library, why) for s, library, why in refusals(plan)]
    notes = tuple(
        f"{path}: not by {library.name}, because {why}" for path, library, why in found if library.fallback is not None
    )
    return {path: library.fallback for path, library, _ in found if library.fallback is not None}, notes


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
