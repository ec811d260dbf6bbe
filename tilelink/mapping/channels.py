"""The words of a tensor (f_C): which positions share one, how often each is raised in a call, and by whom."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.plan import StepPlan
from tilelink.ir.schedule import Schedule
from tilelink.ir.shape import ranks_along
from tilelink.ir.wiring import TensorDecl, Wiring
from tilelink.mapping.remote import crosses, reads_remote
from tilelink.mapping.arrivals import raised, sources_of
from tilelink.mapping.matching import Use, owned_domain
from tilelink.mapping.granularity import waited, words_along


def channel(wiring: Wiring, schedule: Schedule, name: str, uses: list[Use], least: Mapping[str, F.Number]) -> Channel:
    """The words of tensor `name`, for all waits that use them and all notifies that raise them.

    Args:
        least: sizes, on the rank that has least.

    Raises:
        TilelinkError: TL303 a run-time split, TL304 a guard that is no formula, TL321 words that copy engines bind,
            TL331 two axes of ranks, TL334 instances that other ranks write and pull from, TL335 two kinds of engine.
    """
    tensor = wiring.tensor(name)
    told = _by_notify(uses)
    writers = _writers(tensor, told)
    pulled = any(reads_remote(u.consumer, u.wait.param, tensor) for u in uses)
    remote = pulled or any(crosses(u.producer, u.notify.param) for u in told)
    _check_asked(wiring, schedule, tensor, uses, remote)
    joined = _joined(schedule, tensor, told, uses, remote)
    axes: list[ChannelAxis] = []
    axis = _along(tensor, uses, pulled=pulled)
    for a, _ in enumerate(tensor.axes):
        found = words_along(wiring, tensor, a, uses, schedule, along=axis, pulled=pulled, remote=remote, least=least)
        if found is not None:
            axes.append(found)
    by_part = _says_whose(tensor, axes, axis)
    if pulled:
        _check_makers(wiring, tensor, uses, by_part=by_part)
    sent = [u for u in told if crosses(u.producer, u.notify.param)]
    untold = any(not sources_of(wiring, axes, u.producer, u.notify, tensor, pulled=pulled) for u in sent)
    # Of what is pulled the source is the rank that it is pulled from, which has made it, or else whoever writes it there.
    if (pulled and not by_part) or (untold and (pulled or writers == "workers")):
        axes.insert(0, ChannelAxis(None, "unit", ranks_along(axis), 1, axis, every=not pulled or by_part))
    guard, target = raised(wiring, axes, told, tensor, pulled=pulled)
    # A function by runs leaves out runs, or waits for one again with its next tile: no bell would be heard just once.
    hearing = [u.consumer.engine == "stream" and not u.consumer.by_runs for u in uses]
    rings = None if remote else _rings(wiring, axes, uses, least)
    scope = "sys" if remote or writers == "stream" else "gpu"
    counted = all(hearing) and scope == "gpu" and joined is None
    if counted and rings is not None:
        guard = rings if guard is None else F.binary("and", guard, rings)
    return Channel(
        name=name,
        tensor=name,
        axes=tuple(axes),
        target=target,
        guard=guard,
        writers=writers,
        scope=scope,
        bells=any(hearing) and scope == "gpu",
        rings=rings,
        counted=counted,
        joined=joined,
    )


def _says_whose(tensor: TensorDecl, axes: list[ChannelAxis], along: str) -> bool:
    """Whether the words of a pulled tensor tell the ranks' parts apart."""
    return any(c.axis is not None and tensor.axes[c.axis].over == along for c in axes)


def _rings(wiring: Wiring, axes: list[ChannelAxis], uses: list[Use], least: Mapping[str, F.Number]) -> Formula | None:
    """Which words ring a bell: those that the streams wait for which hear of them, if all of them wait for the same. None: all
    of them."""
    streams = {u.consumer.path: u for u in uses if u.consumer.engine == "stream"}
    found = {_heard(wiring, axes, u, least) for u in streams.values()}
    return found.pop() if len(found) == 1 else None


def _heard(wiring: Wiring, axes: list[ChannelAxis], u: Use, least: Mapping[str, F.Number]) -> Formula | None:
    """The words that a stream waits for: none on ranks where it has no tiles along another axis, and of other ranks' parts alone,
    if it moves by parts and leaves its own out."""
    s, named = u.consumer, [waited(u, c.axis) for c in axes if c.axis is not None]
    others = [g for g in s.grid if g not in named and g.kind != "table"]
    counts = [g.count for g in others if g.size not in [made.size for made in u.producer.grid]]
    tiles = [F.binary("!=", n, 0) for n in counts if F.evaluate(n, least) == 0]
    found = [*tiles, *_leaving(wiring, axes, s)]
    return functools.reduce(lambda a, b: F.binary("and", a, b), found) if found else None


def _leaving(wiring: Wiring, axes: list[ChannelAxis], s: StepPlan) -> Iterator[Formula]:
    movement = s.step.program.movement
    if movement is None or not (s.skip_own and s.push):
        return
    source, target = s.step.binding(movement.source), s.step.binding(movement.destination)
    parts = {
        v.axis
        for v, w in zip(source.view, target.view, strict=True)
        if w.axis is not None and wiring.tensor(target.tensor).axes[w.axis].over == s.axis
    }
    for k, c in enumerate(axes):
        if c.kind == "cut" and c.axis in parts and c.over == s.axis:
            yield F.binary("!=", Sym(f"c{k}") // c.per, c.rank)
            return


def _along(tensor: TensorDecl, uses: list[Use], *, pulled: bool) -> str:
    """The axis of ranks along which the signals of a tensor go, if they leave a rank.

    Raises:
        TilelinkError: TL331, along two.
    """
    makers = list(dict.fromkeys(u.producer.axis for u in uses if crosses(u.producer, u.notify.param)))
    takers = [u.consumer.axis for u in uses if reads_remote(u.consumer, u.wait.param, tensor)] if pulled else []
    found = list(dict.fromkeys([*makers, *takers, *(u.producer.axis for u in uses if takers)]))
    if len(found) > 1:
        use = next((u for u in uses if u.consumer.axis != u.producer.axis), uses[0])
        raise TilelinkError(
            "TL331",
            f"`{tensor.name}` would be signalled along {' and '.join(found)}",
            loc=use.consumer.step.loc,
            why=f"`{use.producer.path}` makes it along {use.producer.axis}, `{use.consumer.path}` takes it along "
            f"{use.consumer.axis}: who makes tiles on a rank does not know who pulls them from there along another axis",
            hint=f"let `{use.consumer.path}` push (push=True): it then waits on its own rank for what it sends on",
            notes=(Note(f"`{use.producer.path}`", use.producer.step.loc),),
        )
    return found[0] if found else uses[0].producer.axis


def _writers(tensor: TensorDecl, told: list[Use]) -> str:
    streams = [u for u in told if u.producer.engine == "stream"]
    workers = [u for u in told if u.producer.engine != "stream"]
    if streams and workers:
        stream, worker = streams[0].producer, workers[0]
        raise TilelinkError(
            "TL335",
            f"`{tensor.name}` would be announced by the stream of `{stream.path}` and by the workers of `{worker.producer.path}`",
            loc=worker.notify.loc,
            why="workers count in a word, and a stream sets it to the number of the call: it cannot be both",
            hint=f"place `{stream.path}` on SMs too, or let only one of the two programs notify",
            notes=(Note(f"`{stream.path}`", stream.step.loc),),
        )
    return "stream" if streams else "workers"


def _check_makers(wiring: Wiring, tensor: TensorDecl, uses: list[Use], *, by_part: bool) -> None:
    """What is pulled is made by the rank that it is pulled from, or else everyone hears whose part of the tensor it is."""
    for u in uses:
        sent = crosses(u.producer, u.notify.param) and not (by_part and u.notify.peer is None)
        if sent and reads_remote(u.consumer, u.wait.param, tensor):
            raise TilelinkError(
                "TL334",
                f"`{u.consumer.path}` would pull `{tensor.name}` from instances that `{u.producer.path}` writes on other ranks",
                loc=u.consumer.step.loc,
                why=f"who pushes a tile tells the rank that gets it, and not those where `{u.consumer.path}` pulls it from there",
                hint=f"let `{u.consumer.path}` push (push=True): it then waits on its own rank for what it sends on"
                + (", and another program stores the result" if u.consumer.step.moved_to in wiring.results else ""),
                notes=(Note(f"`{u.producer.path}`", u.producer.step.loc),),
            )


def _by_notify(uses: list[Use]) -> list[Use]:
    """One use per notify."""
    found: list[Use] = []
    for u in uses:
        if not any(f.producer is u.producer and f.notify == u.notify for f in found):
            found.append(u)
    return found


def _check_asked(wiring: Wiring, schedule: Schedule, tensor: TensorDecl, uses: list[Use], remote: bool) -> None:
    """Where a copy engine raises a word, or hears of it by a bell, its own tiles say how long words are; and where an owner map
    gives tiles out."""
    if tensor.name not in dict(schedule.channels):
        return
    for s, does in _bound_by(wiring, tensor, uses, remote):
        raise TilelinkError(
            "TL321",
            f"the schedule gives words to `{tensor.name}`, whose words are the tiles of `{s.path}`",
            loc=s.step.loc,
            why=f"{does}, so each of its tiles has a word of its own",
            hint=f"leave `{tensor.name}` out of `channels`; the tile of `{s.path}` sets how long its words are",
        )


def _bound_by(wiring: Wiring, tensor: TensorDecl, uses: list[Use], remote: bool) -> Iterator[tuple[StepPlan, str]]:
    for u in uses:
        mapped = any(owned_domain(wiring, u.producer, g) is not None for g in u.producer.grid)
        if u.producer.engine == "stream":
            yield u.producer, "a copy engine sets one word behind each copy"
        elif u.consumer.engine == "stream" and not remote:
            yield u.consumer, "a copy engine waits for one bell before each copy"
        elif mapped or tensor.owned is not None:
            yield u.producer, "an owner map says of each tile which rank has it"


def _joined(schedule: Schedule, tensor: TensorDecl, told: list[Use], uses: list[Use], remote: bool) -> str | None:
    """The table whose split the notifies are tiles of; its tiles are counted on the rank that makes them."""
    tables = {g.table for u in told for g in u.producer.grid if g.kind == "table"}
    if not tables:
        return None
    streams = [s.path for u in uses for s in (u.producer, u.consumer) if s.engine == "stream"]
    why = next(
        (
            text
            for wrong, text in (
                (remote, "they are counted on the rank that makes them, and other ranks write or read this tensor"),
                (streams, f"a copy engine cannot count them (`{', '.join(streams[:1])}`)"),
                (len(told) > 1, "they are counted by one notify, and there are several"),
                (told[0].producer.engine != "workers", f"`{told[0].producer.path}` runs inside another step"),
                (tensor.name in dict(schedule.channels), "all of them share a word, whatever `channels` says"),
            )
            if wrong
        ),
        None,
    )
    if why is not None:
        raise TilelinkError(
            "TL303",
            f"`{tensor.name}` is split at run time and cannot be signalled so",
            loc=told[0].notify.loc,
            why=f"the number of tiles of a run-time split is known on the device only: {why}",
            hint="place the consumer in a later kernel of the same stream",
        )
    return tables.pop()
