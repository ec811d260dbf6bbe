"""Placements near the one that an operator comes with, for steps of which the tuner knows no more than that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import product
from math import prod

from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.schedule import Sms

OCTAVES = (-2, -1, 0, 1, 2)
"""By which a tile grows or shrinks along one dimension."""
FAR = 3
"""Octaves by which it may differ along all dimensions together."""
WARPS = (4, 8)
PARTS = (0.25, 0.5, 0.75, 1, 1.5, 2, 4)
"""Of the SMs that a step has to itself."""
ELEMENTS = 16384
"""Of a tile, unless the operator's own has more."""
DOT = range(16, 257)
"""Elements along a dimension that `tl.dot` takes, and registers hold."""
ASPECTS = (("tile",), ("warps", "stages"), ("count",))
"""What is varied at once."""


def around(plan: Plan, step: StepPlan, own: Sms, stages: tuple[int, ...] = ()) -> Iterator[Sms]:
    """The placement itself, then others of its order.

    Args:
        own: that of the operator by default.
        stages: to try besides its own, of a step with `tl.dot`.
    """
    counts = [own.count]
    if own.count is not None:
        most = max(own.count, plan.topology.device.sms // 2)
        counts += [n for n in (int(own.count * part) for part in PARTS) if 1 <= n <= most]
    tiles = _tiles(plan, step, own, DOT if stages else range(1, ELEMENTS + 1))
    choices = product(tiles, (own.warps, *WARPS), (own.stages, *stages), counts)
    seen = dict.fromkeys(replace(own, tile=t, warps=w, stages=s, count=n) for t, w, s, n in choices)
    yield from seen


def apart(options: Sequence[Sms], now: Sms) -> Iterator[list[Sms]]:
    """For each aspect, the options that differ from `now` in nothing else."""
    for aspect in ASPECTS:
        others = [f.name for f in fields(Sms) if f.name not in aspect]
        yield [o for o in options if all(getattr(o, name) == getattr(now, name) for name in others)]


def _tiles(plan: Plan, step: StepPlan, own: Sms, sizes: range) -> Iterator[tuple[tuple[str, int], ...]]:
    """Its own first, the others by how far they are from it. What it leaves whole stays whole."""
    most = max(ELEMENTS, prod(size for _, size in own.tile))
    for octaves in sorted(product(OCTAVES, repeat=len(own.tile)), key=lambda o: sum(map(abs, o))):
        tile = tuple((dim, int(size * 2.0**octave)) for (dim, size), octave in zip(own.tile, octaves, strict=True))
        near = sum(map(abs, octaves)) <= FAR and prod(s for _, s in tile) <= most
        if tile == own.tile or (near and all(s in sizes and s < 2 * _there(plan, step, d, s) for d, s in tile)):
            yield tile


def _there(plan: Plan, step: StepPlan, dim: str, otherwise: int) -> int:
    """Elements along a dimension: a tile of twice as many is for nothing."""
    grid = next((g for g in (*step.grid, *step.loops) if g.dim == dim), None)
    return int(F.evaluate(grid.size, plan.env(0))) if grid is not None else otherwise
