"""Lowering: a plan's decisions become ops in formulas. Who hears, which flag, how many, which bytes on which rank: once, here."""

from __future__ import annotations

from tilelink.ir.host import MAIN
from tilelink.ir.lowered import STAGE, Buffer, Lowered
from tilelink.ir.plan import Plan
from tilelink.ir.shape import RANK_AXIS
from tilelink.mapping.lower.call import Call
from tilelink.mapping.lower.frame import NotLowered


def lower(plan: Plan) -> Lowered:
    """
    Raises:
        NotLowered: data says which panels a function of a library takes.
    """
    call = Call(plan)
    call.run()
    buffers = [Buffer(b.tensor, b.extents, b.dtype, b.space, b.slots) for b in plan.buffers]
    staged = [
        Buffer(f"{b.tensor}{STAGE}", b.stage, b.dtype, "symmetric", b.slots)
        for b in plan.buffers
        if b.stage is not None
    ]
    dimensions = tuple((a, plan.topology.size(a)) for a in (RANK_AXIS, *plan.axes))
    return Lowered(
        name=plan.wiring.name,
        ranks=dimensions,
        sizes=plan.sizes,
        tables=(*plan.tables, *call.tables.items()),
        buffers=(*buffers, *staged),
        flags=tuple(call.flags.values()),
        executors=tuple(call.executors),
        ends=call.heads[MAIN],
        slots=plan.schedule.slots,
    )


__all__ = ["NotLowered", "lower"]
