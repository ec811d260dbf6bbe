"""Programs whose tiles a function of a library computes, on streams."""

from __future__ import annotations

from tilelink.ir.lowered import Compute, Op, Tiles, unplaced
from tilelink.ir.program import Bounds, Load, Notify, Store, Wait, walk
from tilelink.ir.program import Tiles as Loop
from tilelink.mapping.lower.frame import Frame, NotLowered, under
from tilelink.mapping.lower.programs import Body, bounds


def called(frame: Frame) -> Tiles:
    """All waits of the program, the function on views of the tile, all notifies: what a loop walks, the function gets whole.

    Raises:
        NotLowered: it is called panel by panel.
    """
    step = frame.step
    assert step.library is not None
    if step.by_runs:
        raise NotLowered(f"`{step.path}` takes its tiles by panels")
    program = step.step.program
    frame.walked = frozenset(op.var for op in walk(program.body) if isinstance(op, Loop))
    found: dict[type, dict[Op, Op]] = {kind: {} for kind in (Wait, Load, Store, Notify)}
    for op in walk(program.body):
        if isinstance(op, Bounds):
            bounds(frame, op)
        elif type(op) in found:
            for lowered in Body(frame).op(op):
                # Once, whatever lines of the program say it: a doorbell that is waited for twice is never rung again.
                found[type(op)].setdefault(unplaced(lowered), lowered)
    waits, reads, writes, told = (tuple(ops.values()) for ops in found.values())
    ops = (*waits, *reads, Compute(step.library.name, step.step.loc), *writes, *told)
    return Tiles(step.path, step.total, frame.axes, step.order, tuple(frame.lets), under(frame.tests, ops))
