"""When a slot may be written again: who must have left which call, and what already implies it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilelink.ir.lowered import ENTERED, READY
from tilelink.ir.plan import Credit, Plan
from tilelink.mapping.lower import lower
from tilelink.proof.calls import hearing
from tilelink.proof.table import Array, Table


def derive(plan: Plan) -> tuple[Credit, ...]:
    """One credit per symmetric buffer.

    With two or more slots, a rank that in each call waits for something of every rank knows on entry to call e that
    every rank has entered call e - 1 and so has left call e - 2: the ready signals imply the credit. A rank without rows
    sends none, and with one slot nothing does.
    """
    taken = tuple(Credit(b.tensor, None) for b in plan.buffers if b.shared)
    if plan.unverified or not taken or plan.schedule.slots == 1:
        return taken
    implied = _implied_by(replace(plan, credits=taken))
    return tuple(replace(c, implied_by=implied) for c in taken)


def _implied_by(plan: Plan) -> str | None:
    """The tensors whose signals let every rank hear from every rank in each call: one, or several together."""
    table = Table.of(lower(plan, text=False))
    tensors = {flags: _arguments(plan, flags) for flags in (READY, ENTERED)} | {c.name: c.tensor for c in plan.channels}
    there = {f.name for f in table.lowered.flags}
    heard: dict[str, Array] = {}
    for flags, tensor in tensors.items():
        if tensor and flags in there:
            heard[tensor] = hearing(table, flags)
            if heard[tensor].all():
                return tensor
    return " and ".join(heard) if heard and np.logical_or.reduce([*heard.values()]).all() else None


def _arguments(plan: Plan, flags: str) -> str:
    """Those that ranks wait for by the flags that say that a call has begun, or that what is staged is there."""
    names = (plan.step(s.path).step.binding(s.op.param).tensor for s in plan.signals if s.action == "ready")
    return " and ".join(dict.fromkeys(n for n in names if plan.buffer(n).staged == (flags == READY)))
