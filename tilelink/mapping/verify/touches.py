"""Which elements of a tensor each store, load and move touches: boxes, one for each turn of the op on each rank.

The elements of a tensor lie along its *places*: first the axes of ranks over which every rank has an instance of its own, then
the tensor's axes, in global positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilelink.errors import Loc
from tilelink.ir.plan import Plan
from tilelink.ir.program import At, Gather, Index, IndexEntry, Load, Move, OfTile, Store, Tile, Whole
from tilelink.ir.wiring import TensorDecl, ViewAxis
from tilelink.mapping.sites import Site, sites
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.turns import LANES, Array, Turns, Undecided, turns


@dataclass(frozen=True, slots=True)
class Touch:
    """`places`: begin and end along each, over all turns. `taken`: which turns there are, if all of these hold. `undecided`: data
    decides whether, how often or where; then places are what may be touched. `table`: the table that says where, if one does.
    """

    laid: Laid
    site: Site
    param: str
    tensor: str
    places: tuple[tuple[Array, Array], ...]
    taken: tuple[Array, ...]
    undecided: tuple[Undecided, ...]
    table: str | None

    @property
    def path(self) -> str:
        return self.laid.step.path

    @property
    def loc(self) -> Loc:
        return self.site.op.loc


def own_axes(plan: Plan, tensor: TensorDecl) -> tuple[str, ...]:
    """The axes of ranks along which every rank has an instance of its own."""
    if tensor.owner_map is not None:
        return ()
    return tuple(a for a in plan.axes if not tensor.split_over(a))


def written(plan: Plan, laid: Mapping[str, Laid]) -> list[Touch]:
    """What each store, push and move writes."""
    return [t for s in plan.steps for t in _touches(plan, laid[s.path], writing=True)]


def read(plan: Plan, laid: Mapping[str, Laid]) -> list[Touch]:
    """What each load and move reads."""
    return [t for s in plan.steps for t in _touches(plan, laid[s.path], writing=False)]


def _touches(plan: Plan, laid: Laid, *, writing: bool) -> list[Touch]:
    step = laid.step
    movement = step.step.program.movement
    if movement is not None:
        # Its one transfer happens as the schedule says, not as it is written.
        site = next(s for s in sites(step.step.program) if isinstance(s.op, (Move, Store)))
        param = movement.destination if writing else movement.source
        pulls = not step.push and laid.tensor(param).names_holders(step.step.binding(param).view)
        return [_touch(plan, laid, Site(site.op, (), ()), param, None, away=bool(step.push) if writing else pulls)]
    out: list[Touch] = []
    for site in _on_both_paths(sites(step.step.program)):
        op = site.op
        if isinstance(op, Store if writing else Load):
            assert isinstance(op, (Store, Load))
            out.append(_touch(plan, laid, site, op.param, op.index, away=isinstance(op, Store) and op.to == "holders"))
    return out if writing else [*out, *_tables(plan, laid)]


def _tables(plan: Plan, laid: Laid) -> Iterator[Touch]:
    """A table that splits an axis is read, all of it, before the first tile."""
    step, world = laid.step, laid.world
    site = next(s for s in sites(step.step.program) if isinstance(s.op, Tile))
    for name in dict.fromkeys(g.table for g in (*step.grid, *step.loops) if g.table is not None):
        tensor = plan.wiring.tensor(name)
        at = turns(laid, site)
        own = [at.column(world.at(a)) for a in own_axes(plan, tensor)]
        places = [*((a, a + 1) for a in own), *((at.column([0]), at.size(a.size)) for a in tensor.axes)]
        yield Touch(laid, site, name, name, tuple(places), (), (), None)


def _on_both_paths(found: tuple[Site, ...]) -> list[Site]:
    """A store on both paths of a test happens in any case, whatever decides it: it stands here once, and without the test."""
    out = list(found)
    for site in found:
        if site not in out or not isinstance(site.op, Store) or site.op.mask is not None:
            continue
        for test, branch in site.tests:
            others = tuple(t for t in site.tests if t != (test, branch))
            twin = next((s for s in out if _same_store(s, site, others, (test, not branch))), None)
            if twin is not None:
                out[out.index(site)] = Site(site.op, others, site.loops)
                out.remove(twin)
                break
    return out


def _same_store(s: Site, site: Site, others: tuple[object, ...], test: object) -> bool:
    a, b = s.op, site.op
    if not isinstance(a, Store) or not isinstance(b, Store) or test not in s.tests or s.loops != site.loops:
        return False
    same = (a.param, a.index, a.to, a.mask) == (b.param, b.index, b.to, b.mask)
    return same and tuple(t for t in s.tests if t != test) == others


def _touch(plan: Plan, laid: Laid, site: Site, param: str, index: Index | None, *, away: bool) -> Touch:
    made = _Box(laid, turns(laid, site), laid.tensor(param), param, laid.index(param, index), away)
    made.mask()
    own = [made.instance(axis) for axis in own_axes(plan, made.tensor)]
    places = [made.place(a) for a in range(len(made.tensor.axes))]
    t = made.turns
    return Touch(laid, site, param, made.tensor.name, (*own, *places), tuple(t.taken), tuple(t.undecided), made.table)


@dataclass(slots=True)
class _Box:
    """`away`: of whoever holds the tile, else this rank's own."""

    laid: Laid
    turns: Turns
    tensor: TensorDecl
    param: str
    indexed: tuple[tuple[ViewAxis, IndexEntry], ...]
    away: bool
    table: str | None = None
    masked: Array | None = None

    def mask(self) -> None:
        """The mask of a store as what has to hold of each element."""
        op = self.turns.site.op
        if not isinstance(op, Store) or op.mask is None or self.laid.step.step.program.movement is not None:
            return
        found = self.turns.test(op.mask)
        if found is None:
            self.turns.undecided.append(Undecided(f"the mask `{op.mask}`", op.loc))
            found = self.turns.value(op.mask.only_if)
            found = None if found is None else found != 0
        if found is not None:
            self.masked = found
            self.turns.taken.append(found)

    def instance(self, over: str) -> tuple[Array, Array]:
        """Whose instance, along an axis of ranks over which the tensor is not split."""
        t, world = self.turns, self.laid.world
        own = t.column(world.at(over))
        if not self.away or over != self.laid.step.axis:
            return own, own + 1
        for view, entry in self.indexed:
            if view.axis is None:
                found = self._at(entry)
                if found is not None:
                    return found, found + 1
        return t.column([0]), t.column([world.along(over)])  # all of them

    def place(self, axis: int) -> tuple[Array, Array]:
        """Begin and end along an axis of the tensor."""
        t, world, of = self.turns, self.laid.world, self.tensor.axes[axis]
        seen = next((k for k, (v, _) in enumerate(self.indexed) if v.axis == axis), None)
        if of.own_slice and of.over is not None and (seen is None or isinstance(self.indexed[seen][1], Whole)):
            own = t.column(world.at(of.over))
            return (t.column([0]), t.column([world.along(of.over)])) if self.away else (own, own + 1)
        assert seen is not None
        view = self.indexed[seen][0]
        if self.away and view.local and of.over == self.laid.step.axis:
            return self._extent(axis, replace(view, local=False))  # it names nobody's part: all ranks get it
        low, high = self._extent(axis, view)
        begin, end = self._range(seen, low, high)
        if not self.away and axis == self.tensor.owned:
            t.taken.append(world.holders(self.tensor, axis, begin) == t.here)
        elif not self.away and of.over is not None:
            # In its own instance a rank finds its own part.
            own = world.own(of.size, of.over)
            begin, end = np.maximum(begin, t.column(own.begin)), np.minimum(end, t.column(own.end))
        return begin, end

    def _extent(self, axis: int, view: ViewAxis) -> tuple[Array, Array]:
        """What of an axis there is for the program."""
        of, t = self.tensor.axes[axis], self.turns
        if view.local and of.over is not None:
            own = self.laid.world.own(of.size, of.over)
            return t.column(own.begin), t.column(own.end)
        return t.column([0]), t.size(of.size)

    def _range(self, k: int, low: Array, high: Array) -> tuple[Array, Array]:
        t, (view, entry) = self.turns, self.indexed[k]
        if isinstance(entry, Whole):
            whole = self.laid.reach(self.param, view, entry).spans
            assert whole is not None
            return self._by_lanes(k, t.column(whole.begin), t.column(whole.end), low, high)
        if isinstance(entry, OfTile):
            key = self.laid.key(entry)
            if key in t.spans:
                begin, end = t.spans[key]
                return self._by_lanes(k, *self._placed(view, begin, end), low, high)
            if key in t.by_table:
                self.table = next((g.table for g in (*self.laid.step.grid, *self.laid.step.loops) if g.table), None)
            # Else its loop is undecided.
            return low, high
        at = self._at(entry)
        if at is None:
            assert isinstance(entry, (At, Gather))
            t.undecided.append(Undecided(f"the index `{entry.expr}`", t.site.op.loc))
            return low, high
        if isinstance(entry, Gather):
            back = self._from_last(k)
            if back > LANES or (self.masked is not None and self.masked.shape[-back] not in (1, at.shape[-1])):
                t.undecided.append(Undecided(f"the index `{entry.expr}`", t.site.op.loc))
                return low, high
            at = np.swapaxes(at, -1, -back)
        begin, _ = self._placed(view, at, at)
        t.taken.append((at >= 0) & (begin < high))
        return begin, begin + 1

    def _placed(self, view: ViewAxis, begin: Array, end: Array) -> tuple[Array, Array]:
        """As positions in the tensor."""
        of = self.tensor.axes[view.axis or 0]
        if not view.local or of.over is None:
            return begin, end
        first = self.turns.column(self.laid.world.at(of.over) * self.laid.world.part(of.size, of.over))
        return begin + first, end + first

    def _at(self, entry: IndexEntry) -> Array | None:
        if isinstance(entry, OfTile):
            key = self.laid.key(entry)
            return self.turns.spans[key][0] if key is not None and key in self.turns.spans else None
        if not isinstance(entry, (At, Gather)):
            return None
        if isinstance(entry, At) and entry.ring is not None and entry.ring[0] in self.turns.names:
            base = self.turns.names[entry.ring[0]]
            return (base + entry.ring[1]) % self.laid.world.along(self.laid.step.axis)
        return self.turns.value(entry.expr.formula)

    def _from_last(self, k: int) -> int:
        """Which axis of the block an entry is, counted from the last, which is 1."""
        return sum(not isinstance(e, At) for _, e in self.indexed[k:])

    def _by_lanes(self, k: int, begin: Array, end: Array, low: Array, high: Array) -> tuple[Array, Array]:
        """One element at a time where the mask tells them apart."""
        t, back = self.turns, self._from_last(k)
        begin, end = np.maximum(begin, low), np.minimum(end, high)
        length = 1 if self.masked is None or back > LANES else self.masked.shape[-back]
        if length == 1:
            return begin, end
        lane = np.swapaxes(t.lanes(length), -1, -back)
        t.taken.append(begin + lane < end)
        return begin + lane, begin + lane + 1


__all__ = ["Touch", "own_axes", "read", "written"]
