"""What a host hands to the steps that are fused into it: the tile that each of its turns stores, in registers, once."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilelink.ir.partition import GridAxis
from tilelink.ir.program import At, IndexEntry, Load, OfTile, Store, Wait, Whole, walk
from tilelink.ir.wiring import Step, ViewAxis, Wiring, indexed


def not_forwarded(wiring: Wiring, step: Step, host: Step, held: Collection[str]) -> str | None:
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


def reads_elsewhere(
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
