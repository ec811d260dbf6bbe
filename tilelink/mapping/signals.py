"""Waits and notifies become words, or disappear where something else implies them (G2, G7, G17, G22)."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.plan import RANK, RANKS, Channel, ChannelAxis, GridAxis, Link, Signal, StepPlan, here
from tilelink.ir.program import At, Gather, Notify, OfTile, Store, Wait, Whole
from tilelink.ir.schedule import Schedule
from tilelink.ir.topology import Topology
from tilelink.ir.wiring import TensorDecl, Wiring
from tilelink.mapping.guards import notify_guard
from tilelink.mapping.kernels import Placement
from tilelink.mapping.views import entries, signal_ops, tensor_of, walk


@dataclass(frozen=True, slots=True)
class Signals:
    signals: tuple[Signal, ...]
    channels: tuple[Channel, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class _Use:
    """One wait on a tensor that some step produces."""

    consumer: StepPlan
    wait: Wait
    producer: StepPlan
    notify: Notify


def lower(
    wiring: Wiring, topology: Topology, schedule: Schedule, steps: tuple[StepPlan, ...], where: Placement
) -> Signals:
    """Every wait and notify of every step, and the channels they need."""
    by_path = {s.path: s for s in steps}
    signals: list[Signal] = []
    links: list[Link] = []
    uses: dict[str, list[_Use]] = {}
    for s in steps:
        for op in signal_ops(s.step.program):
            if isinstance(op, Wait):
                signals.append(_wait(wiring, topology, s, op, by_path, where, links, uses))
    channels = tuple(_channel(wiring, schedule, tensor, found) for tensor, found in sorted(uses.items()))
    named = {c.tensor: c for c in channels}
    for s in steps:
        for op in signal_ops(s.step.program):
            if isinstance(op, Notify):
                signals.append(_notify(wiring, s, op, named, uses))
    return Signals(tuple(signals), channels, tuple(links))


# ------------------------------------------------------------------------------------------------------------------ waits
def _wait(
    wiring: Wiring,
    topology: Topology,
    s: StepPlan,
    op: Wait,
    steps: dict[str, StepPlan],
    where: Placement,
    links: list[Link],
    uses: dict[str, list[_Use]],
) -> Signal:
    tensor = tensor_of(wiring, s.step, op.param)
    if tensor.origin == "argument":
        remote = reads_remote(s, op.param, tensor)
        kept = "channel" if remote else "argument"
        links.append(Link(tensor.name, "", s.path, kept, remote))
        return Signal(s.path, op, "ready" if remote else "elided", reason=None if remote else "argument")
    producing = _notifies(wiring, tensor.name, steps)
    if not producing:
        raise TilelinkError(
            "TL301",
            f"`{s.path}` waits for `{op.param}`, which no tile program notifies",
            loc=op.loc,
            why="a wait ends when every producer tile that intersects it is complete, and here there is none",
            hint="let the program that writes it call producer_tile_notify, or take the wait out",
        )
    reason = None
    remote = False
    for producer, notify in producing:
        remote = remote or crosses(wiring, producer, notify.param) or reads_remote(s, op.param, tensor)
        reason = None if remote else _implied(s, producer, where)
        links.append(Link(tensor.name, producer.path, s.path, reason or "channel", remote))
        if reason is None:
            uses.setdefault(tensor.name, []).append(_Use(s, op, producer, notify))
    if reason is not None:
        return Signal(s.path, op, "elided", reason=reason)
    return Signal(s.path, op, "await", channel=tensor.name)


def _notifies(wiring: Wiring, tensor: str, steps: dict[str, StepPlan]) -> list[tuple[StepPlan, Notify]]:
    out: list[tuple[StepPlan, Notify]] = []
    for step in wiring.steps:
        for op in signal_ops(step.program):
            if isinstance(op, Notify) and step.binding(op.param).tensor == tensor:
                out.append((steps[step.path], op))
    return out


def reads_remote(s: StepPlan, param: str, tensor: TensorDecl) -> bool:
    """Whether the step reads instances of other ranks: only a pulling movement does."""
    movement = s.step.program.movement
    if movement is None or s.push or movement.source != param:
        return False
    split = any(a.split == "R" for a in tensor.axes)
    slices = any(v.axis is None for v in s.step.binding(param).view)
    return split or slices


def crosses(wiring: Wiring, s: StepPlan, param: str) -> bool:
    """Whether the step writes instances of other ranks."""
    movement = s.step.program.movement
    if movement is not None:
        return bool(s.push) and param == movement.destination
    return any(isinstance(op, Store) and op.to == "holders" and op.param == param for op in walk(s.step.program.body))


def _implied(consumer: StepPlan, producer: StepPlan, where: Placement) -> str | None:
    """What keeps a local dependence without a signal."""
    if consumer.into is not None and _root(consumer) == _root(producer):
        return "worker"
    if consumer.engine == "stream" or producer.engine == "stream":
        return None
    if where.kernel_of[_root(consumer)] == where.kernel_of[_root(producer)]:
        return None
    same_stream = where.stream(_root(consumer)) == where.stream(_root(producer))
    return "stream" if same_stream and where.rank_of(_root(producer)) < where.rank_of(_root(consumer)) else None


def _root(s: StepPlan) -> str:
    return s.into if s.into is not None else s.path


# --------------------------------------------------------------------------------------------------------------- notifies
def _notify(
    wiring: Wiring, s: StepPlan, op: Notify, channels: dict[str, Channel], uses: dict[str, list[_Use]]
) -> Signal:
    tensor = tensor_of(wiring, s.step, op.param)
    channel = channels.get(tensor.name)
    heard = [u for u in uses.get(tensor.name, []) if u.producer.path == s.path]
    if channel is None or not heard:
        return Signal(s.path, op, "elided", reason="nobody waits")
    to = _addressee(tensor, s, op, heard)
    _check_mode(op, to, s)
    return Signal(s.path, op, "notify", channel=channel.name, to=to)


def _addressee(tensor: TensorDecl, s: StepPlan, op: Notify, heard: list[_Use]) -> str:
    if op.peer is not None:
        return "peer"
    pulled = any(reads_remote(u.consumer, u.wait.param, tensor) for u in heard)
    if pulled:
        return "owner" if _waiters_split(heard[0]) else "all"
    movement = s.step.program.movement
    pushed = bool(s.push) if movement is not None else _pushes(s, op.param)
    if not pushed:
        return "self"
    return "owner" if any(a.split == "R" for a in tensor.axes) else "all"


def _pushes(s: StepPlan, param: str) -> bool:
    return any(isinstance(o, Store) and o.to == "holders" and o.param == param for o in walk(s.step.program.body))


def _waiters_split(use: _Use) -> bool:
    """Of a pulled tensor: whether each tile has one waiter (who holds it in the destination) rather than all ranks."""
    return any(g.kind == "mine" for g in use.consumer.grid)


def _check_mode(op: Notify, to: str, s: StepPlan) -> None:
    if op.mode is None:
        return
    broadcast = to == "all"
    if (op.mode == "broadcast") != broadcast:
        heard = "every rank" if broadcast else "one rank"
        raise TilelinkError(
            "TL302",
            f'mode="{op.mode}" is asserted, and this notify is heard by {heard}',
            loc=op.loc,
            why=f"as scheduled, the tiles of `{op.param}` that `{s.path}` completes are waited for by {heard}",
            hint="take the mode out, or place the step so that it holds",
        )


# --------------------------------------------------------------------------------------------------------------- channels
def _channel(wiring: Wiring, schedule: Schedule, tensor_name: str, uses: list[_Use]) -> Channel:
    tensor = wiring.tensor(tensor_name)
    use = uses[0]
    stream_waits = any(u.consumer.engine == "stream" for u in uses)
    writers = "stream" if use.producer.engine == "stream" else "workers"
    pulled = any(reads_remote(u.consumer, u.wait.param, tensor) for u in uses)
    remote = pulled or crosses(wiring, use.producer, use.notify.param)
    axes: list[ChannelAxis] = []
    if pulled and not any(a.split == "R" for a in tensor.axes):
        axes.append(ChannelAxis(None, "unit", RANKS, 1))
    for a, _ in enumerate(tensor.axes):
        axis = _channel_axis(tensor, a, uses, schedule, pulled)
        if axis is not None:
            axes.append(axis)
    needs_source = remote and writers == "workers" and use.notify.peer is None and not pulled
    if needs_source and not _names_source(axes, use, tensor):
        axes.insert(0, ChannelAxis(None, "unit", RANKS, 1))
    source = _source(axes, use, tensor, pulled)
    target = _target(axes, use, tensor, source if source is not None else RANK)
    return Channel(
        name=tensor_name,
        tensor=tensor_name,
        axes=tuple(axes),
        target=target,
        guard=notify_guard(use.producer, use.notify, source, axes),
        writers=writers,
        scope="sys" if remote or writers == "stream" else "gpu",
        source=source,
        bells=stream_waits,
    )


def notify_entry(s: StepPlan, notify: Notify, tensor: TensorDecl, a: int) -> tuple[object, GridAxis | None]:
    """The notify's index on tensor axis `a`, and the partition of the domain that it names, if it is a tile of it."""
    step = s.step
    movement = step.program.movement
    binding = step.binding(notify.param)
    if movement is not None:
        for k, v in enumerate(binding.view):
            if v.axis == a:
                return OfTile(str(k)), s.grid[k]
        return Whole(), None
    for v, e in zip(binding.view, entries(step, notify.param, notify.index), strict=True):
        if v.axis == a:
            return e, _domain_axis(s, e)
    return Whole(), None


def _domain_axis(s: StepPlan, entry: object) -> GridAxis | None:
    if isinstance(entry, OfTile):
        return next((g for g in s.grid if g.var == entry.var), None)
    if isinstance(entry, At):
        name = entry.ring[0] if entry.ring is not None else entry.expr.text
        return next((g for g in s.grid if g.var == name and g.kind in ("unit", "own", "mine")), None)
    return None


def _channel_axis(tensor: TensorDecl, a: int, uses: list[_Use], schedule: Schedule, pulled: bool) -> ChannelAxis | None:
    """The words along one axis of the tensor; None where one word serves the whole axis."""
    axis = tensor.axes[a]
    if axis.own_slice:
        return None
    use = uses[0]
    entry, grid = notify_entry(use.producer, use.notify, tensor, a)
    waited = [_waits_by_tile(u, a) for u in uses]
    if (grid is None and not isinstance(entry, At)) or not all(waited):
        return None
    if axis.unit or axis.name == "R":
        return ChannelAxis(a, "unit", axis.size, 1)
    assert grid is not None
    if grid.tile is None and grid.kind == "plain":
        return None
    if grid.kind == "table":
        raise TilelinkError(
            "TL303",
            f"`{tensor.name}` is split at run time and needs a signal between kernels or ranks",
            loc=use.notify.loc,
            why="the number of tiles of a run-time split is known on the device only",
            hint="place the consumer in a later kernel of the same stream",
        )
    span = _span(use, grid, schedule, tensor)
    if axis.split == "R":
        # The words of pulled parts lie with every waiter; those of pushed parts with the part's holder.
        return ChannelAxis(a, "cut" if pulled else "part", axis.size, span)
    cut = grid.kind in ("cut", "mine") or any(_consumer_cut(u, a) for u in uses)
    if pulled and any(g.kind == "mine" for g in uses[0].consumer.grid):
        return ChannelAxis(a, "part", axis.size, span)
    return ChannelAxis(a, "cut" if cut else "plain", axis.size, span)


def _waits_by_tile(use: _Use, a: int) -> bool:
    step = use.consumer.step
    binding = step.binding(use.wait.param)
    if step.program.movement is not None:
        return any(
            v.axis == a and (use.consumer.grid[k].tile is not None or use.consumer.grid[k].kind in ("cut", "mine"))
            for k, v in enumerate(binding.view)
        )
    for v, e in zip(binding.view, entries(step, use.wait.param, use.wait.index), strict=True):
        if v.axis == a:
            return isinstance(e, (OfTile, At, Gather))
    return False


def _consumer_cut(use: _Use, a: int) -> bool:
    step = use.consumer.step
    if step.program.movement is None:
        return False
    view = step.binding(use.wait.param).view
    return any(v.axis == a and use.consumer.grid[k].kind in ("cut", "mine") for k, v in enumerate(view))


def _span(use: _Use, grid: GridAxis, schedule: Schedule, tensor: TensorDecl) -> int | None:
    """Elements per word: the producer's tile, or the waiting stream's, or what the schedule's channels ask for.

    None: the whole part.
    """
    tiles = [grid.tile]
    if use.consumer.engine == "stream":
        tiles += [g.tile for g in use.consumer.grid if g.tile != 1 and (g.dim == grid.dim or g.kind in ("cut", "mine"))]
    wanted = dict(schedule.channels).get(tensor.name)
    if wanted is not None:
        tiles.append(wanted)
    return None if None in tiles else max(t for t in tiles if t is not None)


def _names_source(axes: list[ChannelAxis], use: _Use, tensor: TensorDecl) -> bool:
    """Whether a word's own coordinates say which rank raises it."""
    for c in axes:
        if c.axis is None:
            return True
        _, grid = notify_entry(use.producer, use.notify, tensor, c.axis)
        if grid is not None and (grid.kind == "own" or (_in_own_part(grid, c) and c.kind == "cut")):
            return True
    return False


def _source(axes: list[ChannelAxis], use: _Use, tensor: TensorDecl, pulled: bool) -> Formula | None:
    """The rank that raises word (`c0`, …), or None when it is the rank itself."""
    if use.notify.peer is not None and use.notify.peer.ring is not None:
        # What is sent to s + k comes, seen from there, from rank - k.
        shift = use.notify.peer.ring[1]
        return (RANK + RANKS - shift) % RANKS if shift >= 0 else (RANK + (-shift)) % RANKS
    for k, c in enumerate(axes):
        if c.axis is None:
            return Sym(f"c{k}")
        _, grid = notify_entry(use.producer, use.notify, tensor, c.axis)
        if grid is not None and grid.kind == "own":
            return Sym(f"c{k}")
        if c.kind == "cut" and grid is not None and _in_own_part(grid, c):
            return Sym(f"c{k}") // c.per
    return None


def _in_own_part(grid: GridAxis, c: ChannelAxis) -> bool:
    """Whether the tiles are those of the rank's part: in global positions, or in a program that sees its part only."""
    return grid.kind == "mine" or (grid.kind == "plain" and c.kind in ("cut", "part") and grid.size != c.size)


def _target(axes: list[ChannelAxis], use: _Use, tensor: TensorDecl, source: Formula) -> Formula:
    """Notifies per call of word (`c0`, …): a product of one-axis counts."""
    total: Formula = F.of(1)
    named: set[int] = set()
    for k, c in enumerate(axes):
        if c.axis is None:
            continue
        _, grid = notify_entry(use.producer, use.notify, tensor, c.axis)
        if grid is None:
            continue
        named.add(next(i for i, g in enumerate(use.producer.grid) if g is grid))
        total = total * tiles_in(grid, c, Sym(f"c{k}"))
    for i, g in enumerate(use.producer.grid):
        if i not in named:
            total = total * F.substitute(g.count, {"rank": source})
    return total


def tiles_in(grid: GridAxis, c: ChannelAxis, index: F.Like) -> Formula:
    """Producer tiles of `grid` that intersect word `index` of a channel axis."""
    i = F.of(index)
    if grid.kind in ("unit", "own") or c.kind == "unit":
        return F.of(1)
    lo, hi = c.interval(i)
    aligned = grid.tile is None or c.span is None or c.span % grid.tile == 0
    by_parts = grid.kind == "cut" or _in_own_part(grid, c)
    if aligned and (c.kind == "plain" or by_parts):
        if c.kind == "plain":
            return F.cdiv(F.minimum(c.size - i * c.length, c.length), grid.step)
        rank = i // c.per if c.kind == "cut" else RANK
        within = i % c.per if c.kind == "cut" else i
        if c.span is None:
            return F.cdiv(here(c.size, rank), grid.step)
        return F.cdiv(F.maximum(F.minimum(here(c.size, rank) - within * c.span, c.span), 0), grid.step)
    if by_parts and c.kind in ("cut", "part"):
        rank = i // c.per if c.kind == "cut" else RANK
        base = rank * c.part
        lo, hi = lo - base, hi - base
    some = F.minimum(F.maximum(hi - lo, 0), 1)
    return (F.cdiv(F.maximum(hi, lo), grid.step) - lo // grid.step) * some
