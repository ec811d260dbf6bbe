"""When a slot may be written again (G8): who must have left which call, and what already implies it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.plan import Buffer, Channel, Credit, StepPlan
from tilelink.ir.topology import Topology
from tilelink.mapping.signals import Signals


def derive(
    buffers: tuple[Buffer, ...],
    found: Signals,
    steps: tuple[StepPlan, ...],
    topology: Topology,
    sizes: dict[str, int],
    slots: int,
) -> tuple[Credit, ...]:
    """One credit per symmetric buffer.

    With two or more slots, a rank that in each call hears from every rank knows on entry to call e that every rank has
    entered call e - 1 and so has left call e - 2: the ready signals imply the credit. A rank without rows sends none,
    and with one slot nothing does.
    """
    shared = [b for b in buffers if b.space == "symmetric" or b.staged]
    heard_by = _heard(found, steps, topology, sizes) if slots >= 2 else None
    return tuple(Credit(b.tensor, heard_by) for b in shared)


def _heard(found: Signals, steps: tuple[StepPlan, ...], topology: Topology, sizes: dict[str, int]) -> str | None:
    """A tensor whose signals alone make every rank hear from every rank in each call."""
    for s in found.signals:
        if s.action == "ready":
            step = next(p for p in steps if p.path == s.path)
            if _covers_all_parts(step, topology, sizes):
                return step.step.binding(s.op.param).tensor
    for c in found.channels:
        if c.scope == "sys" and c.source is not None and _waited_everywhere(c, topology, sizes):
            return c.tensor
    return None


def _covers_all_parts(step: StepPlan, topology: Topology, sizes: dict[str, int]) -> bool:
    """A pull of a split argument waits for every rank that has rows."""
    cut = next((g for g in step.grid if g.kind == "cut"), None)
    if cut is None:
        return any(g.kind == "unit" and g.dim == "R" for g in step.grid)
    size = int(F.evaluate(cut.size, {**sizes, "rank": 0, "RANKS": topology.ranks}))
    return size > (topology.ranks - 1) * -(-size // topology.ranks)


def _waited_everywhere(c: Channel, topology: Topology, sizes: dict[str, int]) -> bool:
    """Every rank is raised at least one word by every other rank."""
    for rank in range(topology.ranks):
        sources = raised_from(c, rank, topology.ranks, sizes)
        if not set(range(topology.ranks)) - {rank} <= sources:
            return False
    return True


def raised_from(c: Channel, rank: int, ranks: int, sizes: dict[str, int]) -> set[int]:
    """The ranks that raise a word of this channel on `rank` at least once a call."""
    assert c.source is not None
    env: dict[str, Any] = {**sizes, "rank": rank, "RANKS": ranks}
    counts = [int(F.evaluate(a.count, env)) for a in c.axes]
    grids = np.meshgrid(*[np.arange(n) for n in counts], indexing="ij")
    env |= {f"c{k}": g.ravel() for k, g in enumerate(grids)}
    shape = int(np.prod(counts)) if counts else 1
    target = np.broadcast_to(F.evaluate(c.target, env), (shape,))
    if c.guard is not None:
        target = np.where(np.broadcast_to(F.evaluate(c.guard, env), (shape,)), target, 0)
    source = np.broadcast_to(F.evaluate(c.source, env), (shape,))
    return set(source[target > 0].tolist())
