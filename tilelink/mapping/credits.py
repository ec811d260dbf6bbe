"""When a slot may be written again: who must have left which call, and what already implies it."""

from __future__ import annotations

import numpy as np

from tilelink.ir.plan import Credit, Plan
from tilelink.mapping.verify.epochs import heard_by
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.reach import lay


def derive(plan: Plan) -> tuple[Credit, ...]:
    """One credit per symmetric buffer.

    With two or more slots, a rank that in each call waits for something of every rank knows on entry to call e that
    every rank has entered call e - 1 and so has left call e - 2: the ready signals imply the credit. A rank without rows
    sends none, and with one slot nothing does.
    """
    shared = [b for b in plan.buffers if b.shared]
    sure = not plan.unverified and shared and plan.schedule.slots > 1
    implied = _implied_by(plan) if sure else None
    return tuple(Credit(b.tensor, implied) for b in shared)


def _implied_by(plan: Plan) -> str | None:
    """The tensor, or the tensors together, whose signals let every rank hear from every rank in each call."""
    world = World(plan)
    found = heard_by(plan, world, {s.path: lay(world, s) for s in plan.steps})
    for tensor, direct in found.items():
        if direct.all():
            return tensor
    together = np.logical_or.reduce([np.eye(world.ranks, dtype=np.bool_), *found.values()])
    return " and ".join(found) if together.all() else None
