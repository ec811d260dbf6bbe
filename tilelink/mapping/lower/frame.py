"""Where one tile of a step stands: what formulas may name there, and which positions, ranks and bytes its indices mean; the
elements of a block one by one, with masks and vectors of positions as formulas of the lane that each element is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Binary, Formula, Sym
from tilelink.ir.lowered import STAGE, Check, Data, For, If, Op, Read, Tiles, Write
from tilelink.ir.partition import GridAxis, part
from tilelink.ir.plan import InPlace, Plan, StepPlan
from tilelink.ir.program import At, Bounds, Expr, Gather, Index, IndexEntry, OfTile, Whole, walk
from tilelink.ir.shape import RANK_AXIS, around, rank_along
from tilelink.ir.wiring import Entries, TensorDecl, ViewAxis, indexed
from tilelink.mapping.libraries import viewed

RANK = rank_along()
"""This rank's number among all."""
PLACES = 1024
"""Places of a walked axis up to which they are gone through to see whether a position stays in its axis."""
PLACE = "a place"
"""Stands for one of them; no size is called so."""


AXES = 2
"""Axes of a block that are looked at element by element, counted from the last."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Positions along one axis, as the program counts them. `grid`: of the partition whose tile it is, if it is one."""

    begin: Formula
    end: Formula
    by_data: Data | None = None
    grid: GridAxis | None = None

    @property
    def block(self) -> Formula:
        """How many elements a block of it has, those past its end included."""
        return self.end - self.begin if self.grid is None else self.grid.step


@dataclass(slots=True)
class Frame:
    """`host`: of a fused step the one whose tiles it is called with. `tests`: under which this rank takes the tile at all.

    `by_name`: in the names of the step's own program, for text: what data decides has a name there like all else, and a fused
    step's tiles are those that it is called with (`tilelink.ir.lowered.Part`).
    """

    plan: Plan
    step: StepPlan
    host: StepPlan | None = None
    tiles: dict[str, Interval] = field(default_factory=dict[str, Interval])
    names: dict[str, F.Like] = field(default_factory=dict[str, F.Like])
    vectors: dict[str, Bounds] = field(default_factory=dict[str, Bounds])
    """What the program calls the positions of a tile, or which of them are inside limits, one by one."""
    tests: list[Formula] = field(default_factory=list[Formula])
    lets: list[tuple[str, Formula]] = field(default_factory=list[tuple[str, Formula]])
    by_name: bool = False

    def __post_init__(self) -> None:
        step, host = self.step, self.host
        self.names |= {**step.step.compiled, "RANKS": step.ranks}
        for a, (g, v) in enumerate(zip(step.grid, step.step.binding(step.domain).view, strict=True)):
            at = a if host is None else step.host_axes[a]
            called = g.var if g.var is not None and (self.by_name or not step.copies) else g.dim
            found = self.tile(g, step.rank if at is None else Sym(f"i{at}"), self.prefixed(called), self.lets)
            if host is not None and at is not None and at == step.own_axis:
                begin = Sym(f"{host.grid[at].var}.begin") if self.by_name else found.begin
                self.tests.append(F.binary("==", begin // g.part, step.rank))
                if v.local and not self.by_name:
                    first = step.rank * g.part
                    found = replace(found, begin=found.begin - first, end=found.end - first)
            elif step.own_axis is not None and v.of is not None and v.of.owner is not None:
                self.tests.append(F.binary("==", v.of.holder(found.begin), step.rank))
            if step.subtiles > 1 and a == len(step.grid) - 1 and not self.by_name:
                width = (g.tile or 0) // step.subtiles
                first = found.begin + Sym(self.unique("subtile")) * width
                end = F.minimum(first + width, found.end)
                self.tests.append(F.binary("<", first, end))
                found = Interval(first, end, grid=replace(g, tile=width))
            if g.var is not None:
                self.tiles[g.var] = found
                if (v.unit or g.kind == "own") and not self.by_name:
                    self.names[g.var] = found.begin

    def loop(self, body: tuple[Op, ...]) -> Tiles:
        """The loop over all of the step's tiles, in its order, with the frame's names. Of a run-time split any one tile stands
        for all."""
        step, grid = self.step, self.step.grid
        axes = tuple((f"i{a}", F.of(1) if g.kind == "table" else g.count) for a, g in enumerate(grid))
        dims, tile = tuple(g.dim for g in grid), tuple(g.tile for g in grid)
        return Tiles(step.path, step.total, axes, step.order, tuple(self.lets), body, None, dims, step.step.loc, tile)

    def prefixed(self, name: str) -> str:
        """A name that no other step of the same loop over tiles has."""
        return name if self.host is None or self.by_name else f"{self.step.path.replace('.', '_')}_{name}"

    def unique(self, name: str) -> str:
        """A name of a loop's variable, which means nothing else there, as a size of the same name does, or the position `t`."""
        found, order = self.prefixed(name), (self.host or self.step).order
        taken = {"t", *self.plan.env(0), *(n for n, _ in order)}
        while found in taken:
            found += "_"
        return found

    def tile(self, g: GridAxis, index: Formula, name: str, lets: list[tuple[str, Formula]]) -> Interval:
        """A tile of a partition; where it takes some work to say where it begins and ends, these get names."""
        if g.kind == "plain" and g.tile is None:
            return Interval(F.of(0), g.size, grid=g)
        if g.kind == "own" or (g.unit and not self.by_name):
            return Interval(g.begin(index), g.end(index), grid=g)
        if g.kind == "table" and not self.by_name:
            return Interval(F.of(0), g.size, segments(g), grid=g)
        begin, end = (Sym(f"{name}.{side}" if self.by_name else f"{name}_{side}") for side in ("begin", "end"))
        lets += [(begin.name, g.begin(index)), (end.name, F.minimum(begin + g.step, g.limit(index)))]
        return Interval(begin, begin + 1 if g.unit else end, grid=g)

    # -------------------------------------------------------------------------------------------------------------- values
    def value(self, e: Expr) -> Formula | None:
        """None: data decides it."""
        if self.by_name:
            return F.substitute(e.named, {"RANKS": self.step.ranks})
        if e.formula is None or not F.symbols(e.formula) <= self.names.keys():
            return None
        return F.substitute(e.formula, self.names)

    def at(self, e: At) -> Formula | None:
        """The position that a scalar entry names."""
        if e.ring is not None and e.ring[0] in self.names:
            return around(F.of(self.names[e.ring[0]]), e.ring[1], self.step.ranks)
        return self.value(e.expr)

    # ------------------------------------------------------------------------------------------------------------- indices
    def tensor(self, param: str) -> TensorDecl:
        return self.plan.wiring.tensor(self.step.step.binding(param).tensor)

    def index(self, param: str, index: Index | None) -> Entries:
        """Each axis of the view with its entry."""
        if self.step.library is not None:
            return viewed(self.step.step, param, index, runs=self.step.by_panels)
        return indexed(self.step.step, param, index)

    def interval(self, v: ViewAxis, e: IndexEntry) -> Interval:
        size = v.extent(self.step.axis)
        if isinstance(e, OfTile):
            return self.tiles[e.var]
        if isinstance(e, At):
            at = self.at(e)
            by_data = Data(f"the index `{e.expr}`", index=True) if at is None else None
            return Interval(F.of(0), size, by_data) if at is None else Interval(at, at + 1)
        if isinstance(e, Gather):
            if self.by_name:
                return Interval(Sym(f".{e.expr.text}.low"), Sym(f".{e.expr.text}.high") + 1)
            return Interval(F.of(0), size, Data(f"the index `{e.expr}`", index=True))
        assert isinstance(e, Whole)
        first = self._first(v, self.step.rank)
        return Interval(first, first + v.held(self.step.axis))

    def there(self, v: ViewAxis, at: Formula | None) -> tuple[Formula, Formula]:
        """The positions of an axis that a rank's memory has, as the program counts; `at` None: those of all ranks together."""
        end = v.extent(self.step.axis)
        if v.of is None or not v.by_parts or at is None:
            return F.of(0), end
        first = self._first(v, at)
        return first, F.minimum(first + v.of.part, end)

    def _first(self, v: ViewAxis, at: Formula) -> Formula:
        """Which position the memory of the rank with coordinate `at` begins with."""
        if v.of is None or v.of.over is None or not v.by_parts:
            return F.of(0)
        return (at if v.of.over == self.step.axis else rank_along(v.of.over)) * v.of.part

    def stays(self, v: ViewAxis, e: At) -> bool:
        """Whether the position lies in this rank's memory of the axis, whatever data says: a rank, where a tile of such an axis
        begins, the segment that a tile is of, or what is made of the variable of a walked axis for each place along it."""
        if e.ring is not None:
            return True
        ops = [op for op in walk(self.step.step.program.body) if isinstance(op, Bounds) and op.name == e.expr.text]
        tiles = [(op.what, self.tiles.get(op.var or "")) for op in ops if op.what in ("begin", "segment")]
        tiles += [("begin", self.tiles[e.expr.text])] if e.expr.text in self.tiles else []
        if tiles and all(tile is not None and self._covers(v, what, tile.grid) for what, tile in tiles):
            return True
        size, walked = v.extent(self.step.axis), self._walked(e)
        if walked is None or not F.symbols(size) <= set(self.plan.wiring.sizes):
            return False
        env, (found, places) = self.plan.env(0), walked
        end = int(F.evaluate(size, env))
        each = ({**env, PLACE: at} for at in range(places))
        return places <= PLACES and all(_as_in_triton(found, at) and 0 <= F.evaluate(found, at) < end for at in each)

    def _covers(self, v: ViewAxis, what: str, g: GridAxis | None) -> bool:
        """Whether this rank's memory of an axis has all positions at which tiles of a partition begin, or all of its segments."""
        size = v.extent(self.step.axis)
        if g is None:
            return False
        if what == "segment":
            return g.table is not None and self.plan.wiring.tensor(g.table).axes[0].size - 1 == size
        return g.size == size and (not v.by_parts or (g.kind == "mine" and g.over == v.over))

    def _walked(self, e: At) -> tuple[Formula, int] | None:
        """Of a position that sizes and one place along a singly walked axis make: the formula by that, and how many places there
        are."""
        step, f = self.step.step, e.expr.formula
        walked = [g for g in self.step.grid if g.kind == "unit" and f is not None and g.var in F.symbols(f)]
        if f is None or len(walked) != 1:
            return None
        # What the program has names for: constants, and sizes of axes.
        known: dict[str, F.Like] = {**step.compiled}
        for op in walk(step.program.body):
            if isinstance(op, Bounds) and op.what == "size" and op.axis is not None:
                known[op.name] = step.binding(op.param).view[op.axis].extent(step.axis)
        found = F.substitute(f, {**known, walked[0].var or "": Sym(PLACE)})
        if not F.symbols(found) - {PLACE} | F.symbols(walked[0].size) <= set(self.plan.wiring.sizes):
            return None
        return found, int(F.evaluate(walked[0].size, self.plan.env(0)))

    # --------------------------------------------------------------------------------------------------------------- ranks
    def peer(self, at: Formula) -> Formula:
        """What ops call the rank with coordinate `at` in this rank's submesh along the step's mesh dimension."""
        return at if self.by_name else self.number(at)

    def number(self, at: Formula) -> Formula:
        """Its number among all."""
        if at == self.step.rank or self.step.axis == RANK_AXIS:
            return RANK if at == self.step.rank else at
        return RANK + (at - self.step.rank) * self.plan.topology.stride(self.step.axis)

    def owner(self, index: Entries) -> Formula | None:
        """The coordinate of the rank that holds the tile; None: every rank has its own."""
        for v, e in index:
            found = self.interval(v, e)
            # All of an axis, or a vector of positions, may lie on several ranks.
            if found.by_data or isinstance(e, Whole | Gather):
                continue
            if v.axis is None and self.step.copies:
                return found.begin
            if v.of is not None and v.names_holder:
                return v.of.holder(found.begin)
        return None

    # -------------------------------------------------------------------------------------------------------------- memory
    def access(
        self,
        kind: type[Read] | type[Write],
        param: str,
        index: Entries,
        at: Formula,
        loc: Loc | None,
        *,
        mask: Expr | None = None,
        pulled: bool = False,
    ) -> tuple[Op, ...]:
        """A read or write of the tile in the memory of the rank with coordinate `at`; none of what lives in registers only."""
        tensor = self.tensor(param)
        buffer = self.plan.buffer_or_none(tensor.name)
        if buffer is None:
            return ()
        stored = [a for a, axis in enumerate(tensor.axes) if not axis.own_slice]
        sizes = buffer.stage if pulled and buffer.stage is not None else buffer.extents
        box = {a: (F.of(0), self.on(size, at)) for a, size in zip(stored, sizes, strict=True)}
        lanes, checks = Lanes(self), list[Op]()
        tests, by_data = lanes.mask(mask, loc)
        for k, (v, e) in enumerate(index):
            found = lanes.along(self.interval(v, e), e, sum(not isinstance(e, At) for _, e in index[k:]))
            if v.axis is None or v.of is None or v.of.own_slice:
                if not isinstance(e, Whole) and not found.by_data and found.begin != at:
                    checks.append(Check(F.binary("==", found.begin, at), f"another rank's slice of `{param}`", loc))
                continue
            by_data = by_data or found.by_data
            if found.by_data and v.of.over is not None:
                box[v.axis] = F.of(0), self.on(v.of.here, at)  # anywhere in the rank's part
                continue
            first = self._first(v, at)
            box[v.axis] = found.begin - first, found.end - first
            inside = isinstance(e, At) and self.stays(v, e)
            # A load past an edge gets what it names instead, and -1 in a vector is no element; a store has to be in this rank's
            # part, and so has a load of a position that one walked axis alone makes.
            kinds = Gather if kind is Write and not self.by_name else At | Gather
            alone = not self.by_name and isinstance(e, At) and self._walked(e) is not None
            if isinstance(e, kinds) and not found.by_data and not inside and not alone:
                lo, hi = self.there(v, at)
                tests += [F.binary("<=", lo, found.begin), F.binary("<", found.begin, hi)]
            elif kind is Write and isinstance(e, At) and not (self.by_name or found.by_data or inside):
                # Past the end of the tensor it does nothing; in another rank's part, or below 0, it would be lost.
                tests.append(F.binary("<", found.begin, self.there(v, None)[1]))
        name = f"{tensor.name}{STAGE}" if buffer.staged and pulled else tensor.name
        by_data = None if by_data is None else replace(by_data, loc=by_data.loc or loc)
        access = kind(name, self.peer(at), tuple(box[a] for a in stored), by_data, loc, param)
        return (*checks, *lanes.each(under(tests, (access,), "" if mask is None else f"the mask `{mask}`")))

    def on(self, formula: Formula, at: Formula) -> Formula:
        """What a formula of this rank's is on the one with coordinate `at`."""
        return F.substitute(formula, {rank_along(self.step.axis).name: at})

    # ---------------------------------------------------------------------------------------------------- local shards
    def alias(self, param: str) -> tuple[InPlace, Formula] | None:
        """How this rank's own shard of a parameter is read where the rank has brought it along, and the test of a tile being
        of that shard; None: all of it is read from the tensor."""
        tensor = self.tensor(param)
        found = next((i for i in self.step.in_place if i.tensor == tensor.name), None)
        if found is None or found.var not in self.tiles:
            return None
        shard = part(tensor.axes[0].size, self.step.axis)
        return found, F.binary("==", self.tiles[found.var].begin // shard, self.step.rank)

    def registers(self, param: str, index: Entries) -> list[Formula] | None:
        """Of what a fused step may take from its mainloop's registers: the tests under which it does; None: it does not."""
        if self.step.step.binding(param).tensor not in self.step.forwarded:
            return None
        slices = [self.at(e) for v, e in index if v.unit and isinstance(e, At)]
        return [F.binary("==", s, self.step.rank) for s in slices if s is not None]


def _as_in_triton(f: Formula, env: Mapping[str, F.Number]) -> bool:
    """Whether it divides natural numbers by positive ones only: Triton rounds others towards zero."""
    if not isinstance(f, F.Binary):
        return True
    if not (_as_in_triton(f.left, env) and _as_in_triton(f.right, env)):
        return False
    return f.op not in ("//", "%", "cdiv") or (F.evaluate(f.left, env) >= 0 and F.evaluate(f.right, env) > 0)


def segments(g: GridAxis) -> Data:
    """What decides where the tiles of a run-time split are."""
    return Data(f"the segments of `{g.table}`", table=g.table)


def under(tests: Sequence[Formula], body: tuple[Op, ...], said: str = "") -> tuple[Op, ...]:
    """The body where all tests hold. `said`: by what the program says so."""
    asked = [test for test in tests if test != F.Const(1)]
    return (If(_all(asked), body, said=said),) if asked and body else body


def unless(tests: Sequence[Formula], body: tuple[Op, ...]) -> tuple[Op, ...]:
    """The body where not all tests hold."""
    return (If(F.negate(_all(tests)), body),) if tests and body else ()


def _all(tests: Sequence[Formula]) -> Formula:
    return reduce(lambda a, b: F.binary("and", a, b), tests)


# --------------------------------------------------------------------------------------------- the elements of a block
@dataclass(slots=True)
class Lanes:
    """Of one access. `lengths`: of the axes of its block whose elements a formula tells apart, the last being 1: how many."""

    frame: Frame
    name: str = "lane"
    lengths: dict[int, Formula] = field(default_factory=dict[int, Formula])

    def var(self, back: int) -> str:
        return self.frame.unique(f"{self.name}{back}")

    def mask(self, mask: Expr | None, loc: Loc | None) -> tuple[list[Formula], Data | None]:
        """What has to hold of an element, and what data decides beyond that."""
        if mask is None or self.frame.by_name:
            return [], None
        found = self._asked(mask.formula, 1)
        by_data = Data(f"the mask `{mask}`", loc) if found is None else None
        found = self._asked(mask.only_if, 1) if found is None else found
        return [] if found is None else [F.truth(found)], by_data

    def one(self, entry: Gather, back: int) -> Formula | None:
        """An element of a vector of positions."""
        if self.frame.by_name:
            return self.frame.value(entry.expr)
        return self._asked(entry.expr.formula, back) if back <= AXES else None

    def along(self, tile: Interval, entry: IndexEntry, back: int) -> Interval:
        """The positions of the access along an axis of the block, of one element where elements are told apart."""
        if isinstance(entry, Gather):
            at = self.one(entry, back)
            return tile if at is None else Interval(at, at + 1)
        if isinstance(entry, At) or back not in self.lengths or tile.by_data:
            return tile
        at = tile.begin + Sym(self.var(back))
        self.lengths[back] = F.minimum(self.lengths[back], tile.end - tile.begin)
        return replace(tile, begin=at, end=at + 1)

    def each(self, body: tuple[Op, ...]) -> tuple[Op, ...]:
        """The access of each element."""
        for back in sorted(self.lengths):
            body = (For(self.var(back), self.lengths[back], body),) if body else ()
        return body

    def _asked(self, formula: Formula | None, back: int) -> Formula | None:
        """None, and no lanes, if it is not known, or two vectors along one axis have different lengths."""
        before = dict(self.lengths)
        found = None if formula is None else self._one(formula, back)
        if found is None:
            self.lengths = before
        return found

    def _one(self, f: Formula, back: int) -> Formula | None:
        if isinstance(f, Sym):
            if f.name in self.frame.vectors:
                return self._named(self.frame.vectors[f.name], back)
            return F.of(self.frame.names[f.name]) if f.name in self.frame.names else None
        if not isinstance(f, Binary):
            return f
        if f.op == "column":
            return self._one(f.left, AXES + 1 - back)
        if f.op == "arange":
            first, last = self._one(f.left, back), self._one(f.right, back)
            return None if first is None or last is None else self._lane(first, last - first, back)
        left, right = self._one(f.left, back), self._one(f.right, back)
        return None if left is None or right is None else F.binary(f.op, left, right)

    def _named(self, op: Bounds, back: int) -> Formula | None:
        """An element of `tl.tile_range` or of `tl.tile_mask`."""
        frame = self.frame
        if op.var is None:
            view = frame.step.step.binding(op.param).view
            tile = Interval(F.of(0), view[op.axis or 0].extent(frame.step.axis))
        else:
            tile = frame.tiles.get(op.var)
        if tile is None or tile.by_data:
            return None  # data says which they are
        place = self._lane(tile.begin, tile.block, back)
        if place is None or op.what == "range":
            return place
        inside = F.binary("<", place, tile.end)
        for limit, comparison in ((op.start, ">="), (op.stop, "<")):
            if limit is not None:
                asked = None if limit.formula is None else self._one(limit.formula, AXES + 1 - back)
                if asked is None:
                    return None
                inside = F.binary("and", inside, F.binary(comparison, place, asked))
        return inside

    def _lane(self, first: Formula, length: Formula, back: int) -> Formula | None:
        if self.lengths.setdefault(back, length) != length:
            return None
        return first + Sym(self.var(back))
