"""Who signals a flag, and how often in a call: formulas over its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import Channel, ChannelAxis, GridAxis, here
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, Holder, IndexEntry, Notify, OfTile, Tiles, Wait, tests_above, walk
from tilelink.ir.shape import RANKS, around, rank_along
from tilelink.ir.wiring import TensorAxis, indexed
from tilelink.mapping.signal_matching import Match, Matching, crosses, own_names, owned


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Of the flags of a tensor, which lie along `axes`."""

    found: Matching
    axes: tuple[ChannelAxis, ...]

    def expected(self) -> Formula:
        """Notifies per call of flag (`c0`, …), over all programs and source ranks."""
        total: Formula = F.of(0)
        for m in self.found.told:
            sources = [*dict.fromkeys(self.sources(m))]
            source = sources[0] if sources else m.producer.rank
            target = self._times(m, source)
            for other in sources[1:]:
                target = target * F.binary("==", source, other)
            guard = _notify_guard(m.producer, m.notify, source, self.axes)
            total = total + (target if guard is None else F.select(guard, target, 0))
        return total

    def _times(self, m: Match, source: Formula) -> Formula:
        """Notifies of one kind: a product of one-axis counts."""
        tensor, s, pushed = self.found.tensor, m.producer, crosses(m.producer, m.notify.param)
        total: Formula = F.of(1)
        named: list[GridAxis] = []
        for k, c in enumerate(self.axes):
            if c.axis is None:
                continue
            grid = m.told(c.axis)[1]
            if grid is not None:
                named.append(grid)
                total = total * tiles_in(grid, c, Sym(f"c{k}"))
            if pushed and c.axis == tensor.owned:
                total = total * F.binary("==", tensor.axes[c.axis].holder(c.interval(Sym(f"c{k}"))[0]), s.rank)
        local = {v.axis for v in s.step.binding(m.notify.param).view if v.local}
        for a, axis in enumerate(tensor.axes) if pushed and m.notify.peer is None else ():
            # An axis that chooses the rank to notify and no flag: how many of its tiles each rank hears of.
            grid = m.told(a)[1]
            if axis.over == s.axis and grid is not None and a not in local and all(c.axis != a for c in self.axes):
                named.append(grid)
                part = ChannelAxis(a, "part", axis.size, None, s.axis)
                total = total * (F.of(1) if axis.own_slice else tiles_in(grid, part, 0))
        for i, g in enumerate(s.grid):
            # The result of `tl.rank_of` may stand for this rank's coordinate; then it is no axis of the domain.
            if g.kind == "table" or any(g is n for n in named):
                continue
            if (mapped := owned(s, g)) is not None:
                raise _uncounted(m, mapped)
            # A fused step for own rows takes those of its host's tiles.
            own = s.into is not None and s.own_axis is not None and s.host_axes[i] == s.own_axis
            total = total * F.substitute(g.own if own else g.count, {rank_along(s.axis).name: source})
        flagged = [m.told(c.axis)[0] for c in self.axes if c.axis is not None]
        for loop in (op for op in walk(s.step.program.body) if isinstance(op, Tiles) and m.notify in walk(op.body)):
            # Once in each turn, but where each turn has a flag of its own.
            walked = [e.var if isinstance(e, OfTile) else e.expr.text for e in flagged if isinstance(e, OfTile | At)]
            if not loop.limited and loop.var not in walked:
                total = total * F.substitute(s.loop(loop).count, {rank_along(s.axis).name: source})
        return total

    def sources(self, m: Match) -> Iterator[Formula]:
        """The rank that signals flag (`c0`, …) of a rank, by everything that says so: it is signalled where all mean the same
        rank. None where the flag does not say. What goes to coordinate s + shift comes, seen from there, from the coordinate
        - shift."""
        s, notify, tensor, pulled = m.producer, m.notify, self.found.tensor, self.found.pulled
        pushed = crosses(s, notify.param)
        if notify.peer is not None and notify.peer.ring is not None:
            yield around(s.rank, -notify.peer.ring[1], s.ranks)
        elif not pulled and not pushed:
            yield s.rank
        for k, c in enumerate(self.axes):
            if c.axis is None:
                yield Sym(f"c{k}")
                return
            entry, grid = m.told(c.axis)
            if grid is None:
                continue
            # A program that walks all parts of a tensor completes those alone that its rank holds.
            kept = tensor.axes[c.axis].over == s.axis and not pushed
            if grid.kind == "own":
                yield around(Sym(f"c{k}"), -_shift(entry), s.ranks)
            elif c.kind == "unit" and grid.kind == "mine":
                yield Sym(f"c{k}") // grid.part
            elif c.kind == "cut" and (_in_own_part(grid, c) or kept):
                yield Sym(f"c{k}") // c.per
            elif (mapped := owned(s, grid)) is not None:
                yield mapped.holder(c.interval(Sym(f"c{k}"))[0])
        for a, axis in enumerate(tensor.axes) if not pulled else ():
            entry, grid = m.told(a)
            if grid is not None and axis.own_slice and grid.kind == "own":
                yield around(s.rank, -_shift(entry), s.ranks)
            if grid is not None and axis.over == s.axis and grid.kind == "mine" and grid.size == axis.size:
                yield s.rank  # its own part, which is where the tile goes


def raising(plan: Plan, channel: Channel) -> tuple[Formula, ...]:
    """The rank that signals flag (`c0`, …) of a rank, for each of the channel's notifies of which that can be told."""
    on = [(plan.step(s.path), s.op) for s in plan.signals if s.channel == channel.tensor]
    waits = [(s, op) for s, op in on if isinstance(op, Wait)]
    matches = tuple(Match(*w, s, op) for w in waits for s, op in on if isinstance(op, Notify))
    arrivals = Arrivals(Matching(plan, plan.wiring.tensor(channel.tensor), matches), channel.axes)
    return tuple(dict.fromkeys(source for m in arrivals.found.told for source in islice(arrivals.sources(m), 1)))


def _shift(entry: IndexEntry) -> int:
    """How far a position is from this rank's coordinate."""
    return entry.ring[1] if isinstance(entry, At) and entry.ring is not None else 0


def _in_own_part(grid: GridAxis, c: ChannelAxis) -> bool:
    """Whether the tiles are those of the rank's part: in global positions, or in a program that sees its part only."""
    return grid.kind == "mine" or (grid.kind == "plain" and c.kind in ("cut", "part") and grid.size != c.size)


def _uncounted(m: Match, mapped: TensorAxis) -> TilelinkError:
    path, tensor = m.producer.path, m.producer.step.binding(m.producer.domain).tensor
    return TilelinkError(
        "TL306",
        f"`{path}` notifies `{m.notify.param}` and names no tile of `{mapped.name}`, along which `{tensor}` is mapped",
        loc=m.notify.loc,
        why=f"`{m.consumer.path}` waits for as many notifies as there are tiles, and how many each rank has, the owner map "
        f"`{mapped.owner}` says tile by tile only",
        hint="name the tile that the program has made",
        notes=(Note("waited for here", m.wait.loc),),
    )


def tiles_in(grid: GridAxis, c: ChannelAxis, index: F.Like) -> Formula:
    """Producer tiles of `grid` that intersect flag `index` of a channel axis."""
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
    if aligned and c.kind == "plain":
        return F.cdiv(F.minimum(c.size - i * c.step, c.step), grid.step)
    rank, within = (i // c.per, i % c.per) if c.kind == "cut" else (c.rank, i)
    if aligned and by_parts:
        held = here(c.size, rank, c.over)
        if grid.tile is None and grid.kind == "plain":
            return F.minimum(held, 1)  # all that the rank has
        if c.span is None:
            return F.cdiv(held, grid.step)
        return F.cdiv(F.maximum(F.minimum(held - within * c.span, c.span), 0), grid.step)
    if by_parts and c.kind in ("cut", "part"):
        base = rank * c.part
        lo, hi = lo - base, hi - base
    some = F.minimum(F.maximum(hi - lo, 0), 1)
    return (F.cdiv(F.maximum(hi, lo), grid.step) - lo // grid.step) * some


# -------------------------------------------------------------------------------------------- where a notify stands under tests
def _notify_guard(s: StepPlan, op: Notify, source: Formula, axes: Sequence[ChannelAxis]) -> Formula | None:
    """Which flags (`c0`, …) of a rank are signalled at all, by the rank `source`: where the tests above the notify hold; None:
    all of them.

    Raises:
        TilelinkError: TL304, a test that is no formula.
    """
    if s.skip_own:
        return F.binary("!=", source, s.rank)
    values: dict[str, F.Like] = {**s.step.compiled, RANKS.name: s.ranks}
    values |= {g.var: source for g in s.grid if g.var is not None and g.kind == "own"}
    values |= dict.fromkeys(own_names(s), source)
    values |= _holders(s, op, axes)
    out: Formula | None = None
    for test, branch in tests_above(s.step.program.body, op):
        if test.formula is None or not F.symbols(test.formula) <= values.keys():
            raise TilelinkError(
                "TL304",
                f"a signal stands under `{test.text}`, which the plan cannot evaluate",
                loc=op.loc,
                why="the number of signals must be known without data: from constants, the number of ranks, rank coordinates and "
                "rank_of",
                hint="take the signal out of the branch",
            )
        value = F.substitute(test.formula, values)
        value = value if branch else F.binary("==", value, 0)
        out = value if out is None else F.binary("and", out, value)
    return out


def _holders(s: StepPlan, notify: Notify, axes: Sequence[ChannelAxis]) -> dict[str, F.Like]:
    """Name of each `rank_of` result -> the rank, by the part that the tile lies in whose flag it is."""
    of: dict[str, F.Like] = {}
    for k, c in enumerate(axes):
        for v, e in indexed(s.step, notify.param, notify.index):
            if isinstance(e, OfTile) and v.axis == c.axis and c.kind in ("cut", "part"):
                of[e.var] = Sym(f"c{k}") // c.per if c.kind == "cut" else c.rank
    return {
        op.name: of[e.var]
        for op in walk(s.step.program.body)
        if isinstance(op, Holder)
        for v, e in indexed(s.step, op.param, op.index)
        if isinstance(e, OfTile) and v.by_parts and e.var in of
    }
