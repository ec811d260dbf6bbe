"""What each statement of a program becomes, in the program's own names: what codegen prints."""

from __future__ import annotations

from tilelink.ir import program as P
from tilelink.ir.lowered import Op, Part
from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.lower.copies import copied
from tilelink.mapping.lower.frame import Frame
from tilelink.mapping.lower.programs import Body


def part_of(plan: Plan, step: StepPlan) -> Part:
    """One tile of a step that workers take."""
    frame = Frame(plan, step, None if step.into is None else plan.step(step.into), by_name=True)
    program = step.step.program
    if program.movement is not None:
        return Part(step.path, tuple(frame.tests), copied(frame), ())
    said: dict[P.Wait | P.Notify, tuple[Op, ...]] = {}
    for op in P.walk(program.body):
        if isinstance(op, P.Tiles):
            frame.tiles[op.var] = frame.tile_by_name(step.loop(op), op.var)
        elif isinstance(op, P.Wait | P.Notify):
            said[op] = Body(frame).op(op)
    return Part(step.path, tuple(frame.tests), (), tuple(said.items()))
