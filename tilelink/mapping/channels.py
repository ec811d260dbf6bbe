"""The flags of a tensor (f_C): which positions share one, how often each is signalled in a call, and by whom."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import Channel, ChannelAxis
from tilelink.ir.plan import StepPlan
from tilelink.ir.schedule import Schedule
from tilelink.ir.shape import ranks_along
from tilelink.mapping.arrivals import Arrivals
from tilelink.mapping.granularity import flags_along
from tilelink.mapping.remote import crosses
from tilelink.mapping.signal_matching import Match, Matching


def channel(found: Matching, schedule: Schedule, least: Mapping[str, F.Number]) -> Channel:
    """The flags of a tensor, for all waits that use them and all notifies that signal them.

    Args:
        least: sizes, on the rank that has least.

    Raises:
        TilelinkError: TL303 a run-time split, TL304 a guard that is no formula, TL321 flags that copy engines bind,
            TL331 two axes of ranks, TL334 instances that other ranks write and pull from, TL335 two kinds of engine.
    """
    tensor, pulled, remote = found.tensor, found.pulled, found.remote
    adds = _adds(found)
    if tensor.name in dict(schedule.channels):
        _check_unbound(found)
    joined = _joined(found, schedule)
    along = _along(found)
    axes = tuple(
        axis
        for a in range(len(tensor.axes))
        if (axis := flags_along(found, a, schedule, along=along, least=least)) is not None
    )
    # Whether the flags of a pulled tensor tell the ranks' parts apart.
    by_part = any(c.axis is not None and tensor.axes[c.axis].over == along for c in axes)
    _check_makers(found, by_part=by_part)
    untold = any(crosses(m.producer, m.notify.param) and not Arrivals(found, axes).sources(m) for m in found.told)
    # Of what is pulled the source is the rank that it is pulled from, which has made it, or else whoever writes it there.
    if (pulled and not by_part) or (untold and (pulled or adds)):
        axes = (ChannelAxis(None, "unit", ranks_along(along), 1, along, every=not pulled or by_part), *axes)
    target = Arrivals(found, axes).expected()
    # A function by panels leaves out runs, or waits for one again with its next tile: no doorbell would be heard just once.
    hearing = [not m.consumer.engine.compares and not m.consumer.by_panels for m in found.matches]
    rings = None if remote else _rings(found, axes, least)
    scope = "sys" if remote or not adds else "gpu"
    counted = all(hearing) and scope == "gpu" and joined is None
    if counted and rings is not None:
        target = F.select(rings, target, 0)
    return Channel(
        name=tensor.name,
        tensor=tensor.name,
        axes=axes,
        target=target,
        adds=adds,
        scope=scope,
        doorbells=any(hearing) and scope == "gpu",
        rings=rings,
        counted=counted,
        joined=joined,
    )


# ------------------------------------------------------------------------------------------------------------ doorbells
def _rings(found: Matching, axes: tuple[ChannelAxis, ...], least: Mapping[str, F.Number]) -> Formula | None:
    """Which flags ring a doorbell: those that the streams wait for which hear of them, if all of them wait for the
    same. None: all of them."""
    streams = {m.consumer.path: m for m in found.matches if not m.consumer.engine.compares}
    heard = {_heard(found, axes, m, least) for m in streams.values()}
    return heard.pop() if len(heard) == 1 else None


def _heard(found: Matching, axes: tuple[ChannelAxis, ...], m: Match, least: Mapping[str, F.Number]) -> Formula | None:
    """The flags that a stream waits for: none on ranks where it has no tiles along another axis, and of other ranks' parts alone,
    if it moves by parts and leaves its own out."""
    s, named = m.consumer, [m.waited(c.axis) for c in axes if c.axis is not None]
    others = [g for g in s.grid if g not in named and g.kind != "table"]
    counts = [g.count for g in others if g.size not in [made.size for made in m.producer.grid]]
    tiles = [F.binary("!=", n, 0) for n in counts if F.evaluate(n, least) == 0]
    tests = [*tiles, *_leaving(found, axes, s)]
    return functools.reduce(lambda a, b: F.binary("and", a, b), tests) if tests else None


def _leaving(found: Matching, axes: tuple[ChannelAxis, ...], s: StepPlan) -> Iterator[Formula]:
    if s.step.moved_to is None or not (s.skip_own and s.push):
        return
    axes_of = found.wiring.tensor(s.step.moved_to).axes
    parts = {v.axis for v, w in s.step.moved_axes if w.axis is not None and axes_of[w.axis].over == s.axis}
    for k, c in enumerate(axes):
        if c.kind == "cut" and c.axis in parts and c.over == s.axis:
            yield F.binary("!=", Sym(f"c{k}") // c.per, c.rank)
            return


# --------------------------------------------------------------------------------------------------- what cannot be one
def _along(found: Matching) -> str:
    """The axis of ranks along which the signals of a tensor go, if they leave a rank.

    Raises:
        TilelinkError: TL331, along two.
    """
    matches = found.matches
    makers = [m.producer.axis for m in matches if crosses(m.producer, m.notify.param)]
    takers = [m.consumer.axis for m in matches if found.pulls(m)]
    axes = list(dict.fromkeys([*makers, *takers, *(m.producer.axis for m in matches if takers)]))
    if len(axes) > 1:
        m = next((m for m in matches if m.consumer.axis != m.producer.axis), matches[0])
        raise TilelinkError(
            "TL331",
            f"`{found.tensor.name}` would be signalled along {' and '.join(axes)}",
            loc=m.consumer.step.loc,
            why=f"`{m.producer.path}` makes it along {m.producer.axis}, `{m.consumer.path}` takes it along "
            f"{m.consumer.axis}: who makes tiles on a rank does not know who pulls them from there along another axis",
            hint=f"let `{m.consumer.path}` push (push=True): it then waits on its own rank for what it sends on",
            notes=(Note(f"`{m.producer.path}`", m.producer.step.loc),),
        )
    return axes[0] if axes else matches[0].producer.axis


def _adds(found: Matching) -> bool:
    streams = [m for m in found.told if not m.producer.engine.adds]
    workers = [m for m in found.told if m.producer.engine.adds]
    if streams and workers:
        stream, worker = streams[0].producer, workers[0]
        raise TilelinkError(
            "TL335",
            f"`{found.tensor.name}` would be announced by the stream of `{stream.path}` and by the workers of "
            f"`{worker.producer.path}`",
            loc=worker.notify.loc,
            why="workers count in a flag, and a stream sets it to the number of the call: it cannot be both",
            hint=f"place `{stream.path}` on SMs too, or let only one of the two programs notify",
            notes=(Note(f"`{stream.path}`", stream.step.loc),),
        )
    return not streams


def _check_makers(found: Matching, *, by_part: bool) -> None:
    """What is pulled is made by the rank that it is pulled from, or else everyone hears whose part of the tensor it is."""
    for m in (m for m in found.matches if found.pulls(m)):
        if crosses(m.producer, m.notify.param) and not (by_part and m.notify.peer is None):
            raise TilelinkError(
                "TL334",
                f"`{m.consumer.path}` would pull `{found.tensor.name}` from instances that `{m.producer.path}` writes on other "
                "ranks",
                loc=m.consumer.step.loc,
                why=f"who pushes a tile tells the rank that gets it, and not those where `{m.consumer.path}` pulls it from there",
                hint=f"let `{m.consumer.path}` push (push=True): it then waits on its own rank for what it sends on"
                + (
                    ", and another program stores the result"
                    if m.consumer.step.moved_to in found.wiring.results
                    else ""
                ),
                notes=(Note(f"`{m.producer.path}`", m.producer.step.loc),),
            )


def _check_unbound(found: Matching) -> None:
    """Where a copy engine signals a flag, or hears of it by a doorbell, its own tiles say how long flags are; and where
    an owner map gives tiles out."""
    for s, does in _bound_by(found):
        raise TilelinkError(
            "TL321",
            f"the schedule gives flags to `{found.tensor.name}`, whose flags are the tiles of `{s.path}`",
            loc=s.step.loc,
            why=f"{does}, so each of its tiles has a flag of its own",
            hint=f"leave `{found.tensor.name}` out of `channels`; the tile of `{s.path}` sets how long its flags are",
        )


def _bound_by(found: Matching) -> Iterator[tuple[StepPlan, str]]:
    for m in found.matches:
        mapped = any(found.owned(m.producer, g) is not None for g in m.producer.grid)
        if not m.producer.engine.adds:
            yield m.producer, "a copy engine sets one flag behind each copy"
        elif not m.consumer.engine.compares and not found.remote:
            yield m.consumer, "a copy engine waits for one doorbell before each copy"
        elif mapped or found.tensor.owned is not None:
            yield m.producer, "an owner map says of each tile which rank has it"


def _joined(found: Matching, schedule: Schedule) -> str | None:
    """The table whose split the notifies are tiles of; its tiles are counted on the rank that makes them."""
    told, name = found.told, found.tensor.name
    tables = {g.table for m in told for g in m.producer.grid if g.kind == "table"}
    if not tables:
        return None
    streams = [s.path for m in found.matches for s in (m.producer, m.consumer) if s.engine.by == "stream"]
    reasons = (
        (found.remote, "they are counted on the rank that makes them, and other ranks write or read this tensor"),
        (streams, f"a copy engine cannot count them (`{', '.join(streams[:1])}`)"),
        (len(told) > 1, "they are counted by one notify, and there are several"),
        (told[0].producer.into is not None, f"`{told[0].producer.path}` runs inside another step"),
        (name in dict(schedule.channels), "all of them share a flag, whatever `channels` says"),
    )
    why = next((text for wrong, text in reasons if wrong), None)
    if why is not None:
        raise TilelinkError(
            "TL303",
            f"`{name}` is split at run time and cannot be signalled so",
            loc=told[0].notify.loc,
            why=f"the number of tiles of a run-time split is known on the device only: {why}",
            hint="place the consumer in a later kernel of the same stream",
        )
    return tables.pop()
