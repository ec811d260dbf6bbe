"""Partitions: which tiles a step has on a rank, where they end, and where they lie in what is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from tilelink.cost.tiles import MORE
from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Load, OfTile, Store, Tiles, tile_names, walk
from tilelink.ir.schedule import AS_GIVEN, PART, CopyEngine, Fused, Library, Sms
from tilelink.ir.shape import ranks_along
from tilelink.ir.wiring import Step, ViewAxis, Wiring, indexed
from tilelink.mapping.orders import by_table, decode, parse
from tilelink.mapping.placement import directed, is_shared


def standing(plan: Plan, step: Step, forced: frozenset[int]) -> StepPlan:
    """The plan of a step with workers (or a stream) of its own."""
    wiring, placement, env = plan.wiring, step.placement, plan.env(0)
    assert isinstance(placement, (Sms, CopyEngine, Library))
    domain, push = directed(wiring, step)
    cuts = step.program.signature.global_dims()
    view = step.binding(domain).view
    names = domain_names(step)
    forced |= {a for a, v in enumerate(view) if _in_parts(wiring, step, v) or _by_parts(wiring, step, v, env)}
    grid = tuple(grid_axis(wiring, step, v, cut=v.dim in cuts or a in forced, var=names[a]) for a, v in enumerate(view))
    order, total = decode(grid, placement.order)
    found = StepPlan(
        step=step,
        engine=placement.engine,
        domain=domain,
        grid=grid,
        loops=loops_of(wiring, step),
        order=order,
        total=total,
        order_said=placement.order,
        push=push,
        options=placement.options if isinstance(placement, Sms) else AS_GIVEN,
        streams=1 if isinstance(placement, Sms) else placement.streams,
        library=placement if isinstance(placement, Library) else None,
        own_axis=next((a for a, v in enumerate(view) if v.of is not None and v.of.owner is not None), None),
    )
    return found if found.sort_key is None else replace(found, order=by_table(order, found.path))


def _in_parts(wiring: Wiring, step: Step, v: ViewAxis) -> bool:
    """Whether the tiles of a library function end where the ranks' parts do: a view of one part is one run of memory."""
    tile = dict(step.placement.tile).get(v.dim) if isinstance(step.placement, Library) else None
    return tile is not None and (tile == PART or is_shared(wiring, step, v.dim))


def _length(step: Step, v: ViewAxis) -> int | None:
    """Elements of a tile along an axis; None: all of it, or of a rank's part."""
    tile = () if step.placement is None or isinstance(step.placement, Fused) else step.placement.tile
    return 1 if v.unit else dict(tile).get(v.dim, PART) or None


def _by_parts(wiring: Wiring, step: Step, v: ViewAxis, env: Mapping[str, F.Number]) -> bool:
    """Whether the tiles that workers take along the ring end where the ranks' parts do.

    A tile of two parts waits for both, and a group of tiles of several parts for all of them, at a time when there are
    others to take. Many more tiles, as small parts would make, cost more than that.
    """
    placement = step.placement
    if not isinstance(placement, Sms) or step.moves is not None or v.unit or v.of is None:
        return False
    axis, size = v.of, _length(step, v)
    if parse(placement.order)[0] is None or size is None or axis.split is not None or axis.own_slice:
        return False
    if not is_shared(wiring, step, v.dim):
        return False
    kinds = (GridAxis(v.dim, kind, axis.size, size, over=step.axis) for kind in ("plain", "cut"))
    whole, cut = (int(F.evaluate(g.count, env)) for g in kinds)
    return cut - whole <= whole * MORE


def grid_axis(wiring: Wiring, step: Step, v: ViewAxis, *, cut: bool, var: str | None) -> GridAxis:
    """The partition of one domain axis on a rank: only what the rank holds (owner computes)."""
    over, tile = step.axis, _length(step, v)
    axis = v.of
    if axis is None or axis.own_slice:
        return GridAxis(v.dim, "own", ranks_along(over), 1, var, over=over)
    if axis.over is not None:
        if v.local:
            return GridAxis(v.dim, "plain", v.extent(over), tile, var, over=over)
        return GridAxis(v.dim, "mine", axis.size, tile, var, shared=True, over=over)
    if axis.split is not None:
        return GridAxis(v.dim, "table", axis.size, tile, var, table=axis.split, over=over)
    if v.unit:
        return GridAxis(v.dim, "unit", axis.size, 1, var, shared=cut, over=over)
    if cut:
        return GridAxis(v.dim, "cut", axis.size, tile, var, shared=True, over=over)
    return GridAxis(v.dim, "plain", axis.size, tile, var, shared=is_shared(wiring, step, v.dim), over=over)


def loops_of(wiring: Wiring, step: Step) -> tuple[GridAxis, ...]:
    """The partitions of every dimension that a `tl.tiles` loop walks."""
    found: dict[tuple[str, str], GridAxis] = {}
    over, placement = step.axis, step.placement
    for op in (op for op in walk(step.program.body) if isinstance(op, Tiles)):
        v = step.binding(op.param).view[op.axis]
        kind = "mine" if v.by_parts else "unit" if v.unit else "plain"
        if kind == "plain" and isinstance(placement, Library) and placement.runs and _in_parts(wiring, step, v):
            kind = "cut"
        found[v.dim, kind] = GridAxis(v.dim, kind, v.extent(over), _length(step, v), op.var, over=over)
    return tuple(found.values())


# ---------------------------------------------------------------------------------------------------------------- lineage
Lineage: TypeAlias = dict[tuple[str, int], int]
"""(tensor, axis) -> axis of the step's grid whose tile lies there."""


def _named(step: Step, kind: type[Load | Store]) -> Iterator[tuple[tuple[str, int], str]]:
    """Tensor and axis of what a program loads or stores, or a copy program takes or fills, with the tile that it names there."""
    params = [(op.param, op.index) for op in walk(step.program.body) if isinstance(op, kind)]
    if step.moves is not None:
        params = [(step.moves[kind is Store].param, ())]
    for param, index in params:
        for v, e in indexed(step, param, index):
            if isinstance(e, OfTile) and v.axis is not None:
                yield (step.binding(param).tensor, v.axis), e.var


def loaded(step: Step, lineage: Lineage) -> dict[str, int]:
    """By its name each tile that a step takes of the host's, with the axis of the host's grid."""
    return {var: lineage[at] for at, var in _named(step, Load) if at in lineage}


def made_tiles(step: Step) -> Lineage:
    """Where the tiles of a step lie in what it stores, and those of a copy program in what it fills."""
    names = {n: a for a, n in enumerate(domain_names(step)) if n}
    return {at: names[var] for at, var in _named(step, Store) if var in names}


def lineage_of(host: Step, steps: tuple[Step, ...]) -> Lineage:
    """Where the host's tiles end up: in what it stores, and in what copy programs make of that."""
    out = made_tiles(host)
    for step in (s for s in steps if s.moves is not None):
        taken = loaded(step, out)
        out |= {at: taken[var] for at, var in _named(step, Store) if var in taken}
    return out


def domain_names(step: Step) -> tuple[str | None, ...]:
    """One name per view axis of the domain; axes of `...` have none, and those of a copy program their position."""
    view = step.binding(step.program.domain).view
    if step.moves is not None:
        return tuple(map(str, range(len(view))))
    names = tile_names(step.program)
    return names + (None,) * (len(view) - len(names))
