"""Rule 5 for a step that waits for its own tiles on other ranks, where all ranks take the same tiles in the same order.

If each tile gives its notifies before its waits, and waits for words that this tile alone raises (on any rank), nobody
waits forever: take the first tile of the order in which anybody is stuck. Whoever is to raise its words does so in that
tile before waiting there, after tiles before it, in which nobody is stuck. One worker suffices, and so any number does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.sites import sites
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.words import Told, signals_on


def together(plan: Plan, world: World, laid: Mapping[str, Laid], path: str) -> bool:
    """Whether the workers of `path`, which wait for words of their own, are proven to end by the rule above."""
    host = plan.step(path)
    if host.engine != "workers" or not _same_tiles(world, host):
        return False
    return all(_tile_by_tile(world, host, w, n) for w, n in _pairs(plan, laid, path))


def _pairs(plan: Plan, laid: Mapping[str, Laid], path: str) -> Iterator[tuple[Told, Told]]:
    """Each wait of the workers with each notify of theirs that may be what it waits for."""
    for channel in plan.channels:
        for wait in signals_on(plan, laid, channel, "await"):
            for notify in signals_on(plan, laid, channel, "notify"):
                if wait.executor == notify.executor == path:
                    yield wait, notify


def _same_tiles(world: World, step: StepPlan) -> bool:
    """Whether no rank has other tiles than the others, or takes them in another order."""
    own = {f"i{a}" for a, g in enumerate(step.grid) if g.kind == "own"}
    values = [step.total, *(value for name, value in step.order if name not in own)]
    if step.sort_key is not None or world.by_rank(*values) or any(F.symbols(v) & own for v in values):
        return False
    return all(_same(world, g) for g in step.grid)


def _same(world: World, grid: GridAxis) -> bool:
    if grid.kind == "own":
        return True
    spans = world.axis(grid)
    return spans is not None and spans.rows == 1


def _tile_by_tile(world: World, host: StepPlan, wait: Told, notify: Told) -> bool:
    """Whether the notify comes before the wait in every tile, and each tile has words of its own for both."""
    step = wait.laid.step
    if wait.path != notify.path or step.own_rows or notify.site.tests or notify.site.loops:
        return False
    axes = step.host_axes if step.into is not None else tuple(range(len(step.grid)))
    tiled = world.several(host)
    if not set(tiled) <= set(axes):
        return False
    return _before(step, notify, wait) and all(_told_apart(wait, notify, axes.index(a)) for a in tiled)


def _before(step: StepPlan, notify: Told, wait: Told) -> bool:
    order = [s.op for s in sites(step.step.program)]
    return order.index(notify.op) < order.index(wait.op)


def _told_apart(wait: Told, notify: Told, key: int) -> bool:
    """Whether some axis of the words has one for every tile of a grid axis, the same one for the wait and the notify."""
    for w, n in zip(wait.words, notify.words, strict=True):
        if w.key == n.key == key and not w.by_data and not n.by_data:
            same = (
                np.array_equal(w.first, n.first) and np.array_equal(w.first, w.last) and np.array_equal(n.first, n.last)
            )
            if same and bool((np.diff(n.first, axis=1) > 0).all()):
                return True
    return False
