"""Waits and notifies as flags: which ones an index touches, on which rank they lie, and who signals them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import ENTERED, READY, Await, Data, Flags, For, Op, Signal
from tilelink.ir.partition import Channel, ChannelAxis
from tilelink.ir.plan import Plan
from tilelink.ir.plan import Signal as Said
from tilelink.ir.program import At, Gather, Notify, Wait, Whole
from tilelink.ir.shape import rank_along
from tilelink.ir.wiring import Entries
from tilelink.mapping.lower.frame import Frame, Lanes, under


def flags_of(plan: Plan, c: Channel) -> Flags:
    """The flags of a channel."""
    if not c.adds or plan.epoch_signalled:
        return Flags(c.tensor, c.flags, style="data" if plan.ll else "epoch", scope=c.scope)
    at = c.indices(Sym("flag"))
    arrivals = F.substitute(c.target, {f"c{k}": index for k, index in enumerate(at)})
    if c.doorbells == "alone":
        return Flags(c.tensor, c.flags, arrivals, "doorbell", c.scope)
    return Flags(c.tensor, c.flags, arrivals, "count", c.scope, _rung(c, at) if c.doorbells else None)


def awaits(frame: Frame, op: Wait, index: Entries, source: Formula | None) -> tuple[Op, ...]:
    """What a wait waits for. `source`: the coordinate of the rank that it is to hear from; None: whoever the channel says."""
    found = frame.plan.signal(frame.step.path, op)
    if found is None or found.action == "elided":
        return ()
    at = source or frame.step.rank
    if found.action == "ready":
        flags = READY if frame.plan.buffer(frame.tensor(op.param).name).staged else ENTERED
        return (Await(flags, frame.number(at), 0, op.loc),)
    channel = frame.plan.channel(found.channel or "")
    if _untold(frame, channel, least=1):
        return ()
    doorbell = channel.doorbells != "" and not frame.step.engine.compares and not frame.step.by_panels

    def await_(flag: Formula, indices: tuple[Formula, ...]) -> tuple[Op, ...]:
        out: tuple[Op, ...] = (Await(channel.tensor, flag, 0, op.loc, doorbell),)
        # Nor does a stream wait for a doorbell that is not rung.
        return under([_rung(channel, indices)], out) if doorbell else out

    return _each(frame, channel, op, index, at, await_)


def signals(frame: Frame, op: Notify, index: Entries, target: Formula | None) -> tuple[Op, ...]:
    """What a notify signals. `target`: the coordinate of the one rank that a copy goes to."""
    found = frame.plan.signal(frame.step.path, op)
    if found is None or found.action == "elided":
        return ()
    channel = frame.plan.channel(found.channel or "")
    if _untold(frame, channel):
        return ()
    to = _addressee(frame, op, found, channel, index, target)
    amount = None if channel.joined else F.Const(1)

    def signal(flag: Formula, indices: tuple[Formula, ...]) -> tuple[Op, ...]:
        rank = None if to is None else frame.peer(to)
        out: tuple[Op, ...] = (Signal(channel.tensor, flag, rank, frame.step.axis, amount, op.loc),)
        if channel.doorbells != "alone":
            return out
        # A doorbell that nobody waits for is not rung.
        rung = _rung(channel, indices)
        return under([rung if to is None else frame.on(rung, to)], out)

    return _each(frame, channel, op, index, frame.step.rank, signal, whose=to)


def _untold(frame: Frame, channel: Channel, least: int = 0) -> bool:
    """Whether a program's text says nothing of these flags: words that hold data say themselves that they have come, and of a
    tensor without elements there is nothing to wait for, as there is of `least` flags."""
    if not frame.by_name or frame.step.copies:
        return False
    return frame.plan.ll or np.max(F.evaluate(channel.flags, frame.plan.on_all)) < least


def _rung(channel: Channel, indices: tuple[Formula, ...]) -> Formula:
    """Whether the doorbell of a flag is rung on its rank."""
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
    owner = frame.owner(index) if frame.step.library is None else None
    if owner is not None:
        return owner
    # Others copy it on: the one whose shard it becomes. Of what has no shards nobody else waits for one.
    axis = channel.whose(frame.step.axis)
    shard = next(((v, e) for v, e in index if axis is not None and v.axis == axis.axis), None)
    if axis is None or shard is None:
        return frame.step.rank
    return frame.interval(*shard).begin // axis.part


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
    loops: list[tuple[str, Formula, Data | None]] = []
    tests: list[Formula] = []
    elements: list[Formula] = []
    for k, axis in enumerate(channel.axes):
        var = f"{channel.tensor}_c{k}"
        entry = next(((v, e) for v, e in index if v.axis == axis.axis), None)
        lanes = Lanes(frame, var)
        at = lanes.one(entry[1], 1) if entry is not None and isinstance(entry[1], Gather) else None
        if entry is not None and at is not None:
            # Past an edge of a vector of positions there are no flags.
            low, high = frame.there(entry[0], frame.step.rank if axis.kind == "part" else None)
            if frame.by_name:
                elements.append(F.binary("and", F.binary(">=", at, low), F.binary("<", at, high)))
            else:
                loops.append((lanes.var(1), lanes.lengths[1], None))
                tests += [F.binary("<=", low, at), F.binary("<", at, high)]
                indices.append(axis.index(axis.first(local=entry[0].local) + at))
                continue
        first, count, by_data = _along(frame, axis, op, index, source, whose)
        if entry is not None and isinstance(op, Wait) and not frame.by_name:
            at = frame.interval(*entry)
            empty = isinstance(entry[1], At) or at.by_data is not None
            tests.append(F.binary("<", *((0, axis.count) if empty else (at.begin, at.end))))  # of nothing, nobody waits
        if count is not None:
            loops.append((frame.unique(var), count, by_data))
            first = first + Sym(frame.unique(var))
        indices.append(first)
    found = under(tests, leaf(channel.flat(tuple(indices)), tuple(indices)))
    for var, count, by_data in reversed(loops):
        found = (For(var, count, found, by_data),)
    return under(elements, found)


def _along(
    frame: Frame, axis: ChannelAxis, op: Wait | Notify, index: Entries, source: Formula, whose: Formula | None
) -> tuple[Formula, Formula | None, Data | None]:
    """(first flag, how many if not one, what data decides if it is some of these only) along an axis of the channel."""
    if axis.axis is None:
        if axis.every and isinstance(op, Wait) and op.peer is None:
            return F.of(0), axis.count, None
        return (source if axis.over == frame.step.axis else rank_along(axis.over)), None, None
    found = next(((v, e) for v, e in index if v.axis == axis.axis), None)
    # Flags past the end of a part that ends early stand for nothing, and data does not ask for them.
    filled = axis.filled if whose is None else frame.on(axis.filled, whose)
    if found is None or isinstance(found[1], Whole):
        return F.of(0), filled, None
    view, entry = found
    at = frame.interval(view, entry)
    if at.by_data:
        return F.of(0), filled, replace(at.by_data, loc=at.by_data.loc or op.loc)
    begin, last = at.begin, at.end - 1
    if isinstance(entry, Gather):
        last = F.maximum(last, 0)
    elif not frame.by_name:
        last = F.maximum(last, at.begin)
    # The counts of flags are of those that a notify names by positions.
    if isinstance(entry, At) and (isinstance(op, Wait) or not entry.expr.positional) and not frame.stays(view, entry):
        # Past an edge the nearest flag is looked at.
        low, high = frame.there(view, frame.step.rank if axis.kind == "part" else None)
        begin = F.maximum(F.minimum(begin, high - 1), low)
    shift = axis.first(local=view.local)
    begin, last = shift + begin, shift + last
    first = axis.index(begin)
    if isinstance(entry, At) or axis.kind == "unit" or (at.grid is not None and axis.holds(at.grid)):
        return first, None, None
    return first, axis.index(last) - first + 1, None
