"""Which schedule a call runs with where the user gives none: a measured one, the unfused form, or what the operator ships."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilelink.cost import predict, unestimated, unfused
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Library, Schedule
from tilelink.ir.shape import Signature
from tilelink.mapping.lower import lower
from tilelink.pipeline.arguments import Bound
from tilelink.pipeline.compiled import refused
from tilelink.tuning.tables import Entry, Problem, nearest, shipped

if TYPE_CHECKING:
    from tilelink.pipeline.operator import Operator


@dataclass(frozen=True, slots=True)
class Choice:
    """The schedule of a call, and why."""

    schedule: Schedule
    why: str

    def __str__(self) -> str:
        return f"{'unfused' if self.schedule.unfused else 'overlapped'}: {self.why}"


def problem_of(of: Operator, bound: Bound) -> Problem:
    topology, axes = bound.topology, of.signature.axes
    # How many ranks there are along each axis, where the operator has several: other shapes are other problems.
    along = [(axis, topology.size(axis)) for axis in axes] if len(axes) > 1 else []
    return Problem(
        operator=of.name + "".join(f" {k}={v}" for k, v in (*bound.constants, *along)),
        signature=str(of.signature),
        gpu=topology.gpu,
        backend=topology.backend,
        ranks=topology.ranks,
        dtypes=bound.dtypes,
        sizes=tuple(sorted(bound.sizes)),
    )


def choose(operator: Operator, bound: Bound, *, plain: bool) -> Choice:
    """How a call runs, and why: as somebody has said, or was measured at such sizes; else as is estimated, or was measured at
    others where nothing can be estimated. `plain`: there is an unfused form that can run."""
    own, problem = operator.schedules, problem_of(operator, bound)
    if operator.scheduled:
        return Choice(own, "as it is scheduled")
    found = measured(problem, plain)
    if found is not None and not found.problem.alike(problem) and not inestimable(operator.compiled(bound).plan):
        found = None  # of other sizes an estimate knows more
    if found is None:
        return estimated(operator.compiled(bound).plan, own) if plain else Choice(own, "as the operator comes")
    if any(isinstance(p, Library) and p.runs for _, p in found.schedule.entries):
        # Measured with heads of a size that the library takes, perhaps.
        why = refused(operator.calls.variant(found.schedule).compiled(bound).plan)
        if why is not None:
            return Choice(own, f"as the operator comes: {why.why}")
    sizes = " ".join(f"{n}={v}" for n, v in found.problem.sizes)
    return Choice(found.schedule, f"measured at {sizes}, {found.measured}")


def measured(problem: Problem, plain: bool) -> Entry | None:
    """What the package ships for such a problem. `plain`: there is an unfused form that can run."""
    found = nearest(shipped(), problem)
    return found if found is None or plain or not found.schedule.unfused else None


def reads_tables(plan: Plan) -> bool:
    """Whether what an operator does depends on tables, which its unfused form copies to the host: no captured call can."""
    return any(p.shape.contract is not None for s in plan.steps for p in s.step.program.params)


def inestimable(plan: Plan) -> str:
    """Why nobody can say which form is faster, or the plain one cannot be had; empty where it can be said."""
    if plan.topology.shared:
        return "ranks share GPUs, whose kernels take turns"
    return "its unfused form would have to look at the tables" if reads_tables(plan) else unestimated(lower(plan))


def estimated(plan: Plan, own: Schedule) -> Choice:
    """The form that is estimated to be faster: the unfused one, or what the operator comes with."""
    if plan.topology.ranks == 1 and not reads_tables(plan):
        return Choice(Schedule(unfused=True), "one rank has nobody to exchange anything with")
    why = inestimable(plan)
    if why:
        return Choice(own, f"as the operator comes: {why}")
    lowered = lower(plan)
    overlapped, separate = predict(lowered).us, unfused(lowered)
    said = f"estimated: {overlapped:.0f} µs overlapped, {separate:.0f} µs one after the other"
    if overlapped >= separate:
        return Choice(Schedule(unfused=True), said)
    return Choice(own, f"as the operator comes; {said}")


def undivided(signature: Signature, bound: Bound, uneven: frozenset[str] = frozenset()) -> list[str]:
    """Dimensions, but for `uneven` ones, of which the ranks do not hold parts of one size, which is what libraries know."""
    sizes = dict(bound.sizes)
    split = [a for s in signature.shapes for a in s.axes if a.split in signature.axes and not a.own_slice]
    names = {a.name: bound.topology.size(a.split or "") for a in split if a.name not in uneven}
    return [name for name, ranks in names.items() if sizes.get(name, 1) % ranks]
