"""The same plan in smaller worlds: its formulas, with other numbers put in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.orders import table_of

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
    ranks = min(plan.topology.ranks, ranks)
    sizes: list[tuple[str, int]] = []
    for name, size in plan.sizes:
        length, split = 1, False
        for step in plan.steps:
            for g in (*step.grid, *step.loops):
                if name in F.symbols(g.size):
                    length = max(length, g.tile or 1)
                    split = split or g.ring is not None or g.kind in ("cut", "mine")
        sizes.append((name, max(1, min(size, tiles * length * (ranks if split else 1) - less))))
    small = replace(plan, sizes=tuple(sizes), topology=replace(plan.topology, ranks=ranks), tables=())
    tables = {first: _sorted(small, s) for s in plan.steps if s.sort_key is not None for first in _table_of(s)}
    return replace(_whole_tiles_in_place(small), tables=tuple(tables.items()))


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


def _table_of(step: StepPlan) -> Iterator[str]:
    """The name of the table that a user's order looks positions up in."""
    for _, value in step.order:
        if isinstance(value, F.Binary) and value.op == "at":
            yield str(value.left)


def _sorted(plan: Plan, step: StepPlan) -> tuple[tuple[int, ...], ...]:
    """A user's order on every rank of a world of another size."""
    assert step.sort_key is not None
    words = tuple(n for n in step.order_names if not n.startswith("by "))
    ranks = plan.topology.ranks
    return tuple(table_of(step.grid, words, step.sort_key, plan.env(r), r, ranks) for r in range(ranks))
