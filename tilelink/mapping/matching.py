"""What words serve: waits, and the notifies that raise them, with the tiles that either names."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import At, Holder, IndexEntry, Notify, OfTile, Wait, Whole, walk
from tilelink.ir.wiring import TensorDecl, Wiring, entry_on, indexed
from tilelink.mapping.remote import reads_remote


@dataclass(frozen=True, slots=True)
class Use:
    """A wait that words serve, with one of the notifies that raise them."""

    consumer: StepPlan
    wait: Wait
    producer: StepPlan
    notify: Notify


def notify_entry(s: StepPlan, notify: Notify, a: int) -> tuple[IndexEntry, GridAxis | None]:
    """The notify's index on tensor axis `a`, and the partition of the domain that it names, if it is a tile of it."""
    if s.step.program.movement is not None:
        for k, v in enumerate(s.step.binding(notify.param).view):
            if v.axis == a:
                return OfTile(str(k)), s.grid[k]
        return Whole(), None
    entry = entry_on(s.step, notify.param, notify.index, a) or Whole()
    return entry, domain_axis(s, entry)


def domain_axis(s: StepPlan, entry: IndexEntry) -> GridAxis | None:
    """The partition of the domain of which an index entry is a tile; this rank's coordinate is one, by whatever name."""
    name = _position(entry)
    if name is not None and name in own_names(s):
        return GridAxis(name, "own", s.ranks, None, name, over=s.axis)
    return _named_axis(s, entry)


def _position(entry: IndexEntry) -> str | None:
    """What a single position is called, or on an axis of ranks what it is a shift of."""
    if not isinstance(entry, At):
        return None
    return entry.ring[0] if entry.ring is not None else entry.expr.text


def own_names(s: StepPlan) -> frozenset[str]:
    """What a program calls its own coordinate by asking whose a tile of its domain is, where all of these are this rank's."""
    return frozenset(op.name for op in walk(s.step.program.body) if isinstance(op, Holder) and _is_own(s, op))


def _is_own(s: StepPlan, op: Holder) -> bool:
    for v, e in indexed(s.step, op.param, op.index):
        if v.axis is not None and v.split == "R" and not v.local:
            found = _named_axis(s, e)
            return found is not None and found.kind in ("mine", "own")
    return False


def _named_axis(s: StepPlan, entry: IndexEntry) -> GridAxis | None:
    if isinstance(entry, OfTile):
        return next((g for g in s.grid if g.var == entry.var), None)
    if isinstance(entry, At):
        name = _position(entry)
        return next((g for g in s.grid if g.var == name and _of_one(g)), None)
    return None


def _of_one(grid: GridAxis) -> bool:
    """Whether a position names a tile: axes that are walked singly, also those of a part that is counted from its own begin."""
    return grid.kind in ("unit", "own", "mine") or (grid.kind == "plain" and grid.tile == 1)


def owned_domain(wiring: Wiring, s: StepPlan, grid: GridAxis) -> tuple[TensorDecl, int] | None:
    """The tensor whose owner map says which rank runs a tile of `grid`, and the map's axis; None: no map does."""
    binding = s.step.binding(s.domain)
    tensor = wiring.tensor(binding.tensor)
    found = (v.axis for v, g in zip(binding.view, s.grid, strict=True) if g is grid)
    axis = next((a for a in found if a is not None and a == tensor.owned), None)
    return None if axis is None or not s.own_rows else (tensor, axis)


def waiting_axis(tensor: TensorDecl, uses: list[Use]) -> int | None:
    """The axis of a pulled tensor whose parts say which rank waits for a tile, which is the only one: all who wait pull their
    own part along it. None: several may wait for a tile, or the tensor itself is split, and its parts say who makes a tile."""
    if any(tensor.split_over(u.producer.axis) for u in uses):
        return None
    found = {_own_part(u, tensor) for u in uses}
    return found.pop() if len(found) == 1 else None


def _own_part(u: Use, tensor: TensorDecl) -> int | None:
    """The axis along which a step pulls its own part."""
    if not reads_remote(u.consumer, u.wait.param, tensor):
        return None
    view = u.consumer.step.binding(u.wait.param).view
    return next(
        (v.axis for v, g in zip(view, u.consumer.grid, strict=True) if v.axis is not None and g.kind == "mine"), None
    )
