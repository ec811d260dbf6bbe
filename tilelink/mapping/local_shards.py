"""A local shard that is read in the argument holds what would have been moved, and lies as the text takes it to lie."""

from __future__ import annotations

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir.plan import InPlace, Plan, StepPlan
from tilelink.proof.found import REPORT


def check_local_shards(plan: Plan) -> str:
    """One copy engine moves the argument as it is, position by position, and whoever reads the local shard in the argument
    waits for the tensor. (That nobody misses what is not moved, and that the argument reaches as far, tables show.)

    Raises:
        TilelinkError: TL609.
    """
    for tensor in plan.read_in_place:
        makers = [s for s in plan.steps if s.step in plan.wiring.producers(tensor)]
        for step in plan.steps:
            for own in (i for i in step.in_place if i.tensor == tensor):
                _check(plan, step, own, makers)
    named = ", ".join(f"`{t}`" for t in plan.read_in_place)
    return f"read where the rank has brought it: {named}" if named else "nothing is read in place of what moves"


def _check(plan: Plan, step: StepPlan, own: InPlace, makers: list[StepPlan]) -> None:
    if len(makers) != 1 or not _moved_as_it_is(plan, makers[0], own):
        what = f"whose local shard is not that of `{own.source}`"
        raise _refused(step, own, what, "reader and mover have to mean the same elements", makers, step.step.loc)
    source, tensor = (plan.buffer(name).extents[own.axis + 1 :] for name in (own.source, own.tensor))
    if source != tensor:
        what = f"whose rows are not as long as those of `{own.source}`"
        raise _refused(step, own, what, "the text reads both by the strides of one", makers, step.step.loc)
    for s in plan.signals:
        if s.path == step.path and s.action != "await" and step.step.binding(s.op.param).tensor == own.tensor:
            why = "the text finds the local shard where it waits for the tensor"
            raise _refused(step, own, "without a wait", why, makers, s.op.loc)


def _moved_as_it_is(plan: Plan, maker: StepPlan, own: InPlace) -> bool:
    """Position by position, from an argument that is split along the axis and nowhere else."""
    movement = maker.step.program.movement
    if movement is None:
        return False
    ends = [maker.step.binding(p) for p in (movement.source, movement.destination)]
    source, tensor = (plan.wiring.tensor(b.tensor) for b in ends)
    straight = all(v.axis == k and not v.local for b in ends for k, v in enumerate(b.view))
    splits = [(k, a.split) for k, a in enumerate(source.axes) if a.split is not None or a.own_slice]
    return (
        (source.name, tensor.name, source.origin, source.dtype) == (own.source, own.tensor, "argument", tensor.dtype)
        and straight
        and [a.size for a in source.axes] == [a.size for a in tensor.axes]
        and splits == [(own.axis, "R")]
        and plan.layout(source.name).contiguous
    )


def _refused(
    step: StepPlan, own: InPlace, what: str, why: str, makers: list[StepPlan], loc: Loc | None
) -> TilelinkError:
    return TilelinkError(
        "TL609",
        f"`{step.path}` reads `{own.tensor}` in place, {what}",
        loc=loc,
        why=why,
        hint=REPORT,
        notes=tuple(Note("moved here", m.step.loc) for m in makers),
    )
