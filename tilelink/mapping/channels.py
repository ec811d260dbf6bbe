"""The words of a tensor (f_C): which positions share one, how often each is raised in a call, and by whom (G7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import GridAxis, here, holder
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, Gather, Notify, OfTile, Wait, Whole
from tilelink.ir.schedule import Schedule
from tilelink.ir.shape import rank_along, ranks_along
from tilelink.ir.wiring import TensorDecl, Wiring
from tilelink.mapping.crossing import crosses, reads_remote
from tilelink.mapping.guards import notify_guard
from tilelink.mapping.libraries import RUN, tiled
from tilelink.mapping.runs import axis_of
from tilelink.mapping.views import entries


@dataclass(frozen=True, slots=True)
class Use:
    """A wait that words serve, with one of the notifies that raise them."""

    consumer: StepPlan
    wait: Wait
    producer: StepPlan
    notify: Notify


def channel(wiring: Wiring, schedule: Schedule, name: str, uses: list[Use]) -> Channel:
    """The words of tensor `name`, for all waits that use them and all notifies that raise them.

    Raises:
        TilelinkError: TL303 a run-time split, TL304 a guard that is no formula, TL321 words that copy engines bind.
    """
    tensor = wiring.tensor(name)
    told = _by_notify(uses)
    writers = "stream" if any(u.producer.engine == "stream" for u in told) else "workers"
    pulled = any(reads_remote(u.consumer, u.wait.param, tensor) for u in uses)
    remote = pulled or any(crosses(u.producer, u.notify.param) for u in told)
    _check_asked(schedule, tensor, uses, remote)
    joined = _joined(schedule, tensor, told, uses, remote)
    axes: list[ChannelAxis] = []
    axis = _along(tensor, uses, pulled=pulled)
    if pulled and not tensor.split_over(axis):
        axes.append(ChannelAxis(None, "unit", ranks_along(axis), 1, axis))
    for a, _ in enumerate(tensor.axes):
        found = _axis(tensor, a, uses, schedule, along=axis, pulled=pulled, remote=remote)
        if found is not None:
            axes.append(found)
    if (
        remote
        and writers == "workers"
        and not pulled
        and any(_source(wiring, axes, u.producer, u.notify, tensor) is None for u in told)
    ):
        axes.insert(0, ChannelAxis(None, "unit", ranks_along(axis), 1, axis, every=True))
    guard, target = _raised(wiring, axes, told, tensor)
    # A function by runs leaves out runs, or waits for one again with its next tile: no bell would be heard just once.
    hearing = [u.consumer.engine == "stream" and not u.consumer.by_runs for u in uses]
    rings = None if remote else _rings(wiring, axes, uses)
    counted = all(hearing) and writers == "workers" and joined is None and not remote
    if counted and rings is not None:
        guard = rings if guard is None else F.binary("and", guard, rings)
    return Channel(
        name=name,
        tensor=name,
        axes=tuple(axes),
        target=target,
        guard=guard,
        writers=writers,
        scope="sys" if remote or writers == "stream" else "gpu",
        bells=any(hearing),
        rings=rings,
        counted=counted,
        joined=joined,
    )


def _rings(wiring: Wiring, axes: list[ChannelAxis], uses: list[Use]) -> Formula | None:
    """Where all that streams take of the tensor goes by its part, and what stays is left out: the words of what goes."""
    streams = list({u.consumer.path: u.consumer for u in uses if u.consumer.engine == "stream"}.values())
    found: set[Formula | None] = set()
    for s in streams:
        movement = s.step.program.movement
        if movement is None or not (s.skip_own and s.push):
            return None
        source, target = s.step.binding(movement.source), s.step.binding(movement.destination)
        parts = {
            v.axis
            for v, w in zip(source.view, target.view, strict=True)
            if w.axis is not None and wiring.tensor(target.tensor).axes[w.axis].over == s.axis
        }
        leaving = (
            F.binary("!=", Sym(f"c{k}") // c.per, c.rank)
            for k, c in enumerate(axes)
            if c.kind == "cut" and c.axis in parts and c.over == s.axis
        )
        found.add(next(leaving, None))
    return found.pop() if len(found) == 1 else None


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


def _by_notify(uses: list[Use]) -> list[Use]:
    """One use per notify."""
    found: list[Use] = []
    for u in uses:
        if not any(f.producer is u.producer and f.notify == u.notify for f in found):
            found.append(u)
    return found


def _check_asked(schedule: Schedule, tensor: TensorDecl, uses: list[Use], remote: bool) -> None:
    """Where a copy engine raises a word, or hears of it by a bell, its own tiles say how long words are."""
    if tensor.name not in dict(schedule.channels):
        return
    for s, does in _bound_by(uses, remote):
        raise TilelinkError(
            "TL321",
            f"the schedule gives words to `{tensor.name}`, whose words are the tiles that `{s.path}` moves",
            loc=s.step.loc,
            why=f"a copy engine {does}, so each of its tiles has a word of its own",
            hint=f"leave `{tensor.name}` out of `channels`; the tile of `{s.path}` sets how long its words are",
        )


def _bound_by(uses: list[Use], remote: bool) -> Iterator[tuple[StepPlan, str]]:
    for u in uses:
        if u.producer.engine == "stream":
            yield u.producer, "sets one word behind each copy"
        elif u.consumer.engine == "stream" and not remote:
            yield u.consumer, "waits for one bell before each copy"


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


# ------------------------------------------------------------------------------------------------------------------ axes
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


def _axis(
    tensor: TensorDecl, a: int, uses: list[Use], schedule: Schedule, *, along: str, pulled: bool, remote: bool
) -> ChannelAxis | None:
    """The words along one axis of the tensor; None where one word serves the whole axis. `along`: the axis of ranks along
    which they are raised."""
    axis = tensor.axes[a]
    over = axis.over or along
    if axis.own_slice:
        return None
    grids: list[GridAxis] = []
    for u in uses:
        entry, grid = notify_entry(u.producer, u.notify, tensor, a)
        if grid is None and not isinstance(entry, At):
            return None
        if grid is not None:
            grids.append(grid)
    if any(g.tile is None and g.kind == "plain" for g in grids):
        return None
    if not all(_waits_by_tile(u, a) for u in uses) and not _copied_in_tiles(uses, grids):
        return None
    away = pulled and axis.over == along
    if axis.unit and (axis.split is None or away):
        return ChannelAxis(a, "unit", axis.size, 1, over)
    if not grids:
        return None
    if any(g.kind == "table" for g in grids):
        return None  # the last of all these tiles notifies
    span = _span(tensor, a, grids, uses, schedule, remote=remote)
    if axis.over is not None:
        # The words of pulled parts lie with every waiter; those of pushed parts with the part's holder.
        return ChannelAxis(a, "cut" if away else "part", axis.size, span, over)
    if pulled and any(g.kind == "mine" for u in uses for g in u.consumer.grid):
        return ChannelAxis(a, "part", axis.size, span, over)
    ends = [g for g in grids if g.kind in ("cut", "mine")] + [g for u in uses if (g := _consumer_cut(u, a)) is not None]
    if len({g.over for g in ends}) > 1:
        return None  # parts of two axes of ranks: one word serves them all
    return ChannelAxis(a, "cut" if ends else "plain", axis.size, span, ends[0].over if ends else over)


def _copied_in_tiles(uses: list[Use], grids: list[GridAxis]) -> bool:
    """Whether a copy engine sets words along an axis that somebody waits for as a whole."""
    return any(u.producer.engine == "stream" for u in uses) and all(g.kind != "table" for g in grids)


def _waits_by_tile(use: Use, a: int) -> bool:
    step = use.consumer.step
    binding = step.binding(use.wait.param)
    if step.program.movement is not None or use.consumer.library is not None:
        found = _waited(use, a)
        if not isinstance(found, GridAxis):
            return found is not None
        # A library function that takes all of an axis waits for each word that a stream sets there.
        one_by_one = use.consumer.library is not None and use.producer.engine == "stream"
        return found.tile is not None or found.kind in ("cut", "mine") or one_by_one
    for v, e in zip(binding.view, entries(step, use.wait.param, use.wait.index), strict=True):
        if v.axis == a:
            return isinstance(e, (OfTile, At, Gather))
    return False


def _waited(use: Use, a: int) -> GridAxis | At | None:
    """The partition of the consumer's domain, or of its runs, that its wait names on axis `a`, or a position; None: it waits
    for all."""
    s = use.consumer
    view = s.step.binding(use.wait.param).view
    if s.step.program.movement is not None:
        return next((s.grid[k] for k, v in enumerate(view) if v.axis == a), None)
    names = tiled(s.step, use.wait.param, use.wait.index, runs=s.by_runs)
    for v, e, name in zip(view, entries(s.step, use.wait.param, use.wait.index), names, strict=True):
        if v.axis == a:
            return e if isinstance(e, At) else axis_of(s) if name == RUN else _domain_axis(s, e)
    return None


def _consumer_cut(use: Use, a: int) -> GridAxis | None:
    """The partition by which the consumer waits along an axis, if its tiles end where parts do."""
    if use.consumer.step.program.movement is None and use.consumer.library is None:
        return None
    found = _waited(use, a)
    return found if isinstance(found, GridAxis) and found.kind in ("cut", "mine") else None


def _span(
    tensor: TensorDecl, a: int, grids: list[GridAxis], uses: list[Use], schedule: Schedule, *, remote: bool
) -> int | None:
    """Elements per word; None: the whole part.

    A copy engine sets one word per copy, and before a copy waits for one bell: its own tiles are the words, whatever
    the tiles of those who make or read them. Otherwise a word is the producers' tile, or what the schedule asks for.
    """
    writing = {g.tile for u in uses if u.producer.engine == "stream" for g in _named(u, tensor, a)}
    hearing = {_walked(u, a) for u in uses if u.consumer.engine == "stream"}
    for bound in (writing, hearing if not remote else set[int | None]()):
        if len(bound) > 1:
            raise _at_odds(tensor, uses)
        if bound:
            return bound.pop()
    tiles = {g.tile for g in grids} | hearing
    wanted = dict(schedule.channels).get(tensor.name)
    if wanted is not None:
        tiles.add(wanted)
    return None if None in tiles else max(t for t in tiles if t is not None)


def _named(u: Use, tensor: TensorDecl, a: int) -> list[GridAxis]:
    grid = notify_entry(u.producer, u.notify, tensor, a)[1]
    return [grid] if grid is not None else []


def _walked(u: Use, a: int) -> int | None:
    """The tile of a stream along axis `a` of what it waits for."""
    found = _waited(u, a)
    return found.tile if isinstance(found, GridAxis) else None


def _at_odds(tensor: TensorDecl, uses: list[Use]) -> TilelinkError:
    streams = {s.path: s for u in uses for s in (u.producer, u.consumer) if s.engine == "stream"}
    first = next(iter(streams.values()))
    return TilelinkError(
        "TL321",
        f"copy engines move tiles of `{tensor.name}` in different sizes",
        loc=first.step.loc,
        why="each of their tiles has a word of its own, and these words would overlap",
        hint="give them one tile size",
        notes=tuple(Note(f"`{path}`", s.step.loc) for path, s in streams.items()),
    )


# --------------------------------------------------------------------------------------------------------------- counting
def _source(
    wiring: Wiring, axes: list[ChannelAxis], producer: StepPlan, notify: Notify, tensor: TensorDecl
) -> Formula | None:
    """The rank that raises word (`c0`, …) of a rank; None where the word does not say."""
    if notify.peer is not None and notify.peer.ring is not None:
        return _before(notify.peer.ring[1], producer)
    for k, c in enumerate(axes):
        if c.axis is None:
            return Sym(f"c{k}")
        _, grid = notify_entry(producer, notify, tensor, c.axis)
        if grid is not None and grid.kind == "own":
            return Sym(f"c{k}")
        if c.kind == "unit" and grid is not None and grid.kind == "mine":
            return Sym(f"c{k}") // grid.part
        if c.kind == "cut" and grid is not None and (_in_own_part(grid, c) or _kept(producer, notify, tensor, c)):
            return Sym(f"c{k}") // c.per
        if producer.own_rows and grid is not None and (found := _owned_domain(wiring, producer, grid)) is not None:
            return holder(*found, c.interval(Sym(f"c{k}"))[0])
    for a, axis in enumerate(tensor.axes):
        entry, grid = notify_entry(producer, notify, tensor, a)
        if axis.own_slice and grid is not None and grid.kind == "own":
            return _before(entry.ring[1] if isinstance(entry, At) and entry.ring is not None else 0, producer)
    return None


def raising(plan: Plan, channel: Channel) -> tuple[Formula | None, ...]:
    """The rank that raises word (`c0`, …) of a rank, for each of the channel's notifies; None: it cannot be told."""
    found: list[Formula | None] = []
    tensor = plan.wiring.tensor(channel.tensor)
    for signal in plan.signals:
        if signal.channel == channel.name and isinstance(signal.op, Notify):
            producer = plan.step(signal.path)
            source = _source(plan.wiring, list(channel.axes), producer, signal.op, tensor)
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


def _before(shift: int, producer: StepPlan) -> Formula:
    """What goes to rank s + shift comes, seen from there, from rank - shift."""
    rank, ranks = producer.rank, producer.ranks
    if shift == 0:
        return rank
    return (rank + ranks - shift) % ranks if shift > 0 else (rank + (-shift)) % ranks


def _in_own_part(grid: GridAxis, c: ChannelAxis) -> bool:
    """Whether the tiles are those of the rank's part: in global positions, or in a program that sees its part only."""
    return grid.kind == "mine" or (grid.kind == "plain" and c.kind in ("cut", "part") and grid.size != c.size)


def _kept(producer: StepPlan, notify: Notify, tensor: TensorDecl, c: ChannelAxis) -> bool:
    """Whether a program that walks all parts of a tensor completes those alone that its rank holds."""
    return c.axis is not None and tensor.axes[c.axis].over == producer.axis and not crosses(producer, notify.param)


def _raised(
    wiring: Wiring, axes: list[ChannelAxis], told: list[Use], tensor: TensorDecl
) -> tuple[Formula | None, Formula]:
    """(guard, target): notifies per call of word (`c0`, …), over all programs and source ranks."""
    found: list[tuple[Formula | None, Formula]] = []
    for use in told:
        source = _source(wiring, axes, use.producer, use.notify, tensor)
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
        named.add(next(i for i, g in enumerate(use.producer.grid) if g is grid))

    for k, c in enumerate(axes):
        if c.axis is None:
            continue
        _, grid = notify_entry(use.producer, use.notify, tensor, c.axis)
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
    """Axes of the producer's grid that choose who is told and no word, with the tiles that each receiver is told of."""
    if not crosses(use.producer, use.notify.param) or use.notify.peer is not None:
        return
    for a, axis in enumerate(tensor.axes):
        _, grid = notify_entry(use.producer, use.notify, tensor, a)
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
    if grid.kind in ("unit", "own"):
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
