"""Who raises a word, and how often in a call: formulas over its number."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import GridAxis, here, holder
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, IndexEntry, Notify, Wait
from tilelink.ir.ring import around
from tilelink.ir.shape import rank_along
from tilelink.ir.wiring import TensorDecl, Wiring
from tilelink.mapping.remote import crosses, reads_remote
from tilelink.mapping.guards import notify_guard
from tilelink.mapping.matching import Use, notify_entry, owned_domain


def sources_of(
    wiring: Wiring, axes: list[ChannelAxis], producer: StepPlan, notify: Notify, tensor: TensorDecl, *, pulled: bool
) -> tuple[Formula, ...]:
    """The rank that raises word (`c0`, …) of a rank, by everything that says so: it is raised where all mean the same rank. None
    where the word does not say. `pulled`: other ranks take the tensor."""
    return tuple(dict.fromkeys(_sources(wiring, axes, producer, notify, tensor, pulled=pulled)))


def _sources(
    wiring: Wiring, axes: list[ChannelAxis], producer: StepPlan, notify: Notify, tensor: TensorDecl, *, pulled: bool
) -> Iterator[Formula]:
    if notify.peer is not None and notify.peer.ring is not None:
        yield _before(notify.peer.ring[1], producer, producer.rank)
    elif not pulled and not crosses(producer, notify.param):
        yield producer.rank
    for k, c in enumerate(axes):
        if c.axis is None:
            yield Sym(f"c{k}")
            return
        entry, grid = notify_entry(producer, notify, c.axis)
        if grid is None:
            continue
        if grid.kind == "own":
            yield _before(_shift(entry), producer, Sym(f"c{k}"))
        elif c.kind == "unit" and grid.kind == "mine":
            yield Sym(f"c{k}") // grid.part
        elif c.kind == "cut" and (_in_own_part(grid, c) or _kept(producer, notify, tensor, c)):
            yield Sym(f"c{k}") // c.per
        elif (found := owned_domain(wiring, producer, grid)) is not None:
            yield holder(*found, c.interval(Sym(f"c{k}"))[0])
    for a, axis in enumerate(tensor.axes):
        entry, grid = notify_entry(producer, notify, a)
        if pulled or grid is None:
            continue
        if axis.own_slice and grid.kind == "own":
            yield _before(_shift(entry), producer, producer.rank)
        if axis.over == producer.axis and grid.kind == "mine" and grid.size == axis.size:
            yield producer.rank  # its own part, which is where the tile goes


def raising(plan: Plan, channel: Channel) -> tuple[Formula, ...]:
    """The rank that raises word (`c0`, …) of a rank, for each of the channel's notifies of which that can be told."""
    tensor = plan.wiring.tensor(channel.tensor)
    on = [(plan.step(s.path), s.op) for s in plan.signals if s.channel == channel.name]
    pulled = any(isinstance(op, Wait) and reads_remote(s, op.param, tensor) for s, op in on)
    found = (
        sources_of(plan.wiring, list(channel.axes), s, op, tensor, pulled=pulled)[:1]
        for s, op in on
        if isinstance(op, Notify)
    )
    return tuple(dict.fromkeys(source for sources in found for source in sources))


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
    wiring: Wiring, axes: list[ChannelAxis], told: list[Use], tensor: TensorDecl, *, pulled: bool
) -> tuple[Formula | None, Formula]:
    """(guard, target): notifies per call of word (`c0`, …), over all programs and source ranks."""
    found: list[tuple[Formula | None, Formula]] = []
    for use in told:
        sources = sources_of(wiring, axes, use.producer, use.notify, tensor, pulled=pulled)
        source = sources[0] if sources else None
        target = _target(wiring, axes, use, tensor, source if source is not None else use.producer.rank)
        for other in sources[1:]:
            target = target * F.binary("==", sources[0], other)
        found.append((notify_guard(use.producer, use.notify, source, axes), target))
    if len(found) == 1:
        return found[0]
    total: Formula = F.of(0)
    for guard, target in found:
        total = total + (target if guard is None else F.select(guard, target, 0))
    return None, total


def _target(wiring: Wiring, axes: list[ChannelAxis], use: Use, tensor: TensorDecl, source: Formula) -> Formula:
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
            if (found := owned_domain(wiring, use.producer, g)) is not None:
                raise _uncounted(use, *found)
            # A fused step for own rows takes those of its host's tiles.
            own = use.producer.own_axis is not None and use.producer.host_axes[i] == use.producer.own_axis
            count = F.cdiv(here(g.size, over=g.over), g.step) if own else g.count
            total = total * F.substitute(count, {rank_along(use.producer.axis).name: source})
    return total


def _uncounted(use: Use, mapped: TensorDecl, axis: int) -> TilelinkError:
    path, along = use.producer.path, mapped.axes[axis].name
    return TilelinkError(
        "TL306",
        f"`{path}` notifies `{use.notify.param}` and names no tile of `{along}`, along which `{mapped.name}` is mapped",
        loc=use.notify.loc,
        why=f"`{use.consumer.path}` waits for as many notifies as there are tiles, and how many each rank has, the owner map "
        f"`{mapped.owner_map}` says tile by tile only",
        hint="name the tile that the program has made",
        notes=(Note("waited for here", use.wait.loc),),
    )


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
        if grid.tile is None and grid.kind == "plain":
            return F.minimum(held, 1)  # all that the rank has
        if c.span is None:
            return F.cdiv(held, grid.step)
        return F.cdiv(F.maximum(F.minimum(held - within * c.span, c.span), 0), grid.step)
    if by_parts and c.kind in ("cut", "part"):
        rank = i // c.per if c.kind == "cut" else c.rank
        base = rank * c.part
        lo, hi = lo - base, hi - base
    some = F.minimum(F.maximum(hi - lo, 0), 1)
    return (F.cdiv(F.maximum(hi, lo), grid.step) - lo // grid.step) * some
