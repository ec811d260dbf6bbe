"""Programs whose tiles a library function computes: which can be, and what their streams do on one rank.

A stream waits for what a tile reads, calls the function on views of it, and says that the tile is there. The program keeps
its meaning: its waits, loads, stores and notifies say what is read and written, and the proof goes by them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.host import BellWait, Compute, Piece, SetWord, StreamOp, WordWait
from tilelink.ir.partition import here, part
from tilelink.ir.plan import InPlace, Plan, Signal, StepPlan
from tilelink.ir.program import (
    At,
    If,
    Index,
    Load,
    Loop,
    Notify,
    OfTile,
    Store,
    TileProgram,
    Tiles,
    Wait,
    Whole,
    is_raw,
    tile_names,
    walk,
)
from tilelink.ir.schedule import Library
from tilelink.ir.wiring import Step, ViewAxis, Wiring, entries

Span = tuple[int, int]


# --------------------------------------------------------------------------------------------------------- what can be so
def unsuitable(step: Step, wiring: Wiring, placement: Library) -> str | None:
    """Why a library function cannot compute the step's tiles from views of its tensors; None: it can."""
    program = step.program
    if program.movement is not None:
        return "it only moves: there is nothing to compute"
    if is_raw(program):
        return "it takes pointers, and nobody knows what lies behind them"
    return _of_tensors(step, wiring) or _of_body(step) or _of_tiles(step, placement)


def _of_tensors(step: Step, wiring: Wiring) -> str | None:
    outputs = [p.name for p in step.program.params if p.role == "out"]
    if outputs != [step.program.domain]:
        return "a library function makes one tensor, tile by tile, and this program is not made so"
    for b in step.bindings:
        tensor = wiring.tensor(b.tensor)
        if any(v.axis is None or tensor.axes[v.axis].own_slice for v in b.view) or tensor.owned is not None:
            return f"`{b.param}` is a slice that the rank's number chooses, and the function gets plain views"
        if any(a.split != a.over for a in tensor.axes):
            return f"`{b.param}` is split at run time, and views are cut before"
    unit = next((v.dim for v in step.binding(step.program.domain).view if v.unit), None)
    return f"it walks `{unit}` one at a time" if unit is not None else None


def _of_body(step: Step) -> str | None:
    program, loops = step.program, _loops(step.program)
    for op in walk(program.body):
        if isinstance(op, (If, Loop)):
            return "it branches or loops, and a function takes each tile whole"
        if isinstance(op, Tiles) and not (op.start is op.stop is op.part is None):
            return "it walks a part of an axis, and the function gets all of it"
        if isinstance(op, (Load, Store, Wait, Notify)) and not all(
            _is_slice(e, loops) for e in entries(step, op.param, op.index)
        ):
            return f"it takes `{op.param}` at places that a view does not have"
        if isinstance(op, (Wait, Notify)) and op.peer is not None:
            return "it names its peers"
        if isinstance(op, Load) and program.param(op.param).role == "out":
            return f"it reads `{op.param}`, which it writes"
    return _of_accesses(step, program)


def _of_accesses(step: Step, program: TileProgram) -> str | None:
    stores = [op for op in walk(program.body) if isinstance(op, Store)]
    names = tile_names(program)
    whole = all(
        isinstance(e, OfTile) and e.var == n
        for s in stores
        for e, n in zip(entries(step, s.param, s.index), names, strict=False)
    )
    if len(stores) != 1 or stores[0] not in program.body or stores[0].mask or stores[0].to != "own" or not whole:
        return "it does not store each tile once, as a whole and at home"
    if any(
        isinstance(op, Notify) and (op not in program.body or op.param != program.domain) for op in walk(program.body)
    ):
        return "it notifies more than the tile that it has stored"
    for p in program.params:
        loads = [op for op in walk(program.body) if isinstance(op, Load) and op.param == p.name]
        if len({_tiled(step, op.param, op.index) for op in loads}) > 1:
            return f"it reads `{p.name}` at two tiles, and the function gets one view of it"
    return None


def _of_tiles(step: Step, placement: Library) -> str | None:
    dims = {v.dim for v in step.binding(step.program.domain).view}
    loose = next((dim for dim, _ in placement.tile if dim not in dims and _has(step, dim)), None)
    return f"the function gets all of `{loose}`, which is no axis of what it makes" if loose is not None else None


def _has(step: Step, dim: str) -> bool:
    return any(v.dim == dim for b in step.bindings for v in b.view)


def _loops(program: TileProgram) -> frozenset[str]:
    return frozenset(op.var for op in walk(program.body) if isinstance(op, Tiles))


def _is_slice(entry: object, loops: frozenset[str]) -> bool:
    return isinstance(entry, (Whole, OfTile)) or (isinstance(entry, At) and entry.expr.text in loops)


def _tiled(step: Step, param: str, index: Index | None) -> tuple[str | None, ...]:
    """Per axis the tile of the domain that an index names; None: all of the axis."""
    loops = _loops(step.program)
    return tuple(e.var if isinstance(e, OfTile) and e.var not in loops else None for e in entries(step, param, index))


# ------------------------------------------------------------------------------------------------------- what streams do
def applied(
    plan: Plan, step: StepPlan, tiles: list[tuple[Span, ...]], rank: int, *, in_place: bool
) -> tuple[tuple[StreamOp, ...], ...]:
    """The steps of a library function on rank `rank`, one tuple per side stream.

    Args:
        tiles: of the step on the rank, in order.
        in_place: take what the rank has brought along from where it lies.
    """
    out: list[list[StreamOp]] = [[] for _ in range(step.streams)]
    for turn, bounds in enumerate(tiles):
        out[turn % step.streams] += _Tile(plan, step, rank, bounds, in_place).ops()
    return tuple(tuple(ops) for ops in out)


@dataclass(frozen=True, slots=True)
class _Tile:
    plan: Plan
    step: StepPlan
    rank: int
    bounds: tuple[Span, ...]
    """Of the domain's axes."""
    in_place: bool

    def ops(self) -> Iterator[StreamOp]:
        program = self.step.step.program
        signals = [s for s in self.plan.signals if s.path == self.step.path]
        waits = [op for s in signals if isinstance(s.op, Wait) and s.action == "await" for op in self._waits(s)]
        yield from dict.fromkeys(waits)
        output = self._piece(program.domain)
        if all(lo < hi for lo, hi in output.bounds):
            yield Compute(tuple(self._piece(p.name) for p in program.params if p.role == "in"), output)
        for s in signals:
            if isinstance(s.op, Notify) and s.action == "notify":
                yield from self._tells(s)

    # -------------------------------------------------------------------------------------------------------- signals
    def _waits(self, signal: Signal) -> Iterator[StreamOp]:
        channel = self._channel(signal)
        names = _tiled(self.step.step, signal.op.param, signal.op.index)
        empty = any(lo >= hi for lo, hi in (self._tile(n) for n in names if n is not None))
        if empty or self._brought(channel.tensor) is not None:
            return
        for word in self._words(channel, signal.op, self.rank, None):
            bell = channel.bells and channel.scope == "gpu"
            yield BellWait(channel.name, word) if bell else WordWait(channel.name, "channel", word)

    def _tells(self, signal: Signal) -> Iterator[StreamOp]:
        channel = self._channel(signal)
        for pe in self._told(channel, signal):
            found = self._words(channel, signal.op, pe, self.rank)
            assert len(found) == 1, (channel.name, found)
            yield SetWord(channel.name, found[0], pe)

    def _told(self, channel: Channel, signal: Signal) -> list[int]:
        """Of a tensor that others pull: all, or the rank whose part of the destination the tile belongs to."""
        if signal.to == "self":
            return [self.rank]
        if signal.to == "all":
            return [*self.plan.topology.line(self.rank, self.step.axis)]
        axis = next((a for a in channel.axes if a.kind == "part" and a.axis is not None), None)
        found = self._on_axis(signal.op, axis.axis) if axis is not None else None
        assert axis is not None and found is not None, channel.name
        return [self.plan.topology.peer(self.rank, found[1][0] // self._value(axis.part), self.step.axis)]

    def _channel(self, signal: Signal) -> Channel:
        assert signal.channel is not None
        return self.plan.channel(signal.channel)

    def _words(self, channel: Channel, op: Wait | Notify, pe: int, source: int | None) -> list[int]:
        """Numbers of the words on rank `pe` that the tile touches; of those of source ranks all, or that of `source`."""
        env = self.plan.env(pe)
        spans: list[range] = []
        for axis in channel.axes:
            found = self._on_axis(op, axis.axis)
            if axis.axis is None and source is not None:
                spans.append(range(self._at(axis.over), self._at(axis.over) + 1))
            elif found is None:
                spans.append(range(int(F.evaluate(axis.count, env))))
            else:
                v, (lo, hi) = found
                base = self._at(axis.over) * self._value(axis.part) if axis.kind == "cut" and v.local else 0
                first, last = (int(F.evaluate(axis.index(base + at), env)) for at in (lo, max(lo, hi - 1)))
                spans.append(range(first, last + 1 if hi > lo else first))
        return [int(F.evaluate(channel.flat(indices), env)) for indices in itertools.product(*spans)]

    def _on_axis(self, op: Wait | Notify, axis: int | None) -> tuple[ViewAxis, Span] | None:
        """The tile's positions on an axis of the tensor, as the program counts them; None: the index leaves it whole."""
        names = _tiled(self.step.step, op.param, op.index)
        for v, name in zip(self.step.step.binding(op.param).view, names, strict=True):
            if v.axis == axis and axis is not None:
                return (v, self._tile(name)) if name is not None else None
        return None

    def _tile(self, name: str) -> Span:
        return next(b for g, b in zip(self.step.grid, self.bounds, strict=True) if g.var == name)

    # ---------------------------------------------------------------------------------------------------------- memory
    def _piece(self, param: str) -> Piece:
        step = self.step.step
        binding = step.binding(param)
        tensor = self.plan.wiring.tensor(binding.tensor)
        used = [op for op in walk(step.program.body) if isinstance(op, (Load, Store)) and op.param == param]
        names = _tiled(step, param, used[0].index) if used else (None,) * len(binding.view)
        brought = self._brought(tensor.name)
        bounds: dict[int, Span] = {}
        for v, name in zip(binding.view, names, strict=True):
            assert v.axis is not None
            axis = tensor.axes[v.axis]
            lo, hi = self._tile(name) if name is not None else (0, self._value(axis.size))
            if axis.over is not None and not v.local and name is not None:
                first = self._at(axis.over) * self._value(part(axis.size, axis.over))
                lo, hi = lo - first, hi - first
            elif axis.over is not None and name is None:
                lo, hi = 0, self._value(here(axis.size, over=axis.over))
            bounds[v.axis] = lo, hi
        if brought is not None:
            first = self.rank * self._value(part(tensor.axes[brought.axis].size))
            bounds[brought.axis] = bounds[brought.axis][0] - first, bounds[brought.axis][1] - first
        stored = tuple(bounds[a] for a in range(len(tensor.axes)))
        return Piece(tensor.name if brought is None else brought.source, stored)

    def _brought(self, tensor: str) -> InPlace | None:
        """How the tile of a tensor is read in what this rank has brought along; None: it is not."""
        found = next((i for i in self.step.in_place if i.tensor == tensor), None)
        if found is None or not self.in_place:
            return None
        size = self.plan.wiring.tensor(tensor).axes[found.axis].size
        return found if self._tile(found.var)[0] // self._value(part(size)) == self.rank else None

    def _at(self, over: str) -> int:
        """This rank's coordinate on an axis of ranks."""
        return self.plan.topology.at(self.rank, over)

    def _value(self, formula: F.Formula) -> int:
        return int(F.evaluate(formula, self.plan.env(self.rank)))
