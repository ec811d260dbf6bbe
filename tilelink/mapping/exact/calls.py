"""One call on every rank: its events and the order that workers, streams and the host give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from tilelink.errors import Loc
from tilelink.ir.host import MAIN, Enter, Fork, Join, Keep, Launch, Leave, Stage, Transfer
from tilelink.ir.partition import holder
from tilelink.ir.plan import KernelPlan, Plan, StepPlan
from tilelink.ir.program import Move, Notify, Store, Wait, walk
from tilelink.mapping.exact.by_runs import differs
from tilelink.mapping.exact.events import Access, Event, Instance, Recorder, Word
from tilelink.mapping.exact.outline import Outline, Signals, SomeSignal
from tilelink.mapping.exact.stream_ops import (
    BellWait,
    Compute,
    ComputeRun,
    Copy,
    MergeRuns,
    Piece,
    SetWord,
    StreamOp,
    WordWait,
)
from tilelink.mapping.exact.tiles import NotExact, Outside, Sizes, Span, TileRun
from tilelink.mapping.exact.transfers import issued, kept

Ops = TypeVar("Ops")
MOST_EVENTS = 20_000
"""Of all ranks in one call; beyond that a plan is no small world."""


@dataclass(slots=True)
class Call:
    """Events of one call, and edges between their numbers.

    `order`: what holds with any number of workers. `taken`: between the tiles of a worker that is alone. `first`, `last`:
    of each rank, by rank. `faults`: what is wrong with the call however it runs: (what, place, whether it does no harm).
    """

    events: list[Event] = field(default_factory=list[Event])
    order: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    taken: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    first: list[int] = field(default_factory=list[int])
    last: list[int] = field(default_factory=list[int])
    credits: dict[int, int] = field(default_factory=dict[int, int])
    """Rank -> the event that takes its credits."""
    faults: list[tuple[str, Loc | None, bool]] = field(default_factory=list[tuple[str, Loc | None, bool]])
    enters: bool = False
    unknown: list[SomeSignal] = field(default_factory=list[SomeSignal])
    """Of an outline: signals that data decides."""


def call_of(sizes: Sizes, *, outline: bool = False) -> Call:
    """
    Args:
        outline: only what happens whatever data says: signals, and that there are accesses between them.

    Raises:
    NotExact: data decides what happens, or there is too much of it.
    Outside: an access or a word that does not exist.
    """
    if sizes.plan.unverified:
        raise NotExact("a program uses raw pointers")
    tiles = sum(max(0, sizes.value(s.total, r)) for s in sizes.plan.steps if _counted(s) for r in range(sizes.ranks))
    if tiles > MOST_EVENTS:
        raise NotExact(f"{tiles} tiles")
    call = Call(enters=any(isinstance(h, Enter) for h in sizes.plan.host))
    for rank in range(sizes.ranks):
        _Host(sizes, call, rank, outline).run()
    return call


def _counted(step: StepPlan) -> bool:
    """Whether the number of its tiles is known."""
    return step.into is None and all(g.kind != "table" for g in step.grid)


@dataclass(slots=True)
class _Host:
    """The sequence of one rank."""

    sizes: Sizes
    call: Call
    rank: int
    outline: bool
    heads: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Stream -> what has to be over before its next work."""
    open_streams: set[int] = field(default_factory=set[int])
    started: list[str] = field(default_factory=list[str])

    @property
    def plan(self) -> Plan:
        return self.sizes.plan

    def run(self) -> None:
        arguments = [Access(i, box) for i, box in self._wholes(self.plan.wiring.arguments)]
        self.call.first.append(self._then(MAIN, self._event("the call begins", writes=arguments)))
        for h in self.plan.host:
            if isinstance(h, Enter):
                self._enter()
            elif isinstance(h, Stage):
                self._stage(h)
            elif isinstance(h, Leave):
                self._then(MAIN, self._event("leave", raises=self._all("left")))
                mine: list[Word] = [("left", self.rank, pe) for pe in range(self.sizes.ranks)]
                self._then(MAIN, self._event("wait for all to leave", waits=mine))
            elif isinstance(h, Fork):
                self.heads.setdefault(h.stream, []).extend(self.heads[MAIN])
                self.open_streams.add(h.stream)
            elif isinstance(h, Join):
                self.heads[MAIN] = [*self.heads[MAIN], *self.heads.get(h.stream, [])]
                self.open_streams.discard(h.stream)
            elif isinstance(h, Launch):
                self._launch(self.plan.kernel(h.kernel), h.stream)
            elif isinstance(h, Keep):
                step = self.plan.step(h.path)
                for position, op in enumerate(_written_out(kept, self.plan, step, self.rank)):
                    self._then(MAIN, self._stream_op(step, op, position))
            else:
                self._transfer(h)
        if not self.outline:
            self._check_taken()
        results = [Access(i, box) for i, box in self._wholes(self.plan.wiring.results)]
        self.call.last.append(self._then(MAIN, self._event("the call is over", reads=results)))
        if self.rank == 0:
            self._check_started()

    def _check_taken(self) -> None:
        for s in self.plan.steps:
            if s.into is None:
                counts = [self.sizes.value(g.count, self.rank) for g in s.grid]
                own = [g.kind == "own" for g in s.grid]
                taken = [
                    tuple(0 if o else i for o, i in zip(own, tile, strict=True))
                    for tile in tiles_of(self.sizes, s, self.rank)
                ]
                if sorted(taken) != list(np.ndindex(*counts)):
                    self.call.faults.append((f"`{s.path}` does not take each of its tiles once", s.step.loc, True))

            if s.behind:
                self._check_behind(s, self.plan.step(s.executor))

    def _check_behind(self, s: StepPlan, host: StepPlan) -> None:
        """Tickets stand for the last tiles of the host, one for each of this rank's own."""
        axis, at = s.own_axis or 0, self.sizes.coordinate(self.rank, s.axis)
        grid, tiles = host.grid[axis], tiles_of(self.sizes, host, self.rank)
        part = self.sizes.part(grid.size, grid.over)
        own = [self.sizes.at(grid.begin(tile[axis]), self.rank) // part == at for tile in tiles]
        count = self.sizes.value(s.own_tiles(host), self.rank) if s.own_axis is not None else -1
        if own != [k >= len(tiles) - count for k in range(len(tiles))]:
            self.call.faults.append((f"`{s.path}` takes other tiles than this rank's own", s.step.loc, False))
        kernel = self.plan.kernel_of(host)
        if kernel is not None and len(kernel.roles) > 1:
            self.call.faults.append((f"tickets for `{s.path}` are drawn by workers of other steps", s.step.loc, False))

    def _check_started(self) -> None:
        for s in self.plan.steps:
            times = self.started.count(s.executor)
            if times != 1:
                self.call.faults.append((f"`{s.path}` is started {times} times in a call", s.step.loc, False))
            for op in walk(s.step.program.body):
                said = [g for g in self.plan.signals if g.path == s.path and g.op == op]
                if isinstance(op, (Wait, Notify)) and len(said) != 1:
                    self.call.faults.append((f"the plan says {len(said)} things of a signal", op.loc, True))
            for g in (x for x in self.plan.signals if x.path == s.path and x.action == "notify"):
                if (self.plan.channel(g.channel or "").writers == "stream") != (s.engine == "stream"):
                    self.call.faults.append((f"`{s.path}` has words of another engine", g.op.loc, True))
            if s.skip_own and s.step.program.movement is not None and not s.push:
                self.call.faults.append((f"`{s.path}` pulls, and is to leave out what stays", s.step.loc, True))
        enters = [k for k, h in enumerate(self.plan.host) if isinstance(h, Enter)]
        if enters not in ([], [0]):
            self.call.faults.append(("something is done before the call is entered", self.plan.wiring.loc, False))
        for h in self.plan.host[:1]:
            if isinstance(h, Enter) and h.kernels and self.plan.host[1:] != tuple(Launch(k, MAIN) for k in h.kernels):
                self.call.faults.append(("other things are done than what ends the call", self.plan.wiring.loc, False))
        if self.open_streams:
            self.call.faults.append((f"side stream {min(self.open_streams)} is never joined", None, False))

    def _wholes(self, names: tuple[str, ...]) -> Iterator[tuple[Instance, tuple[Span, ...]]]:
        for name in dict.fromkeys(names):
            if self.plan.buffer_or_none(name) is not None:
                box = tuple((0, n) for n in self.sizes.extents((name, self.rank)))
                if all(end > 0 for _, end in box):
                    yield (name, self.rank), box

    # --------------------------------------------------------------------------------------------------------- host steps
    def _all(self, flag: str) -> list[Word]:
        return [(flag, pe, self.rank) for pe in range(self.sizes.ranks)]

    def _enter(self) -> None:
        self._then(MAIN, self._event("enter", raises=self._all("entered")))
        if any(c.implied_by is None for c in self.plan.credits):
            # Which call it waits for is put in when calls are strung together.
            self.call.credits[self.rank] = self._then(MAIN, self._event("take the credits"))

    def _stage(self, h: Stage) -> None:
        for tensor in h.tensors:
            found = dict(self._wholes((tensor,)))
            reads = [Access(i, box) for i, box in found.items()]
            writes = [Access((f"{tensor}@stage", self.rank), box) for box in found.values()]
            self._then(MAIN, self._event(f"stage {tensor}", reads=reads, writes=writes))
        self._then(MAIN, self._event("ready", raises=self._all("ready")))

    def _event(
        self,
        what: str,
        *,
        reads: list[Access] | None = None,
        writes: list[Access] | None = None,
        waits: list[Word] | None = None,
        raises: list[Word] | None = None,
    ) -> Event:
        event = Event(self.rank, "host", "host", "host", self.plan.wiring.loc, what=what)
        event.reads, event.writes = reads or [], writes or []
        event.waits, event.raises = waits or [], raises or []
        return event

    def _add(self, event: Event) -> int:
        self.call.events.append(event)
        if len(self.call.events) > MOST_EVENTS:
            raise NotExact(f"more than {MOST_EVENTS} events in a call")
        return len(self.call.events) - 1

    def _then(self, stream: int, event: Event) -> int:
        at = self._add(event)
        self.call.order += [(before, at) for before in self.heads.get(stream, [])]
        self.heads[stream] = [at]
        return at

    def _check_open(self, streams: range) -> None:
        shut = [s for s in streams if s != MAIN and s not in self.open_streams]
        if shut and self.rank == 0:
            self.call.faults.append((f"side stream {shut[0]} is used before it is forked", None, False))

    # ------------------------------------------------------------------------------------------------------------- kernels
    def _launch(self, kernel: KernelPlan, stream: int) -> None:
        self._check_open(range(stream, stream + 1))
        begin = self._then(stream, self._event(f"{kernel.name} starts"))
        ends: list[int] = []
        turn: int | None = None
        for path, _ in kernel.roles:
            made: list[int] = []
            self.started.append(path)
            step = self.plan.step(path)
            if self.outline and any(g.kind == "table" for g in step.grid):
                self._some_tile(step, begin, ends)
                continue
            before = turn if path in kernel.in_turn else None
            for strand, after in _strands(self.sizes, step, self.rank, self._recorder):
                numbers = self._strand(strand, begin)
                if after is not None and numbers:
                    self.call.order.append((made[after], numbers[0]))
                made.append(numbers[-1] if numbers else begin)
                if not numbers:
                    continue
                if before is not None:
                    self.call.taken.append((before, numbers[0]))
                before = numbers[-1]
                ends.append(before)
            turn = before if path in kernel.in_turn else turn
        end = self._add(self._event(f"{kernel.name} ends"))
        self.call.order += [(before, end) for before in (begin, *ends)]
        self.heads[stream] = [end]

    def _recorder(self, path: str, position: int) -> Recorder:
        return (
            Signals(self.rank, path, position, unknown=self.call.unknown)
            if self.outline
            else Recorder(self.rank, path, position)
        )

    def _some_tile(self, host: StepPlan, begin: int, ends: list[int]) -> None:
        """Any of the tiles that a table makes. There may be none, so that nobody hears of what they are through with."""
        recorder = Signals(self.rank, host.path, 0, unknown=self.call.unknown)
        for path in (host.path, *host.fused):
            Outline(self.sizes, self.plan.step(path), self.rank, (), recorder).any_tile()
        ends += self._somewhere(recorder.events, begin)
        self._strand(recorder.events, begin)

    def _somewhere(self, events: list[Event], begin: int) -> list[int]:
        """What tiles that there may be none of access, once more: behind the kernel's begin and before its end."""
        out: list[int] = []
        for path in dict.fromkeys(e.path for e in events if e.kind == "access"):
            out += self._strand([Event(self.rank, path, path, "access", None)], begin)
        for event in events:
            event.kind = "inner" if event.kind == "access" else event.kind
        return out

    def _strand(self, events: list[Event], begin: int) -> list[int]:
        numbers = [self._add(e) for e in events]
        self.call.order += list(zip([begin, *numbers], numbers, strict=False))
        return numbers

    # --------------------------------------------------------------------------------------------------------- copy engines
    def _transfer(self, h: Transfer) -> None:
        self.started.append(h.path)
        step = self.plan.step(h.path)
        self._check_open(range(h.stream, h.stream + step.streams))
        if step.library is None:
            self._check_slices(step)
        expanded = _written_out(issued, self.plan, step, self.rank)
        if step.by_runs and not self.outline:
            self._check_runs(step, [op for ops in expanded for op in ops])
        for k, ops in enumerate(expanded):
            for position, op in enumerate(ops):
                self._then(h.stream + k, self._stream_op(step, op, position))

    def _check_runs(self, step: StepPlan, ops: list[StreamOp]) -> None:
        """A function is given what its program reads."""
        for number, tile in enumerate(tiles_of(self.sizes, step, self.rank)):
            found = differs(
                self.sizes,
                step,
                self.rank,
                tile,
                [op for op in ops if isinstance(op, ComputeRun) and op.tile == number],
            )
            if found:
                self.call.faults.append((f"{found} on rank {self.rank}", step.step.loc, False))

    def _check_slices(self, step: StepPlan) -> None:
        """What every rank has a slice of is copied from, or to, this rank's own."""
        movement = step.step.program.movement
        assert movement is not None
        param = movement.source if step.push else movement.destination
        view = step.step.binding(param).view
        tensor = self.plan.wiring.tensor(step.step.binding(param).tensor)
        for a, (v, g) in enumerate(zip(view, step.grid, strict=True)):
            if g.kind == "own" or not (v.axis is None or tensor.axes[v.axis].own_slice):
                continue
            for tile in tiles_of(self.sizes, step, self.rank):
                at = self.sizes.at(g.begin(tile[a]), self.rank)
                if at != self.sizes.coordinate(self.rank, step.axis):
                    what = f"slice {at} of `{param}` on rank {self.rank}"
                    raise Outside(what, self.rank, step.path, tile, step.step.loc)

    def _stream_op(self, step: StepPlan, op: StreamOp, position: int) -> Event:
        body = list(walk(step.step.program.body))
        kinds = (
            (Move, Store)
            if isinstance(op, (Copy, Compute, ComputeRun, MergeRuns))
            else (Notify,)
            if isinstance(op, SetWord)
            else (Wait,)
        )
        loc = next((o.loc for o in body if isinstance(o, kinds)), step.step.loc)
        event = Event(self.rank, step.path, step.path, "copy", loc, position, what=step.path)
        if isinstance(op, Copy):
            event.reads, event.writes = self._flat(op, reading=True), self._flat(op, reading=False)
        elif isinstance(op, Compute):
            event.kind = "write"
            event.reads, event.writes = [self._part(p) for p in op.inputs], [self._part(op.output)]
        elif isinstance(op, ComputeRun):
            event.kind, event.reads = "read", [self._part(p) for p in op.inputs]
        elif isinstance(op, MergeRuns):
            event.kind, event.writes = "write", [self._part(op.output)]
        elif isinstance(op, SetWord):
            event.kind, event.raises = "notify", [(op.channel, op.pe, op.word)]
        elif isinstance(op, BellWait):
            event.kind, event.waits, event.bell = "wait", [(op.channel, self.rank, op.word)], True
        else:
            assert isinstance(op, WordWait)
            name = op.of if op.kind == "channel" else op.kind
            event.kind, event.waits = "wait", [(name, self.rank, op.word)]
        return event

    def _part(self, piece: Piece) -> Access:
        instance = piece.tensor, self.rank
        for (begin, end), extent in zip(piece.bounds, self.sizes.extents(instance), strict=True):
            if begin < 0 or end > extent:
                raise Outside(f"`{piece.tensor}` from {begin} to {end}", self.rank, "", (), None)
        return Access(instance, piece.bounds)

    def _flat(self, op: Copy, *, reading: bool) -> list[Access]:
        """Runs of elements; boxes of one axis over the flat instance."""
        name = op.source if reading else op.target
        there = (op.at == "source") == reading
        staged = reading and there and self.plan.buffer(name).staged
        instance = (f"{name}@stage" if staged else name), op.pe if there else self.rank
        total = int(np.prod(self.sizes.extents(instance)))
        found: list[Access] = []
        for run in op.runs():
            offset = run[1] if reading else run[0]
            if offset < 0 or offset + op.count > total:
                raise Outside(f"{op.count} elements of `{name}` from {offset} on", self.rank, "", (), None)
            found.append(Access(instance, ((offset, offset + op.count),)))
        return found


def _written_out(how: Callable[[Plan, str, int], Ops], plan: Plan, step: StepPlan, rank: int) -> Ops:
    try:
        return how(plan, step.path, rank)
    except AssertionError as error:
        raise Outside(f"`{step.path}` cannot be written out: {error}", rank, step.path, (), step.step.loc) from error


def _strands(
    sizes: Sizes, host: StepPlan, rank: int, made: Callable[[str, int], Recorder]
) -> Iterator[tuple[list[Event], int | None]]:
    """The events of each tile of a role in order, with those of what is fused into it; then those of what comes behind, with
    the position of the tile that it takes."""
    tiles = tiles_of(sizes, host, rank)
    fused = [sizes.plan.step(path) for path in host.fused]
    for position, tile in enumerate(tiles):
        recorder = made(host.path, position)
        _run(sizes, host, rank, tile, recorder)
        for follower in (s for s in fused if not s.behind):
            _follow(sizes, follower, rank, tile, recorder)
        yield recorder.events, None
    for position, tile in enumerate(tiles):
        recorder = made(host.path, position)
        for follower in (s for s in fused if s.behind):
            _follow(sizes, follower, rank, tile, recorder)
        if recorder.events:
            yield recorder.events, position


def _follow(sizes: Sizes, follower: StepPlan, rank: int, tile: tuple[int, ...], recorder: Recorder) -> None:
    at = sizes.coordinate(rank, follower.axis)
    own = tuple(tile[a] if a is not None else at for a in follower.host_axes)
    for piece in range(follower.pieces):
        _run(sizes, follower, rank, own, recorder, piece)


def tiles_of(sizes: Sizes, host: StepPlan, rank: int) -> list[tuple[int, ...]]:
    """The indices of the tiles that a rank takes, in order."""
    if any(g.kind == "table" for g in host.grid):
        raise NotExact(f"data says which tiles `{host.path}` has")
    return host.tiles(sizes.env(rank))


def _run(sizes: Sizes, step: StepPlan, rank: int, tile: tuple[int, ...], recorder: Recorder, piece: int = 0) -> None:
    """`piece`: of the columns, the last axis, where a fused step takes its host's tile piece by piece."""
    bounds: list[Span] = []
    view = step.step.binding(step.domain).view
    tensor = sizes.plan.wiring.tensor(step.step.binding(step.domain).tensor)
    for g, v, i in zip(step.grid, view, tile, strict=True):
        mine = sizes.coordinate(rank, step.axis)
        if g.kind == "own":
            bounds.append((mine, mine + 1))
            continue
        begin, end = sizes.at(g.begin(i), rank), sizes.at(g.end(i), rank)
        if step.into is not None and v.axis is not None:
            # A fused step is called with its host's tile: for own rows only where it has only those.
            part = sizes.part(g.size, g.over)
            if step.own_rows and tensor.axes[v.axis].over == step.axis and begin // part != mine:
                return
            if v.local and step.own_rows and tensor.axes[v.axis].over == step.axis:
                begin, end = begin - mine * part, end - mine * part
        owned = step.own_rows and v.axis is not None and v.axis == tensor.owned
        if owned and sizes.value(holder(tensor, v.axis or 0, begin), rank) != mine:
            return
        bounds.append((begin, end))
    if step.pieces > 1:
        step = _in_pieces(step)
        width, (begin, end) = step.grid[-1].tile or 0, bounds[-1]
        bounds[-1] = begin + piece * width, min(begin + (piece + 1) * width, end)
        if bounds[-1][0] >= bounds[-1][1]:
            return
    if isinstance(recorder, Signals):
        Outline(sizes, step, rank, tile, recorder).run(tuple(bounds))
    else:
        TileRun(sizes, step, rank, tile, recorder).run(tuple(bounds))


def _in_pieces(step: StepPlan) -> StepPlan:
    """The step with tiles as long as its pieces."""
    last = step.grid[-1]
    assert last.tile is not None
    return replace(step, grid=(*step.grid[:-1], replace(last, tile=last.tile // step.pieces)))
