"""Waits and notifies as flags: which ones an index touches, on which rank they lie, and who signals them."""

from __future__ import annotations

from collections.abc import Callable

from tilelink.ir import formula as F
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import ENTERED, READY, Await, Flags, For, Op, Signal
from tilelink.ir.plan import Plan
from tilelink.ir.plan import Signal as Said
from tilelink.ir.program import At, Gather, Notify, OfTile, Wait
from tilelink.ir.shape import rank_along
from tilelink.mapping.lower.frame import Entries, Frame, under


def flags_of(plan: Plan, c: Channel) -> Flags:
    """The flags of a channel."""
    at = {f"c{k}": index for k, index in enumerate(c.indices(Sym("flag")))}
    if c.tensor in plan.low_latency:
        return Flags(c.name, c.words, style="data", scope=c.scope)
    if c.writers == "stream" or plan.brief:
        return Flags(c.name, c.words, style="epoch", scope=c.scope)
    arrivals = c.target if c.guard is None else F.select(c.guard, c.target, 0)
    return Flags(c.name, c.words, F.substitute(arrivals, at), "doorbell" if c.counted else "count", c.scope)


def said(frame: Frame, op: Wait | Notify) -> Said | None:
    """What the plan says of a signal; None: nothing, and it is not emitted."""
    return next((s for s in frame.plan.signals if s.path == frame.step.path and s.op == op), None)


def awaits(frame: Frame, op: Wait, index: Entries, source: Formula | None) -> tuple[Op, ...]:
    """What a wait waits for. `source`: the coordinate of the rank that it is to hear from; None: whoever the channel says."""
    found = said(frame, op)
    if found is None or found.action == "elided":
        return ()
    if found.action == "ready":
        flags = READY if frame.plan.buffer(frame.tensor(op.param).name).staged else ENTERED
        return (Await(flags, frame.peer(frame.step.rank if source is None else source), 0, op.loc),)
    channel = frame.plan.channel(found.channel or "")
    at = frame.step.rank if source is None else source
    bell = channel.bells and frame.step.engine == "stream" and not frame.step.by_runs

    def await_(flag: Formula, indices: tuple[Formula, ...]) -> tuple[Op, ...]:
        out: tuple[Op, ...] = (Await(channel.name, flag, 0, op.loc, bell),)
        # Nor does a stream wait for a bell that is not rung.
        return under([_rung(channel, indices)], out) if bell else out

    return _each(frame, channel, op, index, at, await_)


def signals(frame: Frame, op: Notify, index: Entries, target: Formula | None) -> tuple[Op, ...]:
    """What a notify signals. `target`: the coordinate of the one rank that a copy goes to."""
    found = said(frame, op)
    if found is None or found.action == "elided":
        return ()
    channel = frame.plan.channel(found.channel or "")
    to = _addressee(frame, op, found, channel, index, target)
    amount = None if channel.joined is not None else F.Const(1)

    def signal(flag: Formula, indices: tuple[Formula, ...]) -> tuple[Op, ...]:
        rank = None if to is None else frame.peer(to)
        out: tuple[Op, ...] = (Signal(channel.name, flag, rank, frame.step.axis, amount, op.loc),)
        if not channel.counted:
            return out
        # A doorbell that nobody waits for is not rung.
        rung = _rung(channel, indices)
        return under([rung if to is None else frame.on(rung, to)], out)

    return _each(frame, channel, op, index, frame.step.rank, signal, whose=to)


def _rung(channel: Channel, indices: tuple[Formula, ...]) -> Formula:
    """Whether the bell of a flag is rung on its rank."""
    rings = F.of(1) if channel.rings is None else channel.rings
    return F.substitute(rings, {f"c{k}": i for k, i in enumerate(indices)})


def _addressee(
    frame: Frame, op: Notify, found: Said, channel: Channel, index: Entries, target: Formula | None
) -> Formula | None:
    """The coordinate of the rank whose flag is signalled; None: every rank's of the submesh."""
    if found.to == "self":
        return frame.step.rank
    if found.to == "peer" and op.peer is not None:
        return frame.at(op.peer)
    if found.to == "all" or target is not None:
        return target
    owner = frame.owner(op.param, index) if frame.step.library is None else None
    if owner is not None:
        return owner
    # Others copy it on: the one whose shard it becomes. Of what has no shards nobody else waits for one.
    axis = channel.whose(frame.step.axis)
    shard = next(((v, e) for v, e in index if axis is not None and v.axis == axis.axis), None)
    if axis is None or shard is None:
        return frame.step.rank
    return frame.interval(op.param, *shard).begin // axis.part


def _each(
    frame: Frame,
    channel: Channel,
    op: Wait | Notify,
    index: Entries,
    source: Formula,
    leaf: Callable[[Formula, tuple[Formula, ...]], tuple[Op, ...]],
    whose: Formula | None = None,
) -> tuple[Op, ...]:
    """`leaf` for each flag that an index touches. `whose`: the coordinate of the rank whose flags they are, if not this one's."""
    indices: list[Formula] = []
    loops: list[tuple[str, Formula, bool]] = []
    for k, axis in enumerate(channel.axes):
        first, count, by_data = _along(frame, axis, op, index, source, whose)
        if count is not None:
            var = frame.unique(f"{channel.name}_c{k}")
            loops.append((var, count, by_data))
            first = first + Sym(var)
        indices.append(first)
    found = leaf(channel.flat(tuple(indices)), tuple(indices))
    for var, count, by_data in reversed(loops):
        found = (For(var, count, found, by_data),)
    return found


def _along(
    frame: Frame, axis: ChannelAxis, op: Wait | Notify, index: Entries, source: Formula, whose: Formula | None
) -> tuple[Formula, Formula | None, bool]:
    """(first flag, how many if not one, whether it is some of these only) along an axis of the channel."""
    if axis.axis is None:
        if axis.every and isinstance(op, Wait) and op.peer is None:
            return F.of(0), axis.count, False
        return (source if axis.over == frame.step.axis else rank_along(axis.over)), None, False
    found = next(((v, e) for v, e in index if v.axis == axis.axis), None)
    if found is not None and isinstance(found[1], Gather):
        return F.of(0), axis.count, True
    if found is None or not isinstance(found[1], OfTile | At):
        return F.of(0), axis.filled if whose is None else frame.on(axis.filled, whose), False
    view, entry = found
    at = frame.interval(op.param, view, entry)
    if at.by_data:
        return F.of(0), axis.count, True
    begin, last = at.begin, F.maximum(at.end - 1, at.begin)
    if isinstance(entry, At) and isinstance(op, Wait):
        # Past an edge the nearest flag is looked at.
        low, high = frame.there(op.param, view, frame.step.rank if axis.kind == "part" else None)
        begin = F.maximum(F.minimum(begin, high - 1), low)
    if axis.kind == "cut" and view.local:
        shift = rank_along(axis.over) * axis.part
        begin, last = begin + shift, last + shift
    first = axis.index(begin)
    if isinstance(entry, At) or axis.kind == "unit" or (at.grid is not None and axis.holds(at.grid)):
        return first, None, False
    return first, axis.index(last) - first + 1, False
