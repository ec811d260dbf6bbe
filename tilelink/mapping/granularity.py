"""Which positions of a tensor share a flag, axis by axis."""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.partition import ChannelAxis, GridAxis
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import At, OfTile, Tiles, walk
from tilelink.ir.schedule import Schedule
from tilelink.mapping.signal_matching import Matching


def flags_along(
    found: Matching, a: int, schedule: Schedule, *, along: str, least: Mapping[str, F.Number]
) -> ChannelAxis | None:
    """The flags along axis `a` of the tensor; None where one flag serves the whole axis. `along`: the axis of ranks along
    which they are signalled. `least`: sizes, on the rank that has least."""
    axis, matches = found.tensor.axes[a], found.matches
    over = axis.over or along
    if axis.own_slice:
        return None
    told = [(m.producer, *m.told(a)) for m in matches]
    if any(grid is None and not _each_once(producer, entry) for producer, entry, grid in told):
        return None
    grids = [grid for _, _, grid in told if grid is not None]
    streams = [m for m in matches if not m.producer.engine.adds]
    whole = [g for g in grids if g.tile is None and g.kind == "plain"]
    # One flag does for all of an axis, unless a rank has nothing of it: a stream then sets none, and nobody is to wait for one.
    set_ = streams and axis.over is not None
    if whole and not (set_ and any(F.evaluate(g.count, least) == 0 for g in whole)):
        return None
    by_table = any(g.kind == "table" for g in grids)
    # A copy engine sets a flag behind each tile, and how many tiles an owner map gives to a rank is no formula.
    mapped = any(found.owned(m.producer, g) is not None for m in matches for g in grids)
    if not all(m.by_tile(a) for m in matches) and (by_table or not (streams or mapped)):
        return None
    away = found.pulled and axis.over == along
    singly = axis.unit and all(g.kind in ("unit", "own", "mine") for g in grids)
    if singly and (axis.split is None or away):
        return ChannelAxis(a, "unit", axis.size, 1, over)
    if by_table or not grids:
        return None  # the last of all tiles of a run-time split notifies
    span = _span(found, a, grids, schedule)
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


def _each_once(s: StepPlan, entry: object) -> bool:
    """Whether a single position is that of a walk over a whole axis; one that is worked out does not say how often it is
    named."""
    walks = (op for op in walk(s.step.program.body) if isinstance(op, Tiles) and not op.limited)
    return isinstance(entry, At) and any(op.var == entry.expr.text for op in walks)


def _span(found: Matching, a: int, grids: list[GridAxis], schedule: Schedule) -> int | None:
    """Elements per flag; None: the whole part.

    A copy engine sets one flag per copy, and before a copy waits for one doorbell: its own tiles are the flags, whatever
    the tiles of those who make or read them. Otherwise a flag is the producers' tile, or what the schedule asks for.
    """
    writing = {g.tile for m in found.matches if not m.producer.engine.adds and (g := m.told(a)[1]) is not None}
    hearing = {g.tile for m in found.matches if not m.consumer.engine.compares for g in m.taken(a)}
    for bound in (writing, hearing if not found.remote else set[int | None]()):
        if len(bound) > 1:
            raise _at_odds(found)
        if bound:
            return bound.pop()
    tiles = {g.tile for g in grids} | hearing
    wanted = dict(schedule.channels).get(found.tensor.name)
    if wanted is not None:
        tiles.add(wanted)
    return None if None in tiles else max(t for t in tiles if t is not None)


def _at_odds(found: Matching) -> TilelinkError:
    streams = {s.path: s for m in found.matches for s in (m.producer, m.consumer) if s.engine.by == "stream"}
    first = next(iter(streams.values()))
    return TilelinkError(
        "TL321",
        f"copy engines move tiles of `{found.tensor.name}` in different sizes",
        loc=first.step.loc,
        why="each of their tiles has a flag of its own, and these flags would overlap",
        hint="give them one tile size",
        notes=tuple(Note(f"`{path}`", s.step.loc) for path, s in streams.items()),
    )
