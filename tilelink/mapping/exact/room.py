"""Kernels side by side find SMs for all workers; what streams do by SMs, copies within a GPU among it, finds one that no
worker has: looked up in what they are given."""

from __future__ import annotations

from tilelink.ir.host import Keep, Launch, Transfer
from tilelink.ir.plan import Plan
from tilelink.mapping.exact.stream_ops import BellWait, Copy, SetWord, StreamOp
from tilelink.mapping.exact.transfers import issued


def without_room(plan: Plan) -> str | None:
    """The first step that may find no SM, by path: workers that wait can have them all."""
    stays = [s.path for s in plan.signals if s.action == "await" and plan.step(s.path).engine != "stream"]
    if stays and plan.workers > plan.topology.device.sms:
        return stays[0]
    if not plan.kernels or plan.workers < plan.topology.device.sms:
        return None
    launched = False
    for h in plan.host:
        launched |= isinstance(h, Launch)
        if launched and isinstance(h, Keep):
            return h.path
    for path in (h.path for h in plan.host if isinstance(h, Transfer)):
        for rank in range(plan.topology.ranks):
            if any(_takes_an_sm(op, rank) for ops in issued(plan, path, rank) for op in ops):
                return path
    return None


def _takes_an_sm(op: StreamOp, rank: int) -> bool:
    """Everything but copies to and from peers, what tells them, and waiting for a bell."""
    return not isinstance(op, BellWait) and not (isinstance(op, (Copy, SetWord)) and op.pe != rank)
