"""Programs whose tiles a library function computes: what their streams do on one rank.

Tile by tile: wait for what it reads, call the function on views of it, say that the tile is there. A function by runs is
called for each run of the axis that the program walks, behind the waits for this run, and its merge at last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.partition import here, part
from tilelink.ir.plan import InPlace, Plan, Signal, StepPlan
from tilelink.ir.program import Load, Notify, Store, Wait, walk
from tilelink.mapping.exact.runs import runs_of
from tilelink.mapping.exact.stream_ops import (
    BellWait,
    Compute,
    ComputeRun,
    MergeRuns,
    Piece,
    SetWord,
    StreamOp,
    WordWait,
)
from tilelink.mapping.exact.touched import Place, Span, touched
from tilelink.mapping.libraries import RUN, axis_of, tiled


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
        tile = _Tile(plan, step, rank, bounds, in_place)
        out[turn % step.streams] += _once(tile.by_runs(turn) if step.by_runs else tile.ops())
    return tuple(tuple(ops) for ops in out)


def _once(ops: Iterator[StreamOp]) -> Iterator[StreamOp]:
    """What has been waited for is there."""
    heard: set[StreamOp] = set()
    for op in ops:
        if op not in heard:
            yield op
        if isinstance(op, (BellWait, WordWait)):
            heard.add(op)


@dataclass(frozen=True, slots=True)
class _Tile:
    plan: Plan
    step: StepPlan
    rank: int
    bounds: tuple[Span, ...]
    """Of the domain's axes."""
    in_place: bool
    run: Span | None = None
    """Of the axis that the program walks; None: the function gets all of it."""

    def ops(self) -> Iterator[StreamOp]:
        yield from self._awaited(self._signals("await"))
        output = self._output()
        if output is not None:
            yield Compute(self._inputs(), output)
        yield from self._told_all()

    def by_runs(self, number: int) -> Iterator[StreamOp]:
        """`number`: of the tile among those of its streams."""
        waits = self._signals("await")
        first = [s for s in waits if RUN not in self._names(s.op)]
        yield from self._awaited(first)
        output = self._output()
        if output is not None:
            for run in runs_of(self.plan, self.step, self.rank, self.bounds):
                taken = replace(self, run=run)
                yield from taken._awaited([s for s in waits if s not in first])
                yield ComputeRun(taken._inputs(), self._place(run), number)
            yield MergeRuns(output, number)
        yield from self._told_all()

    def _place(self, run: Span) -> tuple[tuple[str, int, int], ...]:
        spans = [(g.dim, *b) for g, b in zip(self.step.grid, self.bounds, strict=True)]
        return (*spans, (axis_of(self.step).dim, *run))

    def _signals(self, action: str) -> list[Signal]:
        return [s for s in self.plan.signals if s.path == self.step.path and s.action == action]

    def _awaited(self, signals: list[Signal]) -> Iterator[StreamOp]:
        yield from dict.fromkeys(op for s in signals if isinstance(s.op, Wait) for op in self._waits(s))

    def _told_all(self) -> Iterator[StreamOp]:
        for s in self._signals("notify"):
            yield from self._tells(s)

    def _output(self) -> Piece | None:
        """None: there is nothing of it."""
        found = self._piece(self.step.step.program.domain)
        return found if all(lo < hi for lo, hi in found.bounds) else None

    def _inputs(self) -> tuple[Piece, ...]:
        return tuple(self._piece(p.name) for p in self.step.step.program.params if p.role == "in")

    def _names(self, op: Wait | Notify | Load | Store) -> tuple[str | None, ...]:
        return tiled(self.step.step, op.param, op.index, runs=self.step.by_runs)

    # -------------------------------------------------------------------------------------------------------- signals
    def _waits(self, signal: Signal) -> Iterator[StreamOp]:
        channel = self._channel(signal)
        names = self._names(signal.op)
        empty = any(lo >= hi for lo, hi in (self._tile(n) for n in names if n is not None))
        if empty or self._brought(channel.tensor) is not None:
            return
        whose = None if any(a.every for a in channel.axes) else self.rank
        for word in self._words(channel, signal.op, self.rank, whose):
            bell = channel.bells and not self.step.by_runs
            times = strokes(channel, word, self.plan.env(self.rank)) if bell else 0
            yield BellWait(channel.name, word, times) if bell else WordWait(channel.name, "channel", word)

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
        axis = channel.whose(self.step.axis)
        found = self._on_axis(signal.op, axis.axis) if axis is not None and axis.axis is not None else None
        assert axis is not None and found is not None, channel.name
        return [self.plan.topology.peer(self.rank, found[1][0] // self._value(axis.part), self.step.axis)]

    def _channel(self, signal: Signal) -> Channel:
        assert signal.channel is not None
        return self.plan.channel(signal.channel)

    def _words(self, channel: Channel, op: Wait | Notify, pe: int, source: int | None) -> list[int]:
        """Numbers of the words on rank `pe` that the tile touches; of those of source ranks all, or that of `source`."""
        return touched(self.plan, channel, lambda a: self._on_axis(op, a), rank=self.rank, pe=pe, source=source)

    def _on_axis(self, op: Wait | Notify, axis: int) -> Place | None:
        """The tile's positions on an axis of the tensor, as the program counts them; None: the index leaves it whole."""
        names = self._names(op)
        for v, name in zip(self.step.step.binding(op.param).view, names, strict=True):
            if v.axis == axis:
                return (v, self._tile(name)) if name is not None else None
        return None

    def _tile(self, name: str) -> Span:
        if name == RUN:
            assert self.run is not None
            return self.run
        return next(b for g, b in zip(self.step.grid, self.bounds, strict=True) if g.var == name)

    # ---------------------------------------------------------------------------------------------------------- memory
    def _piece(self, param: str) -> Piece:
        step = self.step.step
        binding = step.binding(param)
        tensor = self.plan.wiring.tensor(binding.tensor)
        used = [op for op in walk(step.program.body) if isinstance(op, (Load, Store)) and op.param == param]
        names = self._names(used[0]) if used else (None,) * len(binding.view)
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
        stored = tuple(bounds[a] for a, axis in enumerate(tensor.axes) if not axis.own_slice)
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


def strokes(channel: Channel, word: int, env: Mapping[str, F.Number]) -> int:
    """How often the bell of a word is rung in a call before the stream goes on that waits for it."""
    return int(F.evaluate(channel.target, channel.at(word, env))) if channel.counted else 1
