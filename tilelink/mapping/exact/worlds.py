"""The same plan in smaller worlds: its formulas, with other numbers put in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tilelink.ir import formula as F
from tilelink.ir.plan import Plan
from tilelink.ir.topology import Topology
from tilelink.mapping.orders import tables

MOST_RANKS = 4


def small_worlds(plan: Plan) -> Iterator[Plan]:
    """Worlds in which to look for what is wrong with a plan: of few ranks, with whole tiles, ragged ones and few of them."""
    seen: list[Plan] = []
    for ranks in dict.fromkeys(min(plan.topology.ranks, r) for r in (2, 3, MOST_RANKS)):
        for tiles, less in ((2, 0), (2, 1), (1, 0)):
            found = shrunk(plan, ranks, tiles, less)
            if found not in seen:
                seen.append(found)
                yield found


def shrunk(plan: Plan, ranks: int = MOST_RANKS, tiles: int = 2, less: int = 0) -> Plan:
    """At most so many ranks, and so many tiles per part and axis, `less` elements fewer."""
    topology = _smaller(plan.topology, ranks)
    sizes: list[tuple[str, int]] = []
    for name, size in plan.sizes:
        length, parts = 1, 1
        for step in plan.steps:
            for g in (*step.grid, *step.loops):
                if name in F.symbols(g.size):
                    length = max(length, g.tile or 1)
                    split = g.ring is not None or g.kind in ("cut", "mine")
                    parts = max(parts, topology.size(g.over)) if split else parts
        for over in [
            a.over for t in plan.wiring.tensors for a in t.axes if len(plan.axes) > 1 and a.size == F.Sym(name)
        ]:
            parts = max(parts, topology.size(over)) if over is not None else parts
        sizes.append((name, max(1, min(size, tiles * length * parts - less))))
    small = replace(plan, sizes=tuple(sizes), topology=topology, tables=())
    return replace(_whole_tiles_in_place(small), tables=tables(small.steps, small.topology, small.env))


def _smaller(topology: Topology, ranks: int) -> Topology:
    """At most so many ranks; two along each axis, where there are several."""
    if not topology.axes:
        return replace(topology, ranks=min(topology.ranks, ranks))
    axes = tuple(replace(a, size=min(a.size, max(2, ranks - 1))) for a in topology.axes)
    return replace(topology, ranks=math.prod(a.size for a in axes), axes=axes)


def _whole_tiles_in_place(plan: Plan) -> Plan:
    """Own parts are read in place where a tile lies in one part, in this world as in the plan's."""
    ranks = plan.topology.ranks
    across: set[str] = set()
    for s in plan.steps:
        for own in s.in_place:
            grid = next(g for g in s.grid if g.var == own.var)
            if grid.kind == "cut":
                continue
            if grid.tile is None or int(F.evaluate(grid.size, plan.env(0))) % (grid.tile * ranks):
                across.add(own.tensor)
    kept = (replace(s, in_place=tuple(i for i in s.in_place if i.tensor not in across)) for s in plan.steps)
    return replace(plan, steps=tuple(kept))


def described(plan: Plan) -> str:
    sizes = ", ".join(f"{n}={v}" for n, v in plan.sizes)
    return f"{plan.topology.ranks} rank{'' if plan.topology.ranks == 1 else 's'} and {sizes}"
