"""What a rank has brought along itself and reads where it lies: the same values, and nobody misses what is not moved."""

from __future__ import annotations

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.plan import InPlace, Plan, StepPlan
from tilelink.ir.program import Load, Wait, walk
from tilelink.mapping.libraries import RUN, axis_of, tiled
from tilelink.mapping.verify.mistakes import REPORT


def check_brought(plan: Plan) -> str:
    """One copy engine moves an argument as it is, part by part, and everyone reads the own part in the argument, in whole
    tiles.

    Raises:
        TilelinkError: TL609.
    """
    for tensor in plan.read_in_place:
        readers = [s for s in plan.steps for b in s.step.bindings if b.tensor == tensor]
        makers = [s for s in readers if s.step in plan.wiring.producers(tensor)]
        for step in readers:
            if step not in makers:
                _check_reader(plan, step, tensor, makers)
    return (
        ""
        if not plan.read_in_place
        else "; own parts read in place: " + ", ".join(f"`{t}`" for t in plan.read_in_place)
    )


def _check_reader(plan: Plan, step: StepPlan, tensor: str, makers: list[StepPlan]) -> None:
    own = [i for i in step.in_place if i.tensor == tensor]
    if len(own) != 1:
        raise _wrong(step, tensor, "and it waits for a part that is not moved", makers)
    if len(makers) != 1 or not _moved_as_it_is(plan, makers[0], own[0]):
        raise _wrong(step, tensor, f"whose own part is not that of `{own[0].source}`", makers)
    axis = plan.wiring.tensor(tensor).axes[own[0].axis]
    grid = next((g for g in step.grid if g.var == own[0].var), None)
    if own[0].var == RUN and step.by_runs:
        grid = axis_of(step)
    kinds = ("cut",) if step.library is not None else ("cut", "plain") if step.engine == "workers" else ()
    if grid is None or grid.kind not in kinds or not _named_by(step, own[0]):
        raise _wrong(
            step,
            tensor,
            f"and no {f'tile `{own[0].var}`' if own[0].var else 'run'} says along axis `{axis.name}` whose part it reads",
            makers,
        )
    size = int(F.evaluate(axis.size, plan.env(0)))
    if grid.kind == "plain" and (grid.tile is None or size % (grid.tile * plan.topology.ranks)):
        what = f"and a tile of {grid.tile or 'all'} reaches into two parts of {axis.name}={size}"
        raise _wrong(step, tensor, what, makers)


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


def _named_by(step: StepPlan, own: InPlace) -> bool:
    """Whether every access and every wait names its tile on the axis by the variable."""
    ops = [
        op
        for op in walk(step.step.program.body)
        if isinstance(op, (Load, Wait)) and step.step.binding(op.param).tensor == own.tensor
    ]
    at = [
        name if not v.local else None
        for op in ops
        for v, name in zip(
            step.step.binding(op.param).view, tiled(step.step, op.param, op.index, runs=step.by_runs), strict=True
        )
        if v.axis == own.axis
    ]
    return len(at) == len(ops) and set(at) <= {own.var}


def _wrong(step: StepPlan, tensor: str, what: str, makers: list[StepPlan]) -> TilelinkError:
    return TilelinkError(
        "TL609",
        f"`{step.path}` reads `{tensor}`, {what}",
        loc=step.step.loc,
        why="a rank's own part is not moved where all who read it find it in the argument that the rank has brought along",
        hint=REPORT,
        notes=tuple(Note("moved here", m.step.loc) for m in makers),
    )
