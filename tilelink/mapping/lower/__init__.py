"""Lowering: a plan's decisions become ops in formulas. Who hears, which flag, how many, which bytes on which rank: once, here."""

from __future__ import annotations

from tilelink.ir.lowered import STAGE, Buffer, Lowered
from tilelink.ir.plan import MAIN, Plan
from tilelink.ir.shape import RANK_AXIS
from tilelink.mapping.lower.call import Call


def lower(plan: Plan, *, text: bool = True) -> Lowered:
    """What a plan means. What raw pointers do (`Plan.unverified`) has no ops. `text`: with its `parts`, which are for text.

    Raises:
        TilelinkError: TL609, a side stream that is used outside its fork and its join, or streams of a step that go on apart.
    """
    call = Call(plan, text)
    call.run()
    staged = (
        Buffer(f"{b.name}{STAGE}", b.stage, b.dtype, "symmetric", b.slots) for b in plan.buffers if b.stage is not None
    )
    kernels = plan.whole_call
    dimensions = tuple((a, plan.topology.size(a)) for a in (RANK_AXIS, *plan.wiring.axes))
    return Lowered(
        name=plan.wiring.name,
        ranks=dimensions,
        sizes=plan.sizes,
        tables=(*plan.tables, *call.tables.items()),
        buffers=(*plan.buffers, *staged),
        flags=tuple(call.flags.values()),
        executors=tuple(call.executors),
        ends=call.heads[MAIN],
        slots=plan.schedule.slots,
        sms=plan.topology.device.sms,
        loc=plan.wiring.loc,
        parts=tuple(call.parts),
        entry=kernels[0] if kernels else "",
        exit=kernels[-1] if kernels and not plan.epoch_signalled else "",
    )


__all__ = ["lower"]
