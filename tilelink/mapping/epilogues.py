"""Epilogues: steps that run in another's workers, tile for tile, and take from its registers the tile that each of its turns
stores, once. Deferred ones come behind all of these tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, Load, OfTile, Store, Wait, Whole, walk
from tilelink.ir.schedule import EPILOGUE, Fused, Sms
from tilelink.ir.shape import ranks_along
from tilelink.ir.wiring import Step, ViewAxis, Wiring, indexed
from tilelink.mapping.grids import Lineage, domain_names, lineage_of, loaded, loops_of
from tilelink.mapping.placement import directed


def epilogue(wiring: Wiring, step: Step, host: StepPlan) -> StepPlan:
    """A step that runs in another's workers, tile for tile."""
    if step.axis != host.axis:
        raise TilelinkError(
            "TL332",
            f"`{step.path}` goes along {step.axis} and cannot be fused into `{host.path}`, which goes along {host.axis}",
            loc=step.loc,
            why="they share the host's tiles, whose parts and order are those of one axis of ranks",
            hint=f'place it on SMs of its own, or say over="{step.axis}" where `{host.path}` is called, if it names no ranks',
            notes=(Note(f"`{host.path}` is called here", host.step.loc),),
        )
    domain, push = directed(wiring, step)
    binding, lineage = step.binding(domain), lineage_of(host.step, wiring.steps)
    theirs = host.step.binding(host.domain).view
    named = [*zip(binding.view, domain_names(step), strict=True)]
    if step.moves is None:
        # Its own tiles are the host's through what it loads of them.
        taken = loaded(step, lineage)
        lineage |= {(binding.tensor, v.axis): taken[n] for v, n in named if v.axis is not None and n in taken}
    found = [_on_host(step, host, binding.tensor, v, name, lineage) for v, name in named]
    axes, grid = tuple(at for at, _ in found), tuple(g for _, g in found)
    own = (
        at
        for at, v in zip(axes, binding.view, strict=True)
        if at is not None and v.over == step.axis and not theirs[at].local
    )
    own_axis = next(own, None)
    held = _in_registers(wiring, host)
    why = next(_elsewhere(wiring, step, host, held, lineage, axes), None)
    if why is not None:
        raise _unlike(step, host, why)
    return StepPlan(
        step=step,
        engine=EPILOGUE,
        domain=domain,
        grid=grid,
        loops=loops_of(wiring, replace(step, placement=Sms(tile=tuple((g.dim, g.tile) for g in grid if g.tile)))),
        order=host.order,
        total=host.total,
        order_said=host.order_said,
        push=push,
        into=host.path,
        host_axes=axes,
        own_axis=own_axis,
        forwarded=tuple(t for t in step.takes if t in held),
        subtiles=_subtiles(step, grid, axes[-1] == host.columns),
    )


def _on_host(
    step: Step, host: StepPlan, tensor: str, v: ViewAxis, name: str | None, lineage: Lineage
) -> tuple[int | None, GridAxis]:
    """The axis of the host's grid that an axis of a fused step's domain is, and its partition; None: the rank's coordinate."""
    if v.axis is None or not v.stored:
        return None, GridAxis(v.dim, "own", ranks_along(step.axis), 1, name, over=step.axis)
    at = lineage.get((tensor, v.axis))
    if at is None:
        walked = v.unit and step.program.copy_program is None
        singly = f"`{step.path}` walks `{v.dim}` one element at a time"
        raise _unlike(step, host, singly if walked else f"axis `{v.dim}` has no counterpart there")
    if v.by_parts and v.over == step.axis and host.step.binding(host.domain).view[at].local:
        what = f"`{host.path}` counts `{v.dim}` from the begin of its rank's part, and `{step.path}` over all ranks"
        hint = f"write `{v.dim}/R` in the signature of `{host.path}`, or place it on SMs of its own"
        raise _unlike(step, host, what, hint)
    base = host.grid[at]
    return at, GridAxis(v.dim, base.kind, base.size, base.tile, name, base.shared, base.table, step.axis)


def _in_registers(wiring: Wiring, host: StepPlan) -> set[str]:
    """Tensors whose tile of this rank is in the host's registers; what the host pushes by itself is read from memory, behind its
    notify."""
    stores = (op for op in walk(host.step.program.body) if isinstance(op, Store) and op.to == "own")
    made = {host.step.binding(op.param).tensor for op in stores}
    for moves in (s.moves for s in wiring.steps):
        if moves is not None and moves[0].tensor in made:
            made.add(moves[1].tensor)
    return made


def _elsewhere(
    wiring: Wiring,
    step: Step,
    host: StepPlan,
    held: set[str],
    lineage: Lineage,
    axes: tuple[int | None, ...],
) -> Iterator[str]:
    """What of that which a fused step takes from its host's registers is not there.

    Args:
        held: tensors of which the host has a tile there, if it has any.
        axes: of the host's grid, those of the step's domain.
    """
    # Of a tensor with a slice per rank only this rank's slice is in registers, and the others are read from memory.
    whole = {b.tensor for b in step.bindings if all(v.axis is None or not v.unit for v in b.view)}
    taken = whole & held & {*step.takes}
    movers = (s.path for s in wiring.steps if s.moved_to in taken and not isinstance(s.placement, Fused))
    yield from (f"it takes what `{mover}` moves, which does so later, and elsewhere" for mover in movers)
    missing = (g for a, g in enumerate(host.grid) if a not in axes and g.kind != "own")
    several = (g.dim for g in missing if g.tile is not None or g.kind not in ("plain", "mine"))
    yield from (f"it has no axis `{dim}`, along which there are several tiles" for dim in several)
    stores = [op for op in walk(host.step.program.body) if isinstance(op, Store)]
    own = {host.step.binding(op.param).tensor for op in stores if op.to == "own"}
    if step.moved_from is not None and step.moved_from not in held:
        yield f"it moves `{step.moved_from}`, and `{host.path}` hands over none of it"
    taking = step.takes if step.moved_from is None else (step.moved_from,)
    made = {wiring.moved_from(tensor, own) for tensor in taking if tensor in held}
    for op in (op for op in stores if host.step.binding(op.param).tensor in made):
        if op not in host.step.program.body:
            yield f"`{host.path}` stores `{op.param}` under a test or in a loop, and not once in each turn"
        if op.mask is not None:
            yield f"`{host.path}` stores `{op.param}` under a mask, and not all of the tile"
    if step.moves is not None:
        return
    names = dict(zip(domain_names(step), axes, strict=True))
    for op in walk(step.program.body):
        if not isinstance(op, (Load, Wait)) or step.binding(op.param).tensor not in held & {*step.takes}:
            continue
        for v, e in indexed(step, op.param, op.index):
            at = None if v.axis is None else lineage.get((step.binding(op.param).tensor, v.axis))
            if v.unit and isinstance(op, Wait) and not isinstance(e, At):
                yield f"it waits for all slices of `{op.param}`, of which one is its host's"
            if v.unit:
                stored = isinstance(e, At)
            elif isinstance(e, OfTile):
                stored = at is not None and names.get(e.var) == at
            else:
                one = at is None or (host.grid[at].tile is None and host.grid[at].kind in ("plain", "mine"))
                stored = isinstance(e, Whole) and one
            if isinstance(op, Load) and not stored:
                yield f"it reads `{op.param}` at other places than its host's tile"


def _unlike(step: Step, host: StepPlan, what: str, hint: str = "place it on SMs of its own") -> TilelinkError:
    return TilelinkError(
        "TL316",
        f"`{step.path}` cannot be fused into `{host.path}`: {what}",
        loc=step.loc,
        why="a fused program runs right after the tile it depends on, so their tiles must correspond one to one",
        hint=hint,
        notes=(Note(f"`{host.path}` is declared here", host.step.program.loc),),
    )


# --------------------------------------------------------------------------------------------------------------- subtiles
def _subtiles(step: Step, grid: tuple[GridAxis, ...], same_columns: bool) -> int:
    """How many subtiles the schedule asks the host's tile to be cut into; 0: it does not say. `same_columns`: those of the step's
    tile are those of the host's."""
    assert isinstance(step.placement, Fused)
    plain = step.program.copy_program is None and len([g for g in grid if g.kind != "own"]) == 2 and same_columns
    whole = next((t for t in step.program.together if t.var == grid[-1].var), None)
    divisible = plain and whole is None
    if not step.placement.tile:
        return 0 if divisible else 1
    (dim, size), *more = step.placement.tile
    last = grid[-1]
    good = last.dim == dim and last.tile is not None and not more and last.tile % size == 0 and size & (size - 1) == 0
    if good and last.tile is not None and (divisible or (plain and size == last.tile)):
        return last.tile // size
    why = "a fused computation of two axes may take its host's tile in subtiles of the host's last one, each a power of two"
    hint = f"use a power of two that divides {last.dim}={last.tile}, or leave it out"
    if last.tile is None:
        hint = f"give `{step.placement.into}` a tile along `{last.dim}`, or leave the tile size out"
    if plain and whole is not None:
        why = f"`{whole.what}` takes the columns of a tile together, and a subtile has some of them"
        hint = "leave the tile size out"
    raise TilelinkError(
        "TL325",
        f"`{step.path}` cannot take tiles of `{step.placement.into}` in subtiles of {dim}={size}",
        loc=step.loc if whole is None else whole.loc,
        why=why,
        hint=hint,
    )


SUBTILE = 64
"""Columns that a fused step takes at a time where it reads more of the same shape and the schedule does not say: as much
as leaves registers, and shared memory, for what the host has under way."""
SUBTILE_DEFERRED = 128
"""The same of a step that comes behind its host's tiles, which has all registers for itself: fewer work indices are drawn."""


def with_subtiles(plan: Plan) -> tuple[StepPlan, ...]:
    """The steps, with the number of subtiles for those fused ones whose schedule does not say.

    Raises:
        TilelinkError: TL325, subtiles of what others wait for: a tile is complete after its last subtile only, and what each
            of them notifies would be raised too often.
    """
    out: list[StepPlan] = []
    for s in plan.steps:
        notify = next((g.op for g in plan.signals if g.path == s.path and g.action == "notify"), None)
        subtiles = max(s.subtiles, 1)
        if s.subtiles == 0 and s.into is not None and notify is None:
            tile, length = s.grid[-1].tile, SUBTILE_DEFERRED if s.deferred else SUBTILE
            subtiles = tile // length if tile is not None and tile >= length and tile % length == 0 else 1
        if subtiles > 1 and notify is not None:
            raise TilelinkError(
                "TL325",
                f"`{s.path}` cannot take tiles of `{s.into}` in subtiles, because others wait for what it makes",
                loc=notify.loc,
                why="each subtile would notify, and the flags are counted in tiles",
                hint=f'leave the tile size out of fused("{s.into}")',
            )
        out.append(replace(s, subtiles=subtiles))
    return tuple(out)


# --------------------------------------------------------------------------------------- behind all of the host's tiles
def with_deferred(plan: Plan) -> tuple[StepPlan, ...]:
    """The steps, with `deferred` set for those whose schedule asks for it and that can.

    Such a step computes for this rank's own rows, which the host makes last; nobody waits for what it makes, in this call,
    and the host waits for nobody: else who waits could hold up whom it waits for. Its tiles lie in memory in any case.

    Raises:
        TilelinkError: TL333, one that must and cannot.
    """
    out: list[StepPlan] = []
    for step in plan.steps:
        placement, host = step.step.placement, plan.step(step.executor)
        wanted = placement.deferred if isinstance(placement, Fused) else False
        why = next(_not_behind(plan, step, host), "") if wanted is not False else ""
        hint = f'let it come right after each tile: fused("{host.path}")'
        if wanted is not False and not why and not _own_last(plan, step, host):
            why = f"`{host.path}` does not make this rank's own tiles last"
            hint = f'order `{host.path}` so that own rows come last, such as order="ring+1"'
        if why and wanted:
            raise TilelinkError(
                "TL333",
                f"`{step.path}` cannot come behind the tiles of `{host.path}`",
                loc=step.step.loc,
                why=why,
                hint=hint,
                notes=(Note(f"`{host.path}` is called here", host.step.loc),),
            )
        out.append(replace(step, deferred=wanted is not False and not why))
    return tuple(out)


def _not_behind(plan: Plan, step: StepPlan, host: StepPlan) -> Iterator[str]:
    """Why a step cannot come behind its host's tiles, whatever their order."""
    if step.copies or step.own_axis is None:
        yield "it does not compute for this rank's own rows alone"
    if not any(host.path in dict(k.roles) and len(k.roles) == 1 for k in plan.kernels):
        yield f"`{host.path}` shares its workers with other steps"
    if any(g.path == step.path and g.action == "notify" for g in plan.signals):
        yield "somebody waits for what it makes"
    if any(g.path == host.path and g.action == "await" for g in plan.signals):
        yield f"`{host.path}` waits for others"
    moved = {s.step.moved_from for s in plan.steps if s.into is None}
    # A tile that nobody moves from memory is not stored at all.
    if not {plan.wiring.moved_from(tensor, host.step.writes) for tensor in step.forwarded} <= moved:
        yield f"`{host.path}` hands its tiles over and stores none: nobody moves them from memory"


def _own_last(plan: Plan, step: StepPlan, host: StepPlan) -> bool:
    """Whether the last tiles of the host's order are a rank's own, and no others. The order itself is looked at, on ranks of each
    kind: parts may lack tiles."""
    if host.sort_key is not None:
        return False  # a user's function, which may know the ranks apart
    axis, topology = step.own_axis or 0, plan.topology
    grid = host.grid[axis]
    for rank in {0, 1 % topology.ranks, topology.ranks // 2, topology.ranks - 1}:
        turns = host.turns(plan.env(rank))
        begin = np.broadcast_to(F.evaluate(grid.begin(Sym(f"i{axis}")), turns), turns["t"].shape)
        own = begin // F.evaluate(grid.part, turns) == topology.at(rank, step.axis)
        if (own != (turns["t"] >= len(turns["t"]) - F.evaluate(step.own_tiles(host), turns))).any():
            return False
    return True
