"""Which positions of a tensor share a word, axis by axis."""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import ChannelAxis
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import At, Gather, OfTile, Tiles, walk
from tilelink.ir.schedule import Schedule
from tilelink.ir.wiring import TensorDecl, Wiring, entry_on, indexed
from tilelink.mapping.libraries import RUN, axis_of, tiled
from tilelink.mapping.matching import Use, domain_axis, notify_entry, owned_domain, waiting_axis


def words_along(
    wiring: Wiring,
    tensor: TensorDecl,
    a: int,
    uses: list[Use],
    schedule: Schedule,
    *,
    along: str,
    pulled: bool,
    remote: bool,
    least: Mapping[str, F.Number],
) -> ChannelAxis | None:
    """The words along one axis of the tensor; None where one word serves the whole axis. `along`: the axis of ranks along
    which they are raised. `least`: sizes, on the rank that has least."""
    axis = tensor.axes[a]
    over = axis.over or along
    if axis.own_slice:
        return None
    found = [(u.producer, *notify_entry(u.producer, u.notify, a)) for u in uses]
    if any(grid is None and not _each_once(producer, entry) for producer, entry, grid in found):
        return None
    grids = [grid for _, _, grid in found if grid is not None]
    whole = [g for g in grids if g.tile is None and g.kind == "plain"]
    # One word does for all of an axis, unless a rank has nothing of it: a stream then sets none, and nobody is to wait for one.
    set_ = any(u.producer.engine == "stream" for u in uses) and axis.over is not None
    if whole and not (set_ and any(F.evaluate(g.count, least) == 0 for g in whole)):
        return None
    if not all(_waits_by_tile(u, a) for u in uses) and not _told_by_tile(wiring, uses, grids):
        return None
    away = pulled and axis.over == along
    singly = axis.unit and all(g.kind in ("unit", "own", "mine") for g in grids)
    if singly and (axis.split is None or away):
        return ChannelAxis(a, "unit", axis.size, 1, over)
    if any(g.kind == "table" for g in grids):
        return None  # the last of all these tiles notifies
    if not grids:
        return None
    span = _span(tensor, a, grids, uses, schedule, remote=remote)
    if axis.over is not None:
        # The words of pulled parts lie with every waiter; those of pushed parts with the part's holder.
        return ChannelAxis(a, "cut" if away else "part", axis.size, span, over)
    if pulled and waiting_axis(tensor, uses) == a and all(isinstance(entry, OfTile) for _, entry, _ in found):
        return ChannelAxis(a, "part", axis.size, span, over)
    # A copy engine's tiles are the words, and end where they end.
    moved = [g for u in uses if u.producer.engine == "stream" for g in _named(u, a)]
    taken = [g for u in uses if (g := _consumer_cut(u, a)) is not None]
    ends = [g for g in moved or [*grids, *taken] if g.kind in ("cut", "mine")]
    if len({g.over for g in ends}) > 1:
        return None  # parts of two axes of ranks: one word serves them all
    return ChannelAxis(a, "cut" if ends else "plain", axis.size, span, ends[0].over if ends else over)


def _each_once(s: StepPlan, entry: object) -> bool:
    """Whether a single position is that of a walk over a whole axis; one that is worked out does not say how often it is
    named."""
    walks = (op for op in walk(s.step.program.body) if isinstance(op, Tiles) and not op.limited)
    return isinstance(entry, At) and any(op.var == entry.expr.text for op in walks)


def _told_by_tile(wiring: Wiring, uses: list[Use], grids: list[GridAxis]) -> bool:
    """Whether there are words along an axis that somebody waits for as a whole: a copy engine sets one behind each tile, and how
    many tiles an owner map gives to a rank is no formula."""
    streams = any(u.producer.engine == "stream" for u in uses)
    mapped = any(owned_domain(wiring, u.producer, g) is not None for u in uses for g in grids)
    return (streams or mapped) and all(g.kind != "table" for g in grids)


def _waits_by_tile(use: Use, a: int) -> bool:
    step = use.consumer.step
    if step.program.movement is not None or use.consumer.library is not None:
        found = waited(use, a)
        if not isinstance(found, GridAxis):
            return found is not None
        # A library function that takes all of an axis waits for each word that a stream sets there.
        one_by_one = use.consumer.library is not None and use.producer.engine == "stream"
        return found.tile is not None or found.kind in ("cut", "mine") or one_by_one
    return isinstance(entry_on(step, use.wait.param, use.wait.index, a), (OfTile, At, Gather))


def waited(use: Use, a: int) -> GridAxis | At | None:
    """The partition of the consumer's domain, or of its runs, that its wait names on axis `a`, or a position; None: it waits
    for all."""
    s = use.consumer
    view = s.step.binding(use.wait.param).view
    if s.step.program.movement is not None:
        return next((s.grid[k] for k, v in enumerate(view) if v.axis == a), None)
    names = tiled(s.step, use.wait.param, use.wait.index, runs=s.by_runs)
    for (v, e), name in zip(indexed(s.step, use.wait.param, use.wait.index), names, strict=True):
        if v.axis == a:
            return e if isinstance(e, At) else axis_of(s) if name == RUN else domain_axis(s, e)
    return None


def _consumer_cut(use: Use, a: int) -> GridAxis | None:
    """The partition by which the consumer waits along an axis, if its tiles end where parts do."""
    if use.consumer.step.program.movement is None and use.consumer.library is None:
        return None
    found = waited(use, a)
    return found if isinstance(found, GridAxis) and found.kind in ("cut", "mine") else None


def _span(
    tensor: TensorDecl, a: int, grids: list[GridAxis], uses: list[Use], schedule: Schedule, *, remote: bool
) -> int | None:
    """Elements per word; None: the whole part.

    A copy engine sets one word per copy, and before a copy waits for one bell: its own tiles are the words, whatever
    the tiles of those who make or read them. Otherwise a word is the producers' tile, or what the schedule asks for.
    """
    writing = {g.tile for u in uses if u.producer.engine == "stream" for g in _named(u, a)}
    hearing = {g.tile for u in uses if u.consumer.engine == "stream" for g in _walked(u, a)}
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


def _named(u: Use, a: int) -> list[GridAxis]:
    grid = notify_entry(u.producer, u.notify, a)[1]
    return [grid] if grid is not None else []


def _walked(u: Use, a: int) -> list[GridAxis]:
    """The tiles of a stream along axis `a` of what it waits for; none where it waits for all."""
    found = waited(u, a)
    return [found] if isinstance(found, GridAxis) and (found.tile is not None or found.kind in ("cut", "mine")) else []


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
