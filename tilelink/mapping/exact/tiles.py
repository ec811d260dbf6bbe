"""What one tile of a step does: its ops in order, with positions and words worked out as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeAlias

from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.formula import Formula
from tilelink.ir.partition import GridAxis
from tilelink.ir.partition import holder as plan_holder
from tilelink.ir.plan import InPlace, Plan, Signal, StepPlan
from tilelink.ir.program import (
    At,
    Bounds,
    Expr,
    Gather,
    Holder,
    If,
    IndexEntry,
    Load,
    Loop,
    Move,
    Notify,
    OfTile,
    Op,
    Store,
    Tiles,
    Wait,
    Whole,
    walk,
)
from tilelink.ir.ring import RANKS
from tilelink.ir.wiring import TensorDecl, ViewAxis, entries
from tilelink.mapping.exact.events import Access, Box, Instance, Recorder, Word

Span: TypeAlias = "tuple[int, int]"
Indexed: TypeAlias = "list[tuple[ViewAxis, IndexEntry]]"


class NotExact(Exception):
    """The plan cannot be played through: data decides what it does."""


class Outside(Exception):
    """An access, or a word, lies outside of what exists."""

    def __init__(self, what: str, rank: int, path: str, tile: tuple[int, ...], loc: Loc | None) -> None:
        super().__init__(what)
        self.rank, self.path, self.tile, self.loc = rank, path, tile, loc


@dataclass(slots=True)
class Sizes:
    """The plan's formulas as numbers, worked out once per rank."""

    plan: Plan
    _known: dict[tuple[Formula, int], int] = field(default_factory=dict[tuple[Formula, int], int])
    _envs: dict[int, dict[str, F.Number]] = field(default_factory=dict[int, dict[str, F.Number]])

    @property
    def ranks(self) -> int:
        return self.plan.topology.ranks

    def env(self, rank: int) -> dict[str, F.Number]:
        if rank not in self._envs:
            self._envs[rank] = dict(self.plan.env(rank))
        return self._envs[rank]

    def value(self, formula: Formula, rank: int) -> int:
        key = formula, rank
        if key not in self._known:
            self._known[key] = int(F.evaluate(formula, self.env(rank)))
        return self._known[key]

    def at(self, formula: Formula, rank: int, **more: int) -> int:
        return int(F.evaluate(formula, {**self.env(rank), **more}))

    def along(self, axis: str) -> int:
        """How many ranks there are along an axis of ranks."""
        return self.plan.topology.size(axis)

    def coordinate(self, rank: int, axis: str) -> int:
        """Of a rank, on an axis of ranks."""
        return self.plan.topology.at(rank, axis)

    def part(self, size: Formula, over: str) -> int:
        """Elements per rank of an axis that is split over those of `over`."""
        return max(1, -(-self.value(size, 0) // self.along(over)))

    def held(self, size: Formula, rank: int, over: str) -> int:
        part = self.part(size, over)
        return max(0, min(self.value(size, rank) - self.coordinate(rank, over) * part, part))

    def extents(self, instance: Instance) -> tuple[int, ...]:
        """Elements per stored axis; of an argument, what the caller gives."""
        name, rank = instance
        tensor = self.plan.wiring.tensor(name.removesuffix("@stage"))
        if tensor.origin == "argument" and name == tensor.name:
            axes = [a for a in tensor.axes if not a.own_slice]
            return tuple(self.held(a.size, rank, a.over) if a.over else self.value(a.size, rank) for a in axes)
        seen = self.plan.buffer(tensor.name).seen(by_peers=name != tensor.name)
        return tuple(self.value(e, rank) for e in seen)

    def words(self, channel: Channel, rank: int) -> int:
        total = 1
        for a in channel.axes:
            total *= self.value(a.count, rank)
        return total


@dataclass(slots=True)
class TileRun:
    """One tile of a step on a rank. `spans`, `grids`: by the variable, or the position, that names the tile."""

    sizes: Sizes
    step: StepPlan
    rank: int
    tile: tuple[int, ...]
    recorder: Recorder
    spans: dict[str, Span] = field(default_factory=dict[str, Span])
    grids: dict[str, GridAxis] = field(default_factory=dict[str, GridAxis])
    names: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def plan(self) -> Plan:
        return self.sizes.plan

    @property
    def at(self) -> int:
        """This rank's coordinate on the step's axis of ranks."""
        return self.sizes.coordinate(self.rank, self.step.axis)

    def _peer(self, at: int, loc: Loc | None) -> int:
        """The rank with a coordinate in this rank's line along the step's axis."""
        if not 0 <= at < self.sizes.along(self.step.axis):
            raise Outside(f"there is no rank {at}", self.rank, self.step.path, self.tile, loc)
        return self.plan.topology.peer(self.rank, at, self.step.axis)

    def run(self, bounds: tuple[Span, ...]) -> None:
        """`bounds`: begin and end per axis of the step's grid, in the positions that the program counts."""
        program = self.step.step.program
        view = self.step.step.binding(self.step.domain).view
        for k, (span, g, v) in enumerate(zip(bounds, self.step.grid, view, strict=True)):
            name = str(k) if program.movement is not None else g.var
            if name is not None:
                self.spans[name], self.grids[name] = span, g
                if g.kind == "own" or v.unit:
                    self.names[name] = span[0]
        self.names |= self.step.step.compiled
        if program.movement is not None:
            self._move()
        else:
            self._body(program.body)

    # ------------------------------------------------------------------------------------------------------- movements
    def _move(self) -> None:
        movement = self.step.step.program.movement
        assert movement is not None
        ops = list(walk(self.step.step.program.body))
        wait = next((op for op in ops if isinstance(op, Wait)), None)
        notify = next((op for op in ops if isinstance(op, Notify)), None)
        at = next(op for op in ops if isinstance(op, (Move, Store)))
        source, target = self._positions(movement.source), self._positions(movement.destination)
        holder = self.rank if self.step.push else self._holder(movement.source, source)
        if wait is not None and self.step.into is None:
            self._hear(wait, source, holder)
        read = self._instance(movement.source, holder, pulled=not self.step.push)
        if self.step.into is None and read is not None:
            self._access("read", movement.source, source, read, holder, at.loc)
        peers = self._holders(movement.destination, target) if self.step.push else [self.rank]
        for peer in peers:
            if self.step.skip_own and self.step.push and peer == self.rank:
                continue
            written = self._instance(movement.destination, peer)
            if written is not None:
                self._access("write", movement.destination, target, written, peer, at.loc)
            if notify is not None:
                self._tell(notify, target, peer if self.step.push and len(peers) > 1 else None)

    def _positions(self, param: str) -> Indexed:
        """The tiles of a movement are known by their position."""
        return [(v, OfTile(str(k))) for k, v in enumerate(self.step.step.binding(param).view)]

    def _holder(self, param: str, index: Indexed) -> int:
        """The rank to pull from: the reader itself where all have it."""
        tensor = self._tensor(param)
        for v, e in index:
            if v.axis is None:
                return self._peer(self._interval(param, v, e)[0], None)
            if tensor.names_holder(v):
                at = self.sizes.value(plan_holder(tensor, v.axis, self._interval(param, v, e)[0]), self.rank)
                return self._peer(at, None)
        return self.rank

    # -------------------------------------------------------------------------------------------------------- programs
    def _body(self, body: tuple[Op, ...]) -> None:
        for op in body:
            self._op(op)

    def _op(self, op: Op) -> None:
        if isinstance(op, Tiles):
            self._tiles(op)
        elif isinstance(op, Loop):
            self._loop(op)
        elif isinstance(op, If):
            self._body(op.body if self._number(op.test) else op.orelse)
        elif isinstance(op, (Wait, Notify)):
            index = self._index(op.param, op.index)
            if isinstance(op, Notify):
                self._tell(op, index, None)
            elif not self._in_registers(op.param, index) and self._brought(op.param) is None:
                self._hear(op, index, self.rank)
        elif isinstance(op, Load):
            index = self._index(op.param, op.index)
            own = self._brought(op.param)
            found = self._instance(op.param, self.rank) if own is None else (own.source, self.rank)
            if found is not None and not self._in_registers(op.param, index):
                self._access("read", op.param, index, found, self.rank, op.loc)
        elif isinstance(op, Store):
            self._store(op)
        elif isinstance(op, Holder):
            found = self._holders(op.param, self._index(op.param, op.index))
            holder = found[0] if len(found) == 1 else self.rank
            self.names[op.name] = self.sizes.coordinate(holder, self.step.axis)
        elif isinstance(op, Bounds):
            self._bounds(op)

    def _store(self, op: Store) -> None:
        if op.mask is not None:
            raise NotExact("a store under a mask")
        index = self._index(op.param, op.index)
        for holder in [self.rank] if op.to == "own" else self._holders(op.param, index):
            found = self._instance(op.param, holder)
            if found is not None:
                self._access("write", op.param, index, found, holder, op.loc)

    def _tiles(self, op: Tiles) -> None:
        view = self.step.step.binding(op.param).view[op.axis]
        grid = self.step.loop(op)
        if op.limited:
            self._some_tiles(op, grid)
            return
        self.grids[op.var] = grid
        for i in range(self.sizes.value(grid.count, self.rank)):
            self.spans[op.var] = self.sizes.at(grid.begin(i), self.rank), self.sizes.at(grid.end(i), self.rank)
            if view.unit:
                self.names[op.var] = self.spans[op.var][0]
            self._body(op.body)

    def _some_tiles(self, op: Tiles, grid: GridAxis) -> None:
        """From one position to another, as far as positions say which."""
        runs = self.step.by_runs  # whose borders say no more than who is asked when
        if op.part is not None or (not runs and (grid.kind != "plain" or grid.tile is None)):
            raise NotExact("a loop over a part of an axis")
        self.grids[op.var] = replace(grid, kind="free")
        first = 0 if op.start is None else max(0, self._number(op.start))
        last = self.sizes.value(grid.size, self.rank)
        last = last if op.stop is None else min(last, self._number(op.stop))
        length = grid.tile if grid.tile is not None and not runs else max(1, last - first)
        for begin in range(first, last, length):
            self.spans[op.var] = begin, min(begin + length, last)
            self._body(op.body)

    def _loop(self, op: Loop) -> None:
        if not any(isinstance(o, (Wait, Notify, Load, Store, Move)) for o in walk(op.body)):
            return
        turns = op.turns
        known = self._values()
        if turns is None or not F.symbols(turns) <= known.keys():
            raise NotExact(f"a loop whose length the plan does not know (`{op.header}`)")
        for turn in range(int(F.evaluate(turns, known))):
            if op.target is not None:
                self.names[op.target] = int(F.evaluate(op.at(turn), known))
            self._body(op.body)

    def _bounds(self, op: Bounds) -> None:
        if op.what in ("begin", "end") and op.var in self.spans:
            self.names[op.name] = self.spans[op.var][0 if op.what == "begin" else 1]
        elif op.what == "size" and op.axis is not None:
            view, tensor = self.step.step.binding(op.param).view[op.axis], self._tensor(op.param)
            ranks = self.sizes.along(self.step.axis)
            self.names[op.name] = ranks if view.axis is None else self._extent(tensor, view)

    def _extent(self, tensor: TensorDecl, view: ViewAxis) -> int:
        assert view.axis is not None
        of = tensor.axes[view.axis]
        if not view.local:
            return self.sizes.value(of.size, self.rank)
        assert of.over is not None
        return self.sizes.held(of.size, self.rank, of.over)

    def _number(self, expr: Expr) -> int:
        known = self._values()
        if expr.formula is None or not F.symbols(expr.formula) <= known.keys():
            raise NotExact(f"data decides `{expr.text}`")
        return int(F.evaluate(expr.formula, known))

    def _values(self) -> dict[str, Any]:
        # A program's `R` is the step's axis.
        return {**self.sizes.env(self.rank), RANKS.name: self.sizes.along(self.step.axis), **self.names}

    # ------------------------------------------------------------------------------------------------ where an index lies
    def _tensor(self, param: str) -> TensorDecl:
        return self.plan.wiring.tensor(self.step.step.binding(param).tensor)

    def _index(self, param: str, index: tuple[IndexEntry, ...] | None) -> Indexed:
        return list(zip(self.step.step.binding(param).view, entries(self.step.step, param, index), strict=True))

    def _at(self, e: At) -> int:
        if e.ring is not None and e.ring[0] in self.names:
            return (self.names[e.ring[0]] + e.ring[1]) % self.sizes.along(self.step.axis)
        return self._number(e.expr)

    def _interval(self, param: str, v: ViewAxis, e: IndexEntry) -> Span:
        """Positions as the program counts them."""
        if isinstance(e, OfTile):
            return self.spans[e.var]
        if isinstance(e, At):
            at = self._at(e)
            return at, at + 1
        if isinstance(e, Gather):
            raise NotExact("an index of data")
        tensor = self._tensor(param)
        if v.axis is None:
            return 0, self.sizes.along(self.step.axis)
        of = tensor.axes[v.axis]
        if of.over is not None and not v.local:
            first = self.sizes.coordinate(self.rank, of.over) * self.sizes.part(of.size, of.over)
            return first, first + self.sizes.held(of.size, self.rank, of.over)
        return 0, self._extent(tensor, v)

    def _holders(self, param: str, index: Indexed) -> list[int]:
        """The ranks whose instance has the tile."""
        tensor = self._tensor(param)
        for v, e in index:
            if v.axis is None or not tensor.names_holder(v):
                continue
            held_by = plan_holder(tensor, v.axis, self._interval(param, v, e)[0])
            return [self._peer(self.sizes.value(held_by, self.rank), None)]
        return [*self.plan.topology.line(self.rank, self.step.axis)]

    def _instance(self, param: str, holder: int, *, pulled: bool = False) -> Instance | None:
        """None: the tensor lives in registers only."""
        tensor = self._tensor(param)
        buffer = self.plan.buffer_or_none(tensor.name)
        if buffer is None:
            return None
        return (f"{tensor.name}@stage" if buffer.staged and pulled else tensor.name), holder

    def _access(self, kind: str, param: str, index: Indexed, instance: Instance, holder: int, loc: Loc) -> None:
        box = self._box(param, index, instance, holder, loc)
        if box is not None and all(begin < end for begin, end in box):
            self.recorder.access(self.step.path, self.tile, kind, loc, Access(instance, box))

    def _box(self, param: str, index: Indexed, instance: Instance, holder: int, loc: Loc | None) -> Box | None:
        """None: a position past an edge, where nothing is read and nothing is written."""
        tensor = self._tensor(param)
        extents, own = self.sizes.extents(instance), self._brought(param)
        stored = [a for a, axis in enumerate(tensor.axes) if not axis.own_slice]
        box: dict[int, Span] = {a: (0, extents[k]) for k, a in enumerate(stored)}
        for v, e in index:
            if v.axis is None or tensor.axes[v.axis].own_slice:
                mine = self.sizes.coordinate(holder, self.step.axis)
                slice_ = mine if isinstance(e, Whole) else self._interval(param, v, e)[0]
                if slice_ != mine:
                    raise Outside(
                        f"slice {slice_} of `{param}` on rank {holder}", self.rank, self.step.path, self.tile, loc
                    )
                continue
            begin, end = self._interval(param, v, e)
            of = tensor.axes[v.axis]
            first, stop = self._there(tensor, v, holder)
            if isinstance(e, At) and not first <= begin < stop:
                return None
            if (of.over is not None and not v.local) or (own is not None and own.axis == v.axis):
                over = of.over or self.step.axis
                base = self.sizes.coordinate(holder, over) * self.sizes.part(of.size, over)
                begin, end = begin - base, end - base
            if begin < end and (begin < 0 or end > extents[stored.index(v.axis)]):
                raise Outside(f"`{param}` from {begin} to {end}", self.rank, self.step.path, self.tile, loc)
            box[v.axis] = begin, end
        return tuple(box[a] for a in stored)

    def _in_registers(self, param: str, index: Indexed) -> bool:
        """A forwarded tile: the host's, at this rank's slice where there are slices."""
        if self.step.step.binding(param).tensor not in self.step.forwarded:
            return False
        return all(self._at(e) == self.at for v, e in index if v.unit and isinstance(e, At))

    def _brought(self, param: str) -> InPlace | None:
        """What says that this tile of the parameter's tensor is read in this rank's own argument."""
        tensor = self._tensor(param)
        own = next((i for i in self.step.in_place if i.tensor == tensor.name), None)
        if (
            own is None
            or self.step.by_runs
            or self.spans[own.var][0] // self.sizes.part(tensor.axes[own.axis].size, self.step.axis) != self.at
        ):
            return None
        return own

    # ----------------------------------------------------------------------------------------------------------- signals
    def _signal(self, op: Wait | Notify) -> Signal | None:
        """None: what the plan does not mention is not emitted."""
        return next((s for s in self.plan.signals if s.path == self.step.path and s.op == op), None)

    def _hear(self, op: Wait, index: Indexed, source: int) -> None:
        signal = self._signal(op)
        words: list[Word] = []
        if signal is not None and signal.action == "await":
            words = [(self._channel(signal).name, self.rank, w) for w in self._words(op, signal, index, source)]
        elif signal is not None and signal.action == "ready":
            staged = self.plan.buffer(self._tensor(op.param).name).staged
            words = [("ready" if staged else "entered", self.rank, source)]
        peer = self._peer(self._at(op.peer), op.loc) if op.peer is not None else None
        self.recorder.signal(self.step.path, self.tile, "wait", op.loc, op.param, words, peer)

    def _tell(self, op: Notify, index: Indexed, holder: int | None) -> None:
        signal = self._signal(op)
        words: list[Word] = []
        if signal is not None and signal.action == "notify":
            name, told = self._channel(signal).name, self._told(op, signal, index, holder)
            words = [(name, rank, w) for w in self._words(op, signal, index, self.rank) for rank in told]
            words = [w for w in words if self._counts(self._channel(signal), w)]
        self.recorder.signal(self.step.path, self.tile, "notify", op.loc, op.param, words)

    def _counts(self, channel: Channel, word: Word) -> bool:
        """Whether the notify is given: a bell that nobody waits for is not even counted."""
        return not channel.counted or channel.rung(word[2], self.sizes.env(word[1]))

    def _channel(self, signal: Signal) -> Channel:
        assert signal.channel is not None
        return self.plan.channel(signal.channel)

    def _told(self, op: Notify, signal: Signal, index: Indexed, holder: int | None) -> list[int]:
        if signal.to == "self":
            return [self.rank]
        if signal.to == "peer" and op.peer is not None:
            return [self._peer(self._at(op.peer), op.loc)]
        if signal.to == "all":
            return [*self.plan.topology.line(self.rank, self.step.axis)] if holder is None else [holder]
        if holder is not None:
            return [holder]
        found = self._holders(op.param, index)
        return found if len(found) == 1 else [self._waiter(op, signal, index)]

    def _waiter(self, op: Notify, signal: Signal, index: Indexed) -> int:
        """Of a tensor that others pull: the rank whose part of the destination the tile belongs to."""
        axis = self._channel(signal).whose(self.step.axis)
        found = next(((v, e) for v, e in index if axis is not None and v.axis == axis.axis), None)
        if axis is None or found is None or not isinstance(found[1], OfTile):
            raise Outside(f"nobody says who hears of `{op.param}`", self.rank, self.step.path, self.tile, op.loc)
        return self._peer(self._interval(op.param, *found)[0] // self.sizes.part(axis.size, axis.over), op.loc)

    def _words(self, op: Wait | Notify, signal: Signal, index: Indexed, source: int) -> Iterator[int]:
        """The numbers of the words that an index touches."""
        channel = self._channel(signal)
        counts = [self.sizes.value(a.count, self.rank) for a in channel.axes]
        if isinstance(op, Wait) and 0 in counts:
            return
        spans = [
            self._source(op, axis, source, counts[k]) if axis.axis is None else self._along(op, axis, index)
            for k, axis in enumerate(channel.axes)
        ]
        for k, span in enumerate(spans):
            if span and not (span[0] >= 0 and span[-1] < counts[k]):
                raise Outside(f"word {span[-1]} of {counts[k]}", self.rank, self.step.path, self.tile, op.loc)
        for indices in product(*spans):
            flat = 0
            for i, count in zip(indices, counts, strict=True):
                flat = flat * count + i
            yield flat

    def _source(self, op: Wait | Notify, axis: ChannelAxis, source: int, count: int) -> range:
        """The word of a source rank; all of them, where every rank writes what is waited for."""
        if axis.every and isinstance(op, Wait) and op.peer is None:
            return range(count)
        at = self.sizes.coordinate(source, axis.over)
        return range(at, at + 1)

    def _along(self, op: Wait | Notify, axis: ChannelAxis, index: Indexed) -> range:
        found = next(((v, e) for v, e in index if v.axis == axis.axis), None)
        if found is None or not isinstance(found[1], (OfTile, At)):
            if found is not None and isinstance(found[1], Gather):
                raise NotExact("an index of data")
            return range(self.sizes.value(axis.filled, self.rank))
        v, e = found
        begin, end = self._interval(op.param, v, e)
        if isinstance(e, At) and isinstance(op, Wait):
            first, stop = self._there(self._tensor(op.param), v, self.rank if axis.kind == "part" else None)
            begin = max(min(begin, stop - 1), first)  # past an edge the nearest word is looked at
            end = begin + 1
        if axis.kind == "cut" and v.local:
            base = self.sizes.coordinate(self.rank, axis.over) * self.sizes.part(axis.size, axis.over)
            begin, end = begin + base, end + base
        first = self.sizes.at(axis.index(begin), self.rank)
        one = not isinstance(e, OfTile) or axis.kind == "unit" or axis.holds(self.grids[e.var])
        return range(first, (first if one else self.sizes.at(axis.index(max(end - 1, begin)), self.rank)) + 1)

    def _there(self, tensor: TensorDecl, v: ViewAxis, holder: int | None) -> Span:
        """The positions of an axis that a rank's instance has, as the program counts; None: those of all ranks together."""
        assert v.axis is not None
        of, end = tensor.axes[v.axis], self._extent(tensor, v)
        if of.over is None or v.local or holder is None:
            return 0, end
        part = self.sizes.part(of.size, of.over)
        first = self.sizes.coordinate(holder, of.over) * part
        return first, min(first + part, end)
