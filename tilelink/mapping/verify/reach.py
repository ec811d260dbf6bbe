"""What an index of a program touches: tiles of one axis of its domain or of a loop, or everything, or what data says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.partition import extent
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import At, Bounds, Gather, Holder, Index, IndexEntry, OfTile, Tiles, Whole, walk
from tilelink.ir.wiring import TensorDecl, ViewAxis, entries
from tilelink.mapping.sites import Site
from tilelink.mapping.verify.geometry import NOWHERE, Bools, Ints, Spans, World

Key: TypeAlias = "int | str"
"""An axis of a step's domain, or the variable of a `tl.tiles` loop."""


@dataclass(frozen=True, slots=True)
class Value:
    """An integer of a program: a column per tile of axis `key`, one column where it depends on none."""

    key: Key | None
    array: Any


@dataclass(frozen=True, slots=True)
class Reach:
    """Positions on one axis of a tensor. `spans` None: by data. `whole`: the index leaves the axis whole."""

    key: Key | None
    spans: Spans | None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Mask:
    """For which tiles an op is executed, per axis; `data`: also something that the plan cannot see decides."""

    by: Mapping[Key | None, Bools]
    data: bool

    def on(self, spans: Spans, key: Key | None) -> Spans:
        for k in {key, None}:
            if k in self.by:
                spans = spans.where(self.by[k])
        return spans


EVERYWHERE = Mask({}, False)


@dataclass(frozen=True, slots=True)
class Laid:
    """A step's tiles as arrays, in the positions that its program counts."""

    world: World
    step: StepPlan
    spans: Mapping[Key, Spans | None]
    names: dict[str, Value]
    _without: dict[Key, Bools] = field(default_factory=dict[Key, Bools])

    @property
    def rank(self) -> Ints:
        return np.arange(self.world.ranks, dtype=np.int64)[:, None]

    @property
    def at(self) -> Ints:
        """Each rank's coordinate on the step's axis of ranks."""
        return self.world.at(self.step.axis)

    @property
    def keeps_own(self) -> bool:
        """A push that leaves out what stays on its rank; a pull moves whatever it is told to."""
        return self.step.skip_own and bool(self.step.push)

    def tensor(self, param: str) -> TensorDecl:
        return self.world.plan.wiring.tensor(self.step.step.binding(param).tensor)

    # ------------------------------------------------------------------------------------------------------- values
    def value(self, formula: Formula | None) -> Value | None:
        """None: the formula names something unknown, or tiles of two axes at once."""
        if formula is None:
            return None
        keys: set[Key] = set()
        env: dict[str, Any] = {}
        for name in F.symbols(formula) - {"RANKS"}:
            found = self.names.get(name)
            if found is None:
                return None
            env[name] = found.array
            if found.key is not None:
                keys.add(found.key)
        if len(keys) > 1:
            return None
        # A program's `R` is the step's axis.
        env["RANKS"] = self.world.along(self.step.axis)
        return Value(next(iter(keys), None), self.world.value(formula, env))

    def idle(self, site: Site) -> Bools:
        """Ranks where an op is not executed, for the step, or a loop around the op, has no tile there."""
        idle = NOWHERE
        for key in (*range(len(self.step.grid)), *(loop.var for loop in site.loops if isinstance(loop, Tiles))):
            idle = idle | self._no_tile(key)
        return idle

    def _no_tile(self, key: Key) -> Bools:
        if key not in self._without:
            spans = self.spans.get(key)
            self._without[key] = spans.nowhere if spans is not None else NOWHERE
        return self._without[key]

    def mask(self, site: Site) -> Mask:
        """The tests above an op, as far as positions decide them."""
        by: dict[Key | None, Bools] = {}
        data = False
        for test, branch in site.tests:
            found = self.value(test.formula)
            if found is None:
                data = True
                continue
            holds = (found.array != 0) == branch
            by[found.key] = by[found.key] & holds if found.key in by else holds
        return Mask(by, data)

    # -------------------------------------------------------------------------------------------------------- indices
    def index(self, param: str, index: Index | None) -> tuple[tuple[ViewAxis, IndexEntry], ...]:
        """Each view axis with its entry; a movement's tiles are named by position."""
        step = self.step.step
        view = step.binding(param).view
        if step.program.movement is not None:
            return tuple((v, OfTile(str(k))) for k, v in enumerate(view))
        return tuple(zip(view, entries(step, param, index), strict=True))

    def key(self, entry: OfTile) -> Key | None:
        if self.step.step.program.movement is not None:
            return int(entry.var)
        if entry.var in self.spans:
            return entry.var
        return next((a for a, g in enumerate(self.step.grid) if g.var == entry.var), None)

    def reach(self, param: str, view: ViewAxis, entry: IndexEntry, *, seen: bool = False) -> Reach:
        """Positions in the tensor; `seen`: as the program counts them."""
        found = self._reach(param, view, entry)
        if seen or not view.local or found.spans is None or view.axis is None:
            return found
        of = self.tensor(param).axes[view.axis]
        assert of.over is not None
        first = self.world.at(of.over) * self.world.part(of.size, of.over)
        return Reach(found.key, found.spans.shifted(first), found.whole)

    def _reach(self, param: str, view: ViewAxis, entry: IndexEntry) -> Reach:
        if isinstance(entry, OfTile):
            key = self.key(entry)
            return Reach(key, self.spans[key] if key is not None else None)
        if isinstance(entry, At):
            at = self.coordinate(entry)
            return Reach(at.key, self._points(at)) if at is not None else Reach(None, None)
        if isinstance(entry, Gather):
            return Reach(None, None)
        assert isinstance(entry, Whole)
        tensor = self.tensor(param)
        of = tensor.axes[view.axis] if view.axis is not None else None
        if of is not None and of.over is not None and not view.local:
            return Reach(None, self.world.own(of.size, of.over), whole=True)
        return Reach(None, self.world.whole(extent(tensor, view, self.step.axis)), whole=True)

    def coordinate(self, entry: At) -> Value | None:
        """The position that a scalar entry names."""
        if entry.ring is not None and entry.ring[0] in self.names:
            base = self.names[entry.ring[0]]
            return Value(base.key, (base.array + entry.ring[1]) % self.world.along(self.step.axis))
        return self.value(entry.expr.formula)

    def _points(self, at: Value) -> Spans:
        begin = np.asarray(at.array, dtype=np.int64)
        of = self.spans.get(at.key) if at.key is not None else None
        real = of.real if of is not None else np.ones((1, 1), dtype=np.bool_)
        begin, real = np.broadcast_arrays(begin, real)
        return Spans(begin, begin + 1, real)


def lay(world: World, step: StepPlan) -> Laid:
    spans: dict[Key, Spans | None] = {a: _domain_axis(world, step, a) for a in range(len(step.grid))}
    names: dict[str, Value] = {}
    laid = Laid(world, step, spans, names)
    for a, g in enumerate(step.grid):
        found, unit = spans[a], step.step.binding(step.domain).view[a].unit
        if g.var is not None and unit and found is not None:
            names[g.var] = Value(a if g.kind != "own" else None, found.begin)
    names |= {name: Value(None, np.full((1, 1), number)) for name, number in step.step.compiled.items()}
    for op in walk(step.step.program.body):
        if isinstance(op, Tiles):
            _loop(laid, spans, op)
        elif isinstance(op, Bounds):
            _bounds(laid, op)
        elif isinstance(op, Holder):
            _holder(laid, op)
    return laid


def _domain_axis(world: World, step: StepPlan, a: int) -> Spans | None:
    g = step.grid[a]
    found = world.axis(g)
    view = step.step.binding(step.domain).view[a]
    if found is None or view.axis is None or g.kind == "own":
        return found
    at = world.at(step.axis)
    held = _held(world, step, a, found)
    host = step.host_axes[a] if step.into is not None else None
    if step.into is not None and host is not None:
        # It runs for the tiles that its host has.
        theirs = _held(world, world.plan.step(step.into), host, found)
        held = theirs if held is None else held if theirs is None else held & theirs
    if held is not None:
        found = found.where(held).packed()
    if step.into is None:
        return found
    # A fused step is called with its host's tile: positions in the tensor, for own rows only where it has only those.
    return found.shifted(-at * world.part(g.size, g.over)) if view.local and host == step.own_axis else found


def _held(world: World, step: StepPlan, a: int, tiles: Spans) -> Bools | None:
    """Of the tiles on an axis of a step's domain those that it has because its rank holds them; None: that says nothing."""
    view = step.step.binding(step.domain).view[a]
    tensor = world.plan.wiring.tensor(step.step.binding(step.domain).tensor)
    if view.axis is None or not step.own_rows:
        return None
    if tensor.axes[view.axis].over != step.axis and view.axis != tensor.owned:
        return None
    return np.asarray(world.holders(tensor, view.axis, tiles.begin) == world.at(step.axis))


def _loop(laid: Laid, spans: dict[Key, Spans | None], op: Tiles) -> None:
    view = laid.step.step.binding(op.param).view[op.axis]
    grid = laid.step.loop(op)
    spans[op.var] = None if op.limited else laid.world.axis(grid)
    found = spans[op.var]
    if view.unit and found is not None:
        laid.names[op.var] = Value(op.var, found.begin)


def _bounds(laid: Laid, op: Bounds) -> None:
    tensor = laid.tensor(op.param)
    if op.what == "size" and op.axis is not None:
        size = extent(tensor, laid.step.step.binding(op.param).view[op.axis], laid.step.axis)
        laid.names[op.name] = Value(None, laid.world.value(size))
    elif op.what in ("begin", "end") and op.var is not None:
        key = laid.key(OfTile(op.var))
        found = laid.spans[key] if key is not None else None
        if found is not None:
            laid.names[op.name] = Value(key, found.begin if op.what == "begin" else found.end)


def _holder(laid: Laid, op: Holder) -> None:
    """`tl.rank_of`: by the first split axis that the program sees as a whole; else it is this rank."""
    tensor = laid.tensor(op.param)
    for view, entry in laid.index(op.param, op.index):
        if view.axis is None or not tensor.names_holder(view):
            continue
        found = laid.reach(op.param, view, entry)
        if found.spans is not None:
            holders = laid.world.holders(tensor, view.axis, found.spans.begin)
            if bool(((holders == laid.at) | ~found.spans.filled).all()):
                break  # whichever tile it is, this rank has it
            laid.names[op.name] = Value(found.key, holders)
        return
    laid.names[op.name] = Value(None, laid.at)
