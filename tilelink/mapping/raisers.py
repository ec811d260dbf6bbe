"""Who raises a word, and how often in a call: formulas over its number."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.ir import formula as F
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import GridAxis, here, holder
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, IndexEntry, Notify
from tilelink.ir.ring import around
from tilelink.ir.shape import rank_along
from tilelink.ir.wiring import TensorDecl, Wiring
from tilelink.mapping.crossing import crosses
from tilelink.mapping.guards import notify_guard
from tilelink.mapping.uses import Use, notify_entry


def source_of(
    wiring: Wiring, axes: list[ChannelAxis], producer: StepPlan, notify: Notify, tensor: TensorDecl
) -> Formula | None:
    """The rank that raises word (`c0`, …) of a rank; None where the word does not say."""
    if notify.peer is not None and notify.peer.ring is not None:
        return _before(notify.peer.ring[1], producer, producer.rank)
    for k, c in enumerate(axes):
        if c.axis is None:
            return Sym(f"c{k}")
        entry, grid = notify_entry(producer, notify, c.axis)
        if grid is not None and grid.kind == "own":
            return _before(_shift(entry), producer, Sym(f"c{k}"))
        if c.kind == "unit" and grid is not None and grid.kind == "mine":
            return Sym(f"c{k}") // grid.part
        if c.kind == "cut" and grid is not None and (_in_own_part(grid, c) or _kept(producer, notify, tensor, c)):
            return Sym(f"c{k}") // c.per
        if producer.own_rows and grid is not None and (found := _owned_domain(wiring, producer, grid)) is not None:
            return holder(*found, c.interval(Sym(f"c{k}"))[0])
    for a, axis in enumerate(tensor.axes):
        entry, grid = notify_entry(producer, notify, a)
        if axis.own_slice and grid is not None and grid.kind == "own":
            return _before(_shift(entry), producer, producer.rank)
        if axis.over == producer.axis and grid is not None and grid.kind == "mine" and grid.size == axis.size:
            return producer.rank  # its own part, which is where the tile goes
    return None


def raising(plan: Plan, channel: Channel) -> tuple[Formula | None, ...]:
    """The rank that raises word (`c0`, …) of a rank, for each of the channel's notifies; None: it cannot be told."""
    found: list[Formula | None] = []
    tensor = plan.wiring.tensor(channel.tensor)
    for signal in plan.signals:
        if signal.channel == channel.name and isinstance(signal.op, Notify):
            producer = plan.step(signal.path)
            source = source_of(plan.wiring, list(channel.axes), producer, signal.op, tensor)
            found.append(producer.rank if source is None and signal.to == "self" else source)
    return tuple(dict.fromkeys(found))


def _owned_domain(wiring: Wiring, producer: StepPlan, grid: GridAxis) -> tuple[TensorDecl, int] | None:
    """The tensor whose owner map says which rank runs a tile of `grid`, and the map's axis."""
    binding = producer.step.binding(producer.domain)
    tensor = wiring.tensor(binding.tensor)
    for v, g in zip(binding.view, producer.grid, strict=True):
        if g is grid and v.axis is not None and v.axis == tensor.owned:
            return tensor, v.axis
    return None


def _shift(entry: IndexEntry) -> int:
    """How far a position is from this rank's coordinate."""
    return entry.ring[1] if isinstance(entry, At) and entry.ring is not None else 0


def _before(shift: int, producer: StepPlan, at: Formula) -> Formula:
    """What goes to coordinate s + shift comes, seen from there, from the coordinate - shift."""
    return around(at, -shift, producer.ranks)


def _in_own_part(grid: GridAxis, c: ChannelAxis) -> bool:
    """Whether the tiles are those of the rank's part: in global positions, or in a program that sees its part only."""
    return grid.kind == "mine" or (grid.kind == "plain" and c.kind in ("cut", "part") and grid.size != c.size)


def _kept(producer: StepPlan, notify: Notify, tensor: TensorDecl, c: ChannelAxis) -> bool:
    """Whether a program that walks all parts of a tensor completes those alone that its rank holds."""
    return c.axis is not None and tensor.axes[c.axis].over == producer.axis and not crosses(producer, notify.param)


def raised(
    wiring: Wiring, axes: list[ChannelAxis], told: list[Use], tensor: TensorDecl
) -> tuple[Formula | None, Formula]:
    """(guard, target): notifies per call of word (`c0`, …), over all programs and source ranks."""
    found: list[tuple[Formula | None, Formula]] = []
    for use in told:
        source = source_of(wiring, axes, use.producer, use.notify, tensor)
        target = _target(axes, use, tensor, source if source is not None else use.producer.rank)
        found.append((notify_guard(use.producer, use.notify, source, axes), target))
    if len(found) == 1:
        return found[0]
    total: Formula = F.of(0)
    for guard, target in found:
        total = total + (target if guard is None else F.select(guard, target, 0))
    return None, total


def _target(axes: list[ChannelAxis], use: Use, tensor: TensorDecl, source: Formula) -> Formula:
    """Notifies of one kind: a product of one-axis counts."""
    total: Formula = F.of(1)
    named: set[int] = set()

    def name(grid: GridAxis) -> None:
        # The result of `tl.rank_of` may stand for this rank's coordinate; then it is no axis of the domain.
        named.update(i for i, g in enumerate(use.producer.grid) if g is grid)

    for k, c in enumerate(axes):
        if c.axis is None:
            continue
        _, grid = notify_entry(use.producer, use.notify, c.axis)
        if grid is not None:
            name(grid)
            total = total * tiles_in(grid, c, Sym(f"c{k}"))
        if c.axis == tensor.owned and crosses(use.producer, use.notify.param):
            total = total * F.binary("==", holder(tensor, c.axis, c.interval(Sym(f"c{k}"))[0]), use.producer.rank)
    for grid, here_of in _choosing(axes, use, tensor):
        name(grid)
        total = total * here_of
    for i, g in enumerate(use.producer.grid):
        if i not in named and g.kind != "table":
            total = total * F.substitute(g.count, {rank_along(use.producer.axis).name: source})
    return total


def _choosing(axes: list[ChannelAxis], use: Use, tensor: TensorDecl) -> Iterator[tuple[GridAxis, Formula]]:
    """Axes of the producer's grid that choose the rank to notify rather than a word, and how many tiles each rank hears of."""
    if not crosses(use.producer, use.notify.param) or use.notify.peer is not None:
        return
    for a, axis in enumerate(tensor.axes):
        _, grid = notify_entry(use.producer, use.notify, a)
        along = use.producer.axis
        if axis.over != along or grid is None or any(c.axis == a for c in axes) or _counts_locally(use, a):
            continue
        yield grid, F.of(1) if axis.own_slice else tiles_in(grid, ChannelAxis(a, "part", axis.size, None, along), 0)


def _counts_locally(use: Use, a: int) -> bool:
    return any(v.axis == a and v.local for v in use.producer.step.binding(use.notify.param).view)


def tiles_in(grid: GridAxis, c: ChannelAxis, index: F.Like) -> Formula:
    """Producer tiles of `grid` that intersect word `index` of a channel axis."""
    i = F.of(index)
    if c.kind == "unit":
        return F.of(1)
    lo, hi = c.interval(i)
    if grid.unit:
        return F.minimum(F.maximum(hi - lo, 0), 1)
    if c.kind == "plain" and c.span is not None and c.span == grid.tile:
        return F.of(1)
    aligned = grid.tile is None or c.span is None or c.span % grid.tile == 0
    by_parts = grid.kind == "cut" or _in_own_part(grid, c)
    if aligned and (c.kind == "plain" or by_parts):
        if c.kind == "plain":
            return F.cdiv(F.minimum(c.size - i * c.length, c.length), grid.step)
        rank = i // c.per if c.kind == "cut" else c.rank
        within = i % c.per if c.kind == "cut" else i
        held = here(c.size, rank, c.over)
        if c.span is None:
            return F.cdiv(held, grid.step)
        return F.cdiv(F.maximum(F.minimum(held - within * c.span, c.span), 0), grid.step)
    if by_parts and c.kind in ("cut", "part"):
        rank = i // c.per if c.kind == "cut" else c.rank
        base = rank * c.part
        lo, hi = lo - base, hi - base
    some = F.minimum(F.maximum(hi - lo, 0), 1)
    return (F.cdiv(F.maximum(hi, lo), grid.step) - lo // grid.step) * some
