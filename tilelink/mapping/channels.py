"""Waits and notifies become flags, or disappear where something else implies them. The flags of a tensor (f_C): which positions
share one, how often each is signalled in a call, and by whom."""

from __future__ import annotations

import functools

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import Channel, ChannelAxis, GridAxis
from tilelink.ir.plan import KernelPlan, Plan, Signal, StepPlan
from tilelink.ir.program import At, Notify, OfTile, Tiles, Wait, walk
from tilelink.ir.shape import ranks_along
from tilelink.ir.wiring import indexed
from tilelink.mapping.arrivals import Arrivals
from tilelink.mapping.signal_matching import Match, Matching, crosses, owned, reads_remote


def matched(plan: Plan) -> tuple[tuple[Signal, ...], tuple[Channel, ...]]:
    """Every wait and notify of every step, and the channels they need.

    Raises:
        TilelinkError: TL301 a wait for what nobody notifies, TL302 a mode that does not hold, and those of `channel_of`.
    """
    wiring, signals = plan.wiring, list[Signal]()
    ops = [(s, op) for s in plan.steps for op in walk(s.step.program.body)]
    notifies = [(s, op) for s, op in ops if isinstance(op, Notify)]
    matches: dict[str, list[Match]] = {}
    for s, op in ops:
        if isinstance(op, Wait):
            signal, served = _wait(plan, s, op, notifies)
            signals.append(signal)
            if signal.channel is not None:
                matches.setdefault(signal.channel, []).extend(served)
    found = {name: Matching(plan, wiring.tensor(name), tuple(each)) for name, each in sorted(matches.items())}
    channels = {name: channel_of(each) for name, each in found.items()}
    for s, op in notifies:
        matching = found.get(s.step.binding(op.param).tensor)
        heard = [m for m in matching.matches if m.producer.path == s.path and m.notify == op] if matching else []
        if matching is None or not heard:
            signals.append(Signal(s.path, op, "elided", reason="nobody waits"))
            continue
        channel = channels[matching.tensor.name]
        to = _addressee(matching, s, op, heard, channel)
        if op.mode is not None and (op.mode == "broadcast") != (to == "all"):
            told = "every rank" if to == "all" else "one rank"
            raise TilelinkError(
                "TL302",
                f'mode="{op.mode}" is asserted, and this notify is heard by {told}',
                loc=op.loc,
                why=f"as scheduled, the tiles of `{op.param}` that `{s.path}` completes are waited for by {told}",
                hint="take the mode out, or place the step so that it holds",
            )
        signals.append(Signal(s.path, op, "notify", channel=channel.tensor, to=to))
    return tuple(signals), tuple(channels.values())


# ------------------------------------------------------------------------------------------------------------------ waits
def _wait(plan: Plan, s: StepPlan, op: Wait, notifies: list[tuple[StepPlan, Notify]]) -> tuple[Signal, list[Match]]:
    """What becomes of a wait, and what the flags serve that it needs."""
    tensor = plan.wiring.tensor(s.step.binding(op.param).tensor)
    pulled = reads_remote(s, op.param)
    if tensor.origin == "argument":
        return Signal(s.path, op, "ready") if pulled else Signal(s.path, op, "elided", reason="argument"), []
    producing = [(p, n) for p, n in notifies if p.step.binding(n.param).tensor == tensor.name]
    if not producing:
        raise TilelinkError(
            "TL301",
            f"`{s.path}` waits for `{op.param}`, which no tile program notifies",
            loc=op.loc,
            why="a wait ends when every producer tile that intersects it is complete, and here there is none",
            hint="let the program that writes it call producer_tile_notify, or take the wait out",
        )
    implied = [None if pulled or crosses(p, n.param) else _implied(s, p, plan.kernels) for p, n in producing]
    # One notify that needs flags is enough: the wait then counts all of them.
    if None not in implied:
        return Signal(s.path, op, "elided", reason=implied[0]), []
    return Signal(s.path, op, "await", channel=tensor.name), [Match(s, op, p, n) for p, n in producing]


def _implied(consumer: StepPlan, producer: StepPlan, kernels: tuple[KernelPlan, ...]) -> str | None:
    """What keeps a local dependence without a signal."""
    if consumer.into is not None and consumer.executor == producer.executor:
        return "worker"
    if "stream" in (consumer.engine.by, producer.engine.by):
        return None
    # In launch order.
    at, before = (next(i for i, k in enumerate(kernels) if s.executor in dict(k.roles)) for s in (consumer, producer))
    return "stream" if before < at and kernels[before].stream == kernels[at].stream else None


# --------------------------------------------------------------------------------------------------------------- notifies
def _addressee(found: Matching, s: StepPlan, op: Notify, heard: list[Match], channel: Channel) -> str:
    if op.peer is not None:
        return "peer"
    if any(found.pulls(m) for m in heard):
        return "owner" if channel.whose(s.axis) is not None else "all"
    if not crosses(s, op.param):
        return "self"
    # Whether the tile says which rank has it; all of a split tensor, and vectors of its positions, are of all ranks.
    index = indexed(s.step, op.param, op.index)
    named = any(v.names_holder and isinstance(e, (OfTile, At)) for v, e in index)
    return "owner" if named else "all"


# ------------------------------------------------------------------------------------------------------------------- flags
def channel_of(found: Matching) -> Channel:
    """The flags of a tensor, for all waits that use them and all notifies that signal them.

    Raises:
        TilelinkError: TL303 a run-time split, TL304 a guard that is no formula, TL321 flags that copy engines bind,
            TL331 two axes of ranks, TL334 instances that other ranks write and pull from, TL335 two kinds of engine.
    """
    tensor, pulled, remote = found.tensor, found.pulled, found.remote
    adds = _adds(found)
    if found.wanted:
        _check_unbound(found)
    joined = _joined(found)
    along = _along(found)
    every = (_flags_along(found, a, along) for a in range(len(tensor.axes)))
    axes = tuple(axis for axis in every if axis is not None)
    # Whether the flags of a pulled tensor tell the ranks' parts apart.
    by_part = any(c.axis is not None and tensor.axes[c.axis].over == along for c in axes)
    _check_makers(found, by_part=by_part)
    untold = any(crosses(m.producer, m.notify.param) and not [*Arrivals(found, axes).sources(m)] for m in found.told)
    # Of what is pulled the source is the rank that it is pulled from, which has made it, or else whoever writes it there.
    if (pulled and not by_part) or (untold and (pulled or adds)):
        axes = (ChannelAxis(None, "unit", ranks_along(along), 1, along, every=not pulled or by_part), *axes)
    target = Arrivals(found, axes).expected()
    # A function by panels leaves out runs, or waits for one again with its next tile: no doorbell would be heard just once.
    hearing = [not m.consumer.engine.compares and not m.consumer.by_panels for m in found.matches]
    # Doorbells are rung for what the streams wait for which hear of them, if all of them wait for the same; else all are.
    streams = {m.consumer.path: m for m in found.matches if not m.consumer.engine.compares}
    heard = set[Formula | None]() if remote else {_heard(found, axes, m) for m in streams.values()}
    rings = heard.pop() if len(heard) == 1 else None
    scope = "sys" if remote or not adds else "gpu"
    alone = all(hearing) and scope == "gpu"
    if alone and rings is not None:
        target = F.select(rings, target, 0)
    return Channel(
        tensor=tensor.name,
        axes=axes,
        target=target,
        adds=adds,
        scope=scope,
        doorbells="alone" if alone else "beside" if any(hearing) and scope == "gpu" else "",
        rings=rings,
        joined=joined,
    )


# ---------------------------------------------------------------------------------------- which positions share a flag
def _flags_along(found: Matching, a: int, along: str) -> ChannelAxis | None:
    """The flags along axis `a` of the tensor; None where one flag serves the whole axis. `along`: the axis of ranks along
    which they are signalled."""
    axis, matches = found.tensor.axes[a], found.matches
    over = axis.over or along
    if axis.own_slice:
        return None
    told = [(m.producer, *m.told(a)) for m in matches]
    for producer, entry, grid in told:
        # A single position is that of a walk over a whole axis; one that is worked out does not say how often it is named.
        walks = (op.var for op in walk(producer.step.program.body) if isinstance(op, Tiles) and not op.limited)
        if grid is None and not (isinstance(entry, At) and entry.expr.text in walks):
            return None
    grids = [grid for _, _, grid in told if grid is not None]
    streams = [m for m in matches if not m.producer.engine.adds]
    whole = [g for g in grids if g.tile is None and g.kind == "plain"]
    # One flag does for all of an axis, unless a rank has nothing of it: a stream then sets none, and nobody is to wait for one.
    set_ = streams and axis.over is not None
    if whole and not (set_ and any(F.evaluate(g.count, found.least) == 0 for g in whole)):
        return None
    by_table = any(g.kind == "table" for g in grids)
    # A copy engine sets a flag behind each tile, and how many tiles an owner map gives to a rank is no formula.
    mapped = any(owned(m.producer, g) is not None for m in matches for g in grids)
    if not all(m.by_tile(a) for m in matches) and (by_table or not (streams or mapped)):
        return None
    away = found.pulled and axis.over == along
    singly = axis.unit and all(g.kind in ("unit", "own", "mine") for g in grids)
    if singly and (axis.split is None or away):
        return ChannelAxis(a, "unit", axis.size, 1, over)
    if by_table or not grids:
        return None  # the last of all tiles of a run-time split notifies
    span = _span(found, a, grids)
    if axis.over is not None:
        # The flags of pulled parts lie with every waiter; those of pushed parts with the part's holder.
        return ChannelAxis(a, "cut" if away else "part", axis.size, span, over)
    if found.pulled and found.waiting_axis == a and all(isinstance(entry, OfTile) for _, entry, _ in told):
        return ChannelAxis(a, "part", axis.size, span, over)
    # A copy engine's tiles are the flags, and end where they end.
    moved = [g for m in streams if (g := m.told(a)[1]) is not None]
    taken = [g for m in matches for g in m.taken(a)]
    ends = [g for g in moved or [*grids, *taken] if g.kind in ("cut", "mine")]
    if len({g.over for g in ends}) > 1:
        return None  # parts of two axes of ranks: one flag serves them all
    return ChannelAxis(a, "cut" if ends else "plain", axis.size, span, ends[0].over if ends else over)


def _span(found: Matching, a: int, grids: list[GridAxis]) -> int | None:
    """Elements per flag; None: the whole part.

    A copy engine sets one flag per copy, and before a copy waits for one doorbell: its own tiles are the flags, whatever
    the tiles of those who make or read them. Otherwise a flag is the producers' tile, or what the schedule asks for.
    """
    writing = {g.tile for m in found.matches if not m.producer.engine.adds and (g := m.told(a)[1]) is not None}
    hearing = {g.tile for m in found.matches if not m.consumer.engine.compares for g in m.taken(a)}
    for bound in (writing, hearing if not found.remote else set[int | None]()):
        if len(bound) > 1:
            streams = {s.path: s for m in found.matches for s in (m.producer, m.consumer) if s.engine.by == "stream"}
            raise TilelinkError(
                "TL321",
                f"copy engines move tiles of `{found.tensor.name}` in different sizes",
                loc=next(iter(streams.values())).step.loc,
                why="each of their tiles has a flag of its own, and these flags would overlap",
                hint="give them one tile size",
                notes=tuple(Note(f"`{path}`", s.step.loc) for path, s in streams.items()),
            )
        if bound:
            return bound.pop()
    tiles = {g.tile for g in grids} | hearing | {found.wanted}
    return None if None in tiles else max(t for t in tiles if t is not None)


# ------------------------------------------------------------------------------------------------------------ doorbells
def _heard(found: Matching, axes: tuple[ChannelAxis, ...], m: Match) -> Formula | None:
    """The flags that a stream waits for: none on ranks where it has no tiles along another axis, and of other ranks' parts alone,
    if it moves by parts and leaves its own out."""
    s, named = m.consumer, [m.waited(c.axis) for c in axes if c.axis is not None]
    others = [g for g in s.grid if g not in named and g.kind != "table"]
    counts = [g.count for g in others if g.size not in [made.size for made in m.producer.grid]]
    tests = [F.binary("!=", n, 0) for n in counts if F.evaluate(n, found.least) == 0]
    if s.skip_own:
        parts = {v.axis for v, w in s.step.moved_axes if w.over == s.axis}
        ends = [k for k, c in enumerate(axes) if c.kind == "cut" and c.axis in parts and c.over == s.axis]
        tests += [F.binary("!=", Sym(f"c{k}") // axes[k].per, axes[k].rank) for k in ends[:1]]
    return functools.reduce(lambda a, b: F.binary("and", a, b), tests) if tests else None


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
                    if m.consumer.step.moved_to in found.plan.wiring.results
                    else ""
                ),
                notes=(Note(f"`{m.producer.path}`", m.producer.step.loc),),
            )


def _check_unbound(found: Matching) -> None:
    """Where a copy engine signals a flag, or hears of it by a doorbell, its own tiles say how long flags are; and where
    an owner map gives tiles out."""
    for m in found.matches:
        s = m.producer
        if not s.engine.adds:
            does = "a copy engine sets one flag behind each copy"
        elif not m.consumer.engine.compares and not found.remote:
            s, does = m.consumer, "a copy engine waits for one doorbell before each copy"
        elif found.tensor.owned is not None or any(owned(s, g) is not None for g in s.grid):
            does = "an owner map says of each tile which rank has it"
        else:
            continue
        raise TilelinkError(
            "TL321",
            f"the schedule gives flags to `{found.tensor.name}`, whose flags are the tiles of `{s.path}`",
            loc=s.step.loc,
            why=f"{does}, so each of its tiles has a flag of its own",
            hint=f"leave `{found.tensor.name}` out of `channels`; the tile of `{s.path}` sets how long its flags are",
        )


def _joined(found: Matching) -> bool:
    """Whether the notifies are of tiles of a run-time split, which are counted on the rank that makes them."""
    told, name = found.told, found.tensor.name
    if not any(g.kind == "table" for m in told for g in m.producer.grid):
        return False
    streams = [s.path for m in found.matches for s in (m.producer, m.consumer) if s.engine.by == "stream"]
    reasons = (
        (found.remote, "they are counted on the rank that makes them, and other ranks write or read this tensor"),
        (streams, f"a copy engine cannot count them (`{', '.join(streams[:1])}`)"),
        (len(told) > 1, "they are counted by one notify, and there are several"),
        (told[0].producer.into is not None, f"`{told[0].producer.path}` runs inside another step"),
        (found.wanted > 0, "all of them share a flag, whatever `channels` says"),
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
    return True
