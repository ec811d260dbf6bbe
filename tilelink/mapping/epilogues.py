"""Epilogues: steps that run in another's workers, tile for tile, and take from its registers the tile that each of its turns
stores, once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilelink.errors import Note, TilelinkError
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Signal, StepPlan
from tilelink.ir.program import At, IndexEntry, Load, OfTile, Store, Wait, Whole, walk
from tilelink.ir.schedule import EPILOGUE, Fused, Sms
from tilelink.ir.shape import ranks_along
from tilelink.ir.wiring import Step, TensorDecl, ViewAxis, Wiring, indexed
from tilelink.mapping.grids import loops_of, split_over
from tilelink.mapping.lineage import Lineage, domain_names, lineage_of, through_loads
from tilelink.mapping.placement import Placed, directed


def epilogue(wiring: Wiring, placed: tuple[Placed, ...], p: Placed, host: StepPlan) -> StepPlan:
    """A step that runs in another's workers, tile for tile."""
    assert isinstance(p.placement, Fused)
    lineage = lineage_of(host.step, wiring.steps)
    step = p.step
    if step.axis != host.axis:
        raise _other_axis(p, host)
    domain = directed(wiring, p)[0] if step.program.copy_program is not None else step.program.domain
    binding = step.binding(domain)
    tensor = wiring.tensor(binding.tensor)
    if step.program.copy_program is None:
        lineage = lineage | through_loads(step, lineage)
    names = domain_names(step) if step.program.copy_program is None else (None,) * len(binding.view)
    found = [_on_host(p, host, tensor, v, name, lineage) for v, name in zip(binding.view, names, strict=True)]
    axes, grid = tuple(at for at, _ in found), tuple(g for _, g in found)
    theirs = host.step.binding(host.domain).view
    own_axis = next(
        (
            at
            for at, v in zip(axes, binding.view, strict=True)
            if at is not None and split_over(tensor, v) == step.axis and not theirs[at].local
        ),
        None,
    )
    held = in_registers(placed, host)
    forwarded = tuple(t for t in step.takes if t in held)
    mover = _moved_meanwhile(placed, step, forwarded)
    if mover is not None:
        raise _unlike(p, host, f"it takes what `{mover}` moves, which does so later, and elsewhere")
    missing = next((g for a, g in enumerate(host.grid) if a not in axes and _walked(g)), None)
    if missing is not None:
        raise _unlike(p, host, f"it has no axis `{missing.dim}`, along which there are several tiles")
    why = _not_forwarded(wiring, step, host.step, held)
    if why is None and step.program.copy_program is None:
        named = {name: at for name, at in zip(names, axes, strict=True) if name is not None}
        why = _reads_elsewhere(step, forwarded, lineage, named, host.grid)
    if why is not None:
        raise _unlike(p, host, why)
    return StepPlan(
        step=step,
        engine=EPILOGUE,
        domain=domain,
        grid=grid,
        loops=loops_of(wiring, Placed(step, Sms(tile=tuple((g.dim, g.tile) for g in grid if g.tile)))),
        order=host.order,
        total=host.total,
        order_names=host.order_names,
        push=True if step.program.copy_program is not None else None,
        into=host.path,
        host_axes=axes,
        own_rows=own_axis is not None,
        own_axis=own_axis,
        forwarded=forwarded,
        subtiles=_subtiles(p, grid, axes[-1] == host.columns),
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
        walked = v.unit and step.program.copy_program is None
        singly = f"`{step.path}` walks `{v.dim}` one element at a time"
        raise _unlike(p, host, singly if walked else f"axis `{v.dim}` has no counterpart there")
    if not v.local and split_over(tensor, v) == step.axis and host.step.binding(host.domain).view[at].local:
        what = f"`{host.path}` counts `{v.dim}` from the begin of its rank's part, and `{step.path}` over all ranks"
        hint = f"write `{v.dim}/R` in the signature of `{host.path}`, or place it on SMs of its own"
        raise _unlike(p, host, what, hint)
    base = host.grid[at]
    return at, GridAxis(v.dim, base.kind, base.size, base.tile, name, base.ring, base.table, step.axis)


def _walked(g: GridAxis) -> bool:
    """Whether there may be several tiles along the axis on a rank."""
    return g.kind != "own" and (g.tile is not None or g.kind not in ("plain", "mine"))


def in_registers(placed: tuple[Placed, ...], host: StepPlan) -> set[str]:
    """Tensors whose tile of this rank is in the host's registers; what the host pushes by itself is read from memory, behind its
    notify."""
    stores = (op for op in walk(host.step.program.body) if isinstance(op, Store) and op.to == "own")
    made = {host.step.binding(op.param).tensor for op in stores}
    for p in placed:
        if p.step.moves is not None and p.step.moved_from in made:
            made.add(p.step.moves[1].tensor)
    return made


def _moved_meanwhile(placed: tuple[Placed, ...], step: Step, forwarded: tuple[str, ...]) -> str | None:
    """A step on an engine of its own that moves a tensor which the fused step takes from registers alone. (Of a tensor with a
    slice per rank only this rank's slice is in registers, and the others are read from memory.)"""
    taken = {b.tensor for b in step.bindings if all(v.axis is None or not v.unit for v in b.view)} & {*forwarded}
    movers = (p for p in placed if p.step.moved_to in taken and not isinstance(p.placement, Fused))
    return next((p.step.path for p in movers), None)


def _subtiles(p: Placed, grid: tuple[GridAxis, ...], same_columns: bool) -> int:
    """How many subtiles the schedule asks the host's tile to be cut into; 0: it does not say. `same_columns`: those of the step's
    tile are those of the host's."""
    assert isinstance(p.placement, Fused)
    divisible = p.step.program.copy_program is None and len([g for g in grid if g.kind != "own"]) == 2 and same_columns
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
        f"`{p.step.path}` cannot take tiles of `{p.placement.into}` in subtiles of {dim}={size}",
        loc=p.step.loc,
        why="a fused computation of two axes may take its host's tile in subtiles of the host's last one, each a power of two",
        hint=f"use a power of two that divides {last.dim}={last.tile}, or leave it out",
    )


def _other_axis(p: Placed, host: StepPlan) -> TilelinkError:
    return TilelinkError(
        "TL332",
        f"`{p.step.path}` goes along {p.step.axis} and cannot be fused into `{host.path}`, which goes along {host.axis}",
        loc=p.step.loc,
        why="they share the host's tiles, whose parts and order are those of one axis of ranks",
        hint=f'place it on SMs of its own, or say over="{p.step.axis}" where `{host.path}` is called, if it names no ranks',
        notes=(Note(f"`{host.path}` is called here", host.step.loc),),
    )


def _unlike(p: Placed, host: StepPlan, what: str, hint: str = "place it on SMs of its own") -> TilelinkError:
    return TilelinkError(
        "TL316",
        f"`{p.step.path}` cannot be fused into `{host.path}`: {what}",
        loc=p.step.loc,
        why="a fused program runs right after the tile it depends on, so their tiles must correspond one to one",
        hint=hint,
        notes=(Note(f"`{host.path}` is declared here", host.step.program.loc),),
    )


SUBTILE = 64
"""Columns that a fused step takes at a time where it reads more of the same shape and the schedule does not say: as much
as leaves registers, and shared memory, for what the host has under way."""
SUBTILE_DEFERRED = 128
"""The same of a step that comes behind its host's tiles, which has all registers for itself: fewer work indices are drawn."""


def with_subtiles(steps: tuple[StepPlan, ...], signals: tuple[Signal, ...]) -> tuple[StepPlan, ...]:
    """The steps, with the number of subtiles for those fused ones whose schedule does not say.

    Raises:
        TilelinkError: TL325, subtiles of what others wait for: a tile is complete after its last subtile only, and what each
            of them notifies would be raised too often.
    """
    out: list[StepPlan] = []
    for s in steps:
        notify = next((g.op for g in signals if g.path == s.path and g.action == "notify"), None)
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


# ------------------------------------------------------------------------------------------------- what is taken from registers
def _not_forwarded(wiring: Wiring, step: Step, host: Step, held: Collection[str]) -> str | None:
    """Why the host does not have what a fused step takes from its registers; None: it has.

    Args:
        held: tensors of which it has a tile there, if it has any.
    """
    taken = step.takes if step.moved_from is None else (step.moved_from,)
    if step.moved_from is not None and step.moved_from not in held:
        return f"it moves `{step.moved_from}`, and `{host.path}` hands over none of it"
    stores = [op for op in walk(host.program.body) if isinstance(op, Store)]
    own = {host.binding(op.param).tensor for op in stores if op.to == "own"}
    made = {wiring.moved_from(tensor, own) for tensor in taken if tensor in held}
    for op in (op for op in stores if host.binding(op.param).tensor in made):
        if op not in host.program.body:
            return f"`{host.path}` stores `{op.param}` under a test or in a loop, and not once in each turn"
        if op.mask is not None:
            return f"`{host.path}` stores `{op.param}` under a mask, and not all of the tile"
    return None


def _reads_elsewhere(
    step: Step,
    tensors: Collection[str],
    lineage: Mapping[tuple[str, int], int],
    names: Mapping[str, int | None],
    grid: tuple[GridAxis, ...],
) -> str | None:
    """What of `tensors` a fused step reads that is not the host's tile; None: nothing.

    Args:
        lineage: (tensor, axis) -> the axis of the host's grid whose tile lies there.
        names: the axis of the host's grid that each tile of the step's domain is.
        grid: the host's.
    """
    for op in walk(step.program.body):
        if not isinstance(op, (Load, Wait)) or step.binding(op.param).tensor not in tensors:
            continue
        for v, e in indexed(step, op.param, op.index):
            at = None if v.axis is None else lineage.get((step.binding(op.param).tensor, v.axis))
            if v.unit and isinstance(op, Wait) and not isinstance(e, At):
                return f"it waits for all slices of `{op.param}`, of which one is its host's"
            if isinstance(op, Load) and not _as_stored(v, e, at, names, grid):
                return f"it reads `{op.param}` at other places than its host's tile"
    return None


def _as_stored(
    v: ViewAxis, e: IndexEntry, at: int | None, names: Mapping[str, int | None], grid: tuple[GridAxis, ...]
) -> bool:
    if v.unit:
        return isinstance(e, At)
    if isinstance(e, OfTile):
        return at is not None and names.get(e.var) == at
    return isinstance(e, Whole) and (at is None or (grid[at].tile is None and grid[at].kind in ("plain", "mine")))
