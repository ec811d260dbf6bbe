"""Domains and partitions: which tiles a step has on a rank, and how fused steps share a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis, extent, part
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Index, Load, OfTile, Store, Tiles, tile_names, walk
from tilelink.ir.schedule import PART, CopyEngine, Fused, Library, Sms
from tilelink.ir.shape import ranks_along
from tilelink.ir.wiring import Step, TensorDecl, ViewAxis, Wiring, indexed
from tilelink.mapping.forwarding import elsewhere, not_handed
from tilelink.mapping.orders import by_table, decode, parse, sort_key, words
from tilelink.mapping.placement import Placed, directed, hosts, ring_of
from tilelink.mapping.waves import MORE

Lineage = dict[tuple[str, int], int]
"""(tensor, axis) -> axis of the host's grid whose tile lies there."""


def plan_steps(wiring: Wiring, placed: tuple[Placed, ...], env: Mapping[str, F.Number]) -> tuple[StepPlan, ...]:
    """Every step with its grid and order; fused steps follow their host's. `env`: sizes, and how many ranks there are.

    Raises:
        TilelinkError: of what is fused, TL316 tiles that are not its host's, TL325 pieces of them, TL332 another axis of ranks.
    """
    host_of = hosts(placed)
    plans: dict[str, StepPlan] = {}
    for p in placed:
        if host_of[p.step.path] == p.step.path:
            followers = [q for q in placed if q.step.path != p.step.path and host_of[q.step.path] == p.step.path]
            forced = _forced_cuts(wiring, p, followers) | _pulled_cuts(wiring, placed, p)
            plans[p.step.path] = _standing(wiring, p, forced, env)
    for p in placed:
        host = host_of[p.step.path]
        if host != p.step.path:
            plans[p.step.path] = _fused(wiring, placed, p, plans[host])
    ordered = [plans[p.step.path] for p in placed]
    return tuple(_with_followers(s, ordered) for s in ordered)


def _with_followers(s: StepPlan, steps: list[StepPlan]) -> StepPlan:
    """The step with the list of those fused into it; a movement learns what need not be moved."""
    movement = s.step.program.movement
    # A pull is for tiles of other ranks anyway: what it brings is read from memory, also this rank's own.
    skip = (
        movement is not None
        and bool(s.push)
        and any(s.step.binding(movement.destination).tensor in q.forwarded for q in steps)
    )
    return replace(s, fused=tuple(q.path for q in steps if q.into == s.path), skip_own=skip)


def _forced_cuts(wiring: Wiring, host: Placed, followers: list[Placed]) -> frozenset[int]:
    """Axes of the host's domain that must end at rank borders because a fused program's do."""
    lineage = _lineage(host.step, wiring.steps) if followers else {}
    forced: set[int] = set()
    for q in followers:
        dims = q.step.program.signature.global_dims()
        for tensor, v in ((wiring.tensor(b.tensor), v) for b in q.step.bindings for v in b.view):
            found = None if v.axis is None else lineage.get((tensor.name, v.axis))
            # A fused program that runs for own rows only needs whole parts as well.
            if found is not None and (v.dim in dims or _over(tensor, v) == q.step.axis):
                forced.add(found)
    return frozenset(forced)


def _pulled_cuts(wiring: Wiring, placed: tuple[Placed, ...], host: Placed) -> frozenset[int]:
    """Axes along which others pull what the step makes: a tile that one rank waits for may not reach into two parts."""
    made = _brought(host.step) if host.step.program.movement is not None else _spread_all(host.step)
    forced: set[int] = set()
    for q in placed:
        movement = q.step.program.movement
        if movement is None or directed(wiring, q)[1] or q.step.axis != host.step.axis:
            continue
        source, target = q.step.binding(movement.source), q.step.binding(movement.destination)
        for v, w in zip(source.view, target.view, strict=True):
            split = _over(wiring.tensor(target.tensor), w) == q.step.axis
            if v.axis is not None and split and (source.tensor, v.axis) in made:
                forced.add(made[(source.tensor, v.axis)])
    return frozenset(forced)


def _spread_all(step: Step) -> Lineage:
    """Where the tiles of a step lie in what it stores."""
    names = {n: a for a, n in enumerate(_domain_names(step)) if n}
    out: Lineage = {}
    for op in walk(step.program.body):
        if isinstance(op, Store):
            out |= _spread(step, op.param, op.index, names)
    return out


def _brought(step: Step) -> Lineage:
    """Where the tiles of a movement lie in what it fills."""
    assert step.program.movement is not None
    target = step.binding(step.program.movement.destination)
    return {(target.tensor, v.axis): a for a, v in enumerate(target.view) if v.axis is not None}


def _lineage(host: Step, steps: tuple[Step, ...]) -> Lineage:
    """Where the host's tiles end up: in what it stores, and in what movements make of that."""
    out = _spread_all(host)
    for step in steps:
        movement = step.program.movement
        if movement is None:
            continue
        source, target = step.binding(movement.source), step.binding(movement.destination)
        for v, w in zip(source.view, target.view, strict=True):
            if v.axis is not None and w.axis is not None and (source.tensor, v.axis) in out:
                out[(target.tensor, w.axis)] = out[(source.tensor, v.axis)]
    return out


def _spread(step: Step, param: str, index: Index | None, axes: dict[str, int]) -> Lineage:
    tensor, found = step.binding(param).tensor, indexed(step, param, index)
    return {
        (tensor, v.axis): axes[e.var]
        for v, e in found
        if isinstance(e, OfTile) and v.axis is not None and e.var in axes
    }


def _domain_names(step: Step) -> tuple[str | None, ...]:
    """One name per view axis of the domain; axes of `...` have none."""
    names = tile_names(step.program)
    view = step.binding(step.program.domain).view
    return names + (None,) * (len(view) - len(names))


def _standing(wiring: Wiring, p: Placed, forced: frozenset[int], env: Mapping[str, F.Number]) -> StepPlan:
    """The plan of a step with workers (or a stream) of its own."""
    placement = p.placement
    assert isinstance(placement, (Sms, CopyEngine, Library))
    domain, push = (p.step.program.domain, None) if p.step.program.movement is None else directed(wiring, p)
    cuts = p.step.program.signature.global_dims()
    view = p.step.binding(domain).view
    tensor = wiring.tensor(p.step.binding(domain).tensor)
    names = _domain_names(p.step) if p.step.program.movement is None else (None,) * len(view)
    forced |= {a for a, v in enumerate(view) if _in_parts(wiring, p, v) or _by_parts(wiring, p, tensor, v, env)}
    grid = tuple(
        grid_axis(wiring, p, tensor, v, cut=v.dim in cuts or a in forced, var=names[a]) for a, v in enumerate(view)
    )
    order, total = decode(grid, words(placement.order))
    key = sort_key(placement.order)
    return StepPlan(
        step=p.step,
        engine="workers" if isinstance(placement, Sms) else "stream",
        domain=domain,
        grid=grid,
        loops=_loops(wiring, p),
        order=order if key is None else by_table(order, p.step.path),
        total=total,
        order_names=words(placement.order) + (() if key is None else (f"by {key.__name__}",)),
        sort_key=key,
        push=push,
        warps=placement.warps if isinstance(placement, Sms) else 4,
        stages=placement.stages if isinstance(placement, Sms) else 3,
        workers=placement.count if isinstance(placement, Sms) else None,
        own_kernel=isinstance(placement, Sms) and placement.own_kernel,
        joins=placement.joins if isinstance(placement, Sms) else None,
        streams=1 if isinstance(placement, Sms) else placement.streams,
        library=placement if isinstance(placement, Library) else None,
        own_rows=any(v.axis is not None and v.axis == tensor.owned for v in view),
    )


def _in_parts(wiring: Wiring, p: Placed, v: ViewAxis) -> bool:
    """Whether the tiles of a library function end where the ranks' parts do: a view of one part is one run of memory."""
    tile = dict(p.placement.tile).get(v.dim) if isinstance(p.placement, Library) else None
    return tile is not None and (tile == PART or ring_of(wiring, p.step, v.dim) is not None)


def _by_parts(wiring: Wiring, p: Placed, tensor: TensorDecl, v: ViewAxis, env: Mapping[str, F.Number]) -> bool:
    """Whether the tiles that workers take along the ring end where the ranks' parts do.

    A tile of two parts waits for both, and a group of tiles of several parts for all of them, at a time when there are
    others to take. Many more tiles, as small parts would make, cost more than that.
    """
    placement = p.placement
    if not isinstance(placement, Sms) or p.step.program.movement is not None or v.unit or v.axis is None:
        return False
    axis, size = tensor.axes[v.axis], p.tile.get(v.dim)
    if parse(words(placement.order))[0] is None or size is None or axis.split is not None or axis.own_slice:
        return False
    if ring_of(wiring, p.step, v.dim) is None:
        return False
    kinds = (GridAxis(v.dim, kind, axis.size, size, over=p.step.axis) for kind in ("plain", "cut"))
    whole, cut = (int(F.evaluate(g.count, env)) for g in kinds)
    return cut - whole <= whole * MORE


def grid_axis(wiring: Wiring, p: Placed, tensor: TensorDecl, v: ViewAxis, *, cut: bool, var: str | None) -> GridAxis:
    """The partition of one domain axis on a rank: only what the rank holds (owner computes)."""
    over = p.step.axis
    tile = 1 if v.unit else p.tile.get(v.dim)
    if v.axis is None or tensor.axes[v.axis].own_slice:
        return GridAxis(v.dim, "own", ranks_along(over), 1, var, over=over)
    axis = tensor.axes[v.axis]
    if axis.over is not None:
        if v.local:
            return GridAxis(v.dim, "plain", extent(tensor, v, over), tile, var, over=over)
        return GridAxis(v.dim, "mine", axis.size, tile, var, ring=part(axis.size, over), over=over)
    if axis.split is not None:
        return GridAxis(v.dim, "table", axis.size, tile, var, table=axis.split, over=over)
    if v.unit:
        return GridAxis(v.dim, "unit", axis.size, 1, var, ring=part(axis.size, over) if cut else None, over=over)
    if cut:
        return GridAxis(v.dim, "cut", axis.size, tile, var, ring=part(axis.size, over), over=over)
    return GridAxis(v.dim, "plain", axis.size, tile, var, ring=ring_of(wiring, p.step, v.dim), over=over)


def _loops(wiring: Wiring, p: Placed) -> tuple[GridAxis, ...]:
    """The partitions of every dimension that a `tl.tiles` loop walks."""
    found: dict[tuple[str, str], GridAxis] = {}
    for op in walk(p.step.program.body):
        if not isinstance(op, Tiles):
            continue
        view = p.step.binding(op.param).view
        v = view[op.axis]
        tensor = wiring.tensor(p.step.binding(op.param).tensor)
        kind = "unit" if v.unit else "plain"
        if v.axis is not None and tensor.axes[v.axis].over is not None and not v.local:
            kind = "mine"
        if kind == "plain" and isinstance(p.placement, Library) and p.placement.runs and _in_parts(wiring, p, v):
            kind = "cut"
        over = p.step.axis
        size = tensor.axes[v.axis].size if kind == "mine" and v.axis is not None else extent(tensor, v, over)
        found[v.dim, kind] = GridAxis(v.dim, kind, size, 1 if v.unit else p.tile.get(v.dim), op.var, over=over)
    return tuple(found.values())


def _fused(wiring: Wiring, placed: tuple[Placed, ...], p: Placed, host: StepPlan) -> StepPlan:
    """A step that runs in another's workers, tile for tile."""
    assert isinstance(p.placement, Fused)
    lineage = _lineage(host.step, wiring.steps)
    step = p.step
    if step.axis != host.axis:
        raise _other_axis(p, host)
    domain = directed(wiring, p)[0] if step.program.movement is not None else step.program.domain
    binding = step.binding(domain)
    tensor = wiring.tensor(binding.tensor)
    if step.program.movement is None:
        lineage = lineage | _through_loads(step, lineage)
    names = _domain_names(step) if step.program.movement is None else (None,) * len(binding.view)
    found = [_on_host(p, host, tensor, v, name, lineage) for v, name in zip(binding.view, names, strict=True)]
    axes, grid = tuple(at for at, _ in found), tuple(g for _, g in found)
    theirs = host.step.binding(host.domain).view
    own_axis = next(
        (
            at
            for at, v in zip(axes, binding.view, strict=True)
            if at is not None and _over(tensor, v) == step.axis and not theirs[at].local
        ),
        None,
    )
    held = _in_registers(placed, host)
    forwarded = tuple(t for t in step.takes if t in held)
    mover = _moved_meanwhile(placed, step, forwarded)
    if mover is not None:
        raise _unlike(p, host, f"it takes what `{mover}` moves, which does so later, and elsewhere")
    missing = next((g for a, g in enumerate(host.grid) if a not in axes and _walked(g)), None)
    if missing is not None:
        raise _several(p, host, missing.dim)
    why = not_handed(wiring, step, host.step, held)
    if why is None and step.program.movement is None:
        named = {name: at for name, at in zip(names, axes, strict=True) if name is not None}
        why = elsewhere(step, forwarded, lineage, named, host.grid)
    if why is not None:
        raise _unlike(p, host, why)
    return StepPlan(
        step=step,
        engine="fused",
        domain=domain,
        grid=grid,
        loops=_loops(wiring, Placed(step, Sms(tile=tuple((g.dim, g.tile) for g in grid if g.tile)))),
        order=host.order,
        total=host.total,
        order_names=host.order_names,
        push=True if step.program.movement is not None else None,
        into=host.path,
        host_axes=axes,
        own_rows=own_axis is not None,
        own_axis=own_axis,
        forwarded=forwarded,
        pieces=_pieces(p, grid, axes[-1] == host.columns),
    )


def _on_host(
    p: Placed, host: StepPlan, tensor: TensorDecl, v: ViewAxis, name: str | None, lineage: Lineage
) -> tuple[int | None, GridAxis]:
    """The axis of the host's grid that an axis of a fused step's domain is, and its partition; None: the rank's coordinate."""
    step = p.step
    if v.axis is None or tensor.axes[v.axis].own_slice:
        return None, GridAxis(v.dim, "own", ranks_along(step.axis), 1, name, over=step.axis)
    at = lineage.get((tensor.name, v.axis))
    if at is None:
        walked = v.unit and step.program.movement is None
        singly = f"`{step.path}` walks `{v.dim}` one element at a time"
        raise _unlike(p, host, singly if walked else f"axis `{v.dim}` has no counterpart there")
    if not v.local and _over(tensor, v) == step.axis and host.step.binding(host.domain).view[at].local:
        raise _counted_otherwise(p, host, v.dim)
    base = host.grid[at]
    return at, GridAxis(v.dim, base.kind, base.size, base.tile, name, base.ring, base.table, step.axis)


def _over(tensor: TensorDecl, v: ViewAxis) -> str | None:
    """The axis of ranks that a view axis is split over."""
    return None if v.axis is None else tensor.axes[v.axis].over


def _walked(g: GridAxis) -> bool:
    """Whether there may be several tiles along the axis on a rank."""
    return g.kind != "own" and (g.tile is not None or g.kind not in ("plain", "mine"))


def _pieces(p: Placed, grid: tuple[GridAxis, ...], same_columns: bool) -> int:
    """How many pieces the schedule asks the host's tile to be cut into; 0: it does not say. `same_columns`: those of the step's
    tile are those of the host's."""
    assert isinstance(p.placement, Fused)
    divisible = p.step.program.movement is None and len([g for g in grid if g.kind != "own"]) == 2 and same_columns
    if not p.placement.tile:
        return 0 if divisible else 1
    (dim, size), *more = p.placement.tile
    last = grid[-1]
    good = last.dim == dim and last.tile is not None and not more and last.tile % size == 0 and size & (size - 1) == 0
    if good and divisible:
        assert last.tile is not None
        return last.tile // size
    raise TilelinkError(
        "TL325",
        f"`{p.step.path}` cannot take tiles of `{p.placement.into}` in pieces of {dim}={size}",
        loc=p.step.loc,
        why="a fused computation of two axes may take its host's tile in pieces of the host's last one, each a power of two",
        hint=f"use a power of two that divides {last.dim}={last.tile}, or leave it out",
    )


def _through_loads(step: Step, lineage: Lineage) -> Lineage:
    """Axes of a computing program's tensors, reached through what it loads of the host's tiles."""
    of_var: dict[str, int] = {}
    for op in walk(step.program.body):
        if isinstance(op, Load):
            binding = step.binding(op.param)
            for v, e in indexed(step, op.param, op.index):
                if isinstance(e, OfTile) and v.axis is not None and (binding.tensor, v.axis) in lineage:
                    of_var[e.var] = lineage[(binding.tensor, v.axis)]
    binding = step.binding(step.program.domain)
    return {
        (binding.tensor, v.axis): of_var[name]
        for v, name in zip(binding.view, _domain_names(step), strict=True)
        if v.axis is not None and name in of_var
    }


def _in_registers(placed: tuple[Placed, ...], host: StepPlan) -> set[str]:
    """Tensors whose tile of this rank is in the host's registers; what the host pushes by itself is read from memory, behind its
    notify."""
    stores = (op for op in walk(host.step.program.body) if isinstance(op, Store) and op.to == "own")
    made = {host.step.binding(op.param).tensor for op in stores}
    for p in placed:
        movement = p.step.program.movement
        if movement is not None and p.step.binding(movement.source).tensor in made:
            made.add(p.step.binding(movement.destination).tensor)
    return made


def _moved_meanwhile(placed: tuple[Placed, ...], step: Step, forwarded: tuple[str, ...]) -> str | None:
    """A step on an engine of its own that moves a tensor which the fused step takes from registers alone. (Of a tensor with a
    slice per rank only this rank's slice is in registers, and the others are read from memory.)"""
    taken = {b.tensor for b in step.bindings if all(v.axis is None or not v.unit for v in b.view)} & {*forwarded}
    movers = (p for p in placed if p.step.moved_to in taken and not isinstance(p.placement, Fused))
    return next((p.step.path for p in movers), None)


def _other_axis(p: Placed, host: StepPlan) -> TilelinkError:
    return TilelinkError(
        "TL332",
        f"`{p.step.path}` goes along {p.step.axis} and cannot be fused into `{host.path}`, which goes along {host.axis}",
        loc=p.step.loc,
        why="they share the host's tiles, whose parts and order are those of one axis of ranks",
        hint=f'place it on SMs of its own, or say over="{p.step.axis}" where `{host.path}` is called, if it names no ranks',
        notes=(Note(f"`{host.path}` is called here", host.step.loc),),
    )


def _counted_otherwise(p: Placed, host: StepPlan, dim: str) -> TilelinkError:
    what = f"`{host.path}` counts `{dim}` from the begin of its rank's part, and `{p.step.path}` over all ranks"
    return _unlike(p, host, what, f"write `{dim}/R` in the signature of `{host.path}`, or place it on SMs of its own")


def _several(p: Placed, host: StepPlan, dim: str) -> TilelinkError:
    return _unlike(p, host, f"it has no axis `{dim}`, along which there are several tiles")


def _unlike(p: Placed, host: StepPlan, what: str, hint: str = "place it on SMs of its own") -> TilelinkError:
    return TilelinkError(
        "TL316",
        f"`{p.step.path}` cannot be fused into `{host.path}`: {what}",
        loc=p.step.loc,
        why="a fused program runs right after the tile it depends on, so their tiles must correspond one to one",
        hint=hint,
        notes=(Note(f"`{host.path}` is declared here", host.step.program.loc),),
    )
