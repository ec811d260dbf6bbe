"""Rule 5, continued: fused tiles behind all of their host's are this rank's own, which come last, and hold up nobody."""

from __future__ import annotations

import numpy as np

from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.deferred import own_come_last
from tilelink.mapping.verify.geometry import World

EACH = 2_000_000
"""Tiles of all ranks that may be looked at one by one."""


def check_behind(plan: Plan, world: World) -> None:
    """Raises:
    TilelinkError: TL604, tickets that stand for other tiles than those the step is for; TL606, one that others wait for.
    """
    for step in (s for s in plan.steps if s.behind):
        host = plan.step(step.executor)
        kernel = plan.kernel_of(host)
        if kernel is None or len(kernel.roles) != 1:
            raise _refused(step, host, "TL604", "others share its workers, whose tickets they would be")
        if step.own_axis is None or not _last(world, step, host):
            raise _refused(
                step, host, "TL604", "this rank's own tiles, which tickets stand for, do not come last there"
            )
        told = any(s.path == step.path and s.action == "notify" for s in plan.signals)
        if told or any(s.path == host.path and s.action == "await" for s in plan.signals):
            raise _refused(step, host, "TL606", "whoever waits for it could hold up those whom it waits for")


def _last(world: World, step: StepPlan, host: StepPlan) -> bool:
    """Whether the last tiles of the host's order are the rank's own, and no others."""
    count = world.each(world.value(step.own_tiles(host)))
    total = world.each(world.value(host.total))
    ranks = range(world.ranks)
    if int(total.sum()) > EACH and host.sort_key is None:
        # Orders are the same formula everywhere: ranks differ in where they begin, and in how many tiles are their own.
        kinds = np.unique(count, return_index=True)[1].tolist()
        ranks = sorted({0, 1 % world.ranks, world.ranks // 2, world.ranks - 1, *kinds})
    at = world.plan.topology.at
    return all(own_come_last(step, host, world.plan.env(r), at(r, step.axis)) for r in ranks)


def _refused(step: StepPlan, host: StepPlan, code: str, why: str) -> TilelinkError:
    return TilelinkError(
        code,
        f"`{step.path}` cannot come behind the tiles of `{host.path}`",
        loc=step.step.loc,
        why=why,
        hint=f'let it come right after each tile: fused("{host.path}")',
    )
