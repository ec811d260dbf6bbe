"""A plan played through element by element, with one worker per executor: slow, exact, and written without the proof.

Every rank's buffers know who wrote each element, and every agent knows which events have happened before its own: words
carry that from notify to wait. A read of an element whose write is not known to have happened is a race, whichever order
was played. What is emitted is followed op by op; copy engines run what `expand` writes out for them.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.plan import BellWait, Compute, Copy, GridAxis, Launch, Plan, SetWord, StepPlan, WordWait
from tilelink.ir.program import At, Bounds, Holder, If, Let, Load, Notify, OfTile, Op, Store, Tile, Tiles, Wait, walk
from tilelink.ir.wiring import ViewAxis, entries
from tilelink.mapping import expand
from tilelink.mapping.transfers import holder_of, tiles_of

Agent = Generator[Any, None, None]


class Wrong(Exception):
    """What goes wrong when the plan runs."""


@dataclass
class Buffer:
    writer: np.ndarray
    """Event that wrote the element, -1: none in this call."""
    times: np.ndarray


@dataclass
class Words:
    value: np.ndarray
    due: np.ndarray
    known: list[int]
    bell: np.ndarray


@dataclass
class Clock:
    """The events an agent knows of, as bits."""

    known: int = 0


@dataclass
class Replay:
    plan: Plan
    seed: int = 0
    events: int = 0
    buffers: dict[tuple[str, int], Buffer] = field(default_factory=dict)
    words: dict[tuple[str, int], Words] = field(default_factory=dict)
    finished: dict[tuple[str, int], int] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------------------------ running
    def run(self) -> None:
        ranks = range(self.plan.topology.ranks)
        for rank in ranks:
            self._allocate(rank)
        agents: list[Agent] = []
        for step in self.plan.steps:
            for rank in ranks:
                if step.engine == "workers":
                    agents.append(self._worker(step, rank))
                elif step.engine == "stream":
                    agents += [self._stream(ops, rank) for ops in expand(self.plan, step.path, rank)]
        self._play(agents)
        self._check_end()

    def _play(self, agents: list[Agent]) -> None:
        """Kernels of one stream wait for each other by what they read; here all run at once."""
        rng = random.Random(self.seed)
        blocked: dict[int, Any] = {}
        alive = dict(enumerate(agents))
        while alive:
            able = [k for k in alive if k not in blocked or blocked[k]()]
            if not able:
                raise Wrong(f"deadlock: {len(alive)} agents wait")
            k = rng.choice(able)
            try:
                blocked[k] = next(alive[k])
            except StopIteration:
                del alive[k]

    def _check_end(self) -> None:
        for (name, rank), w in self.words.items():
            if self.plan.channel(name).writers == "workers" and (w.value != w.due).any():
                raise Wrong(f"words of {name} on rank {rank}: {w.value} raised, {w.due} due")
            if w.bell.any():
                raise Wrong(f"a bell of {name} on rank {rank} is left ringing")
        for (name, rank), b in self.buffers.items():
            if (b.times > 1).any():
                raise Wrong(f"{name} on rank {rank} is written twice")
            if name in self.plan.wiring.results and (b.times != 1).any():
                raise Wrong(f"the result {name} on rank {rank} is not all written")

    def _allocate(self, rank: int) -> None:
        env = self.plan.env(rank)
        for b in self.plan.buffers:
            shape = tuple(int(F.evaluate(e, env)) for e in b.extents)
            self.buffers[(b.tensor, rank)] = Buffer(np.full(shape, -1), np.zeros(shape, int))
        for c in self.plan.channels:
            counts = [int(F.evaluate(a.count, env)) for a in c.axes]
            due = np.zeros(counts, int)
            for at in np.ndindex(*counts):
                cs = {f"c{k}": i for k, i in enumerate(at)}
                raised = c.guard is None or F.evaluate(c.guard, {**env, **cs})
                due[at] = F.evaluate(c.target, {**env, **cs}) if raised else 0
            flat = due.reshape(-1)
            none = np.zeros(len(flat), int)
            self.words[(c.name, rank)] = Words(none.copy(), flat, [0] * len(flat), none.copy())

    # ------------------------------------------------------------------------------------------------------------- memory
    def _event(self, clock: Clock) -> int:
        self.events += 1
        clock.known |= 1 << self.events
        return self.events

    def _write(self, clock: Clock, tensor: str, holder: int, where: Any) -> None:
        if self.plan.buffer_or_none(tensor) is None:
            return
        b = self.buffers[(tensor, holder)]
        b.writer[where] = self._event(clock)
        b.times[where] += 1

    def _read(self, clock: Clock, tensor: str, holder: int, where: Any, what: str) -> None:
        if self.plan.wiring.tensor(tensor).origin == "argument" or self.plan.buffer_or_none(tensor) is None:
            return
        for event in np.unique(self.buffers[(tensor, holder)].writer[where]):
            if event < 0 or not clock.known >> int(event) & 1:
                raise Wrong(f"{what} reads {tensor} of rank {holder} before it is there")

    def _raise(self, clock: Clock, channel: str, holder: int, word: int) -> None:
        c, w = self.plan.channel(channel), self.words[(channel, holder)]
        w.value[word] += 1
        w.known[word] |= clock.known
        if c.bells and c.scope == "gpu" and w.value[word] == w.due[word]:
            w.bell[word] = 1

    def _hear(self, clock: Clock, channel: str, rank: int, word: int) -> Iterator[Any]:
        c, w = self.plan.channel(channel), self.words[(channel, rank)]
        yield lambda: w.value[word] >= (1 if c.writers == "stream" else w.due[word])
        clock.known |= w.known[word]

    # ------------------------------------------------------------------------------------------------------- copy engines
    def _stream(self, ops: tuple[Any, ...], rank: int) -> Agent:
        clock = Clock()
        for op in ops:
            if isinstance(op, BellWait):
                w = self.words[(op.channel, rank)]
                yield lambda w=w, op=op: w.bell[op.word] == 1
                w.bell[op.word] = 0
                clock.known |= w.known[op.word]
            elif isinstance(op, WordWait):
                if op.kind == "channel":
                    yield from self._hear(clock, op.of, rank, op.word)
            elif isinstance(op, Copy):
                there = (op.pe, rank) if op.at == "target" else (rank, op.pe)
                source, target = (
                    self.buffers.get((n, r)) for n, r in zip((op.source, op.target), there[::-1], strict=True)
                )
                assert source is not None
                assert target is not None
                for there_at, here_at in op.runs():
                    self._check_run(op.source, source, slice(here_at, here_at + op.count), clock)
                    at = slice(there_at, there_at + op.count)
                    assert at.stop <= target.writer.size, "outside"
                    target.writer.reshape(-1)[at] = self._event(clock)
                    target.times.reshape(-1)[at] += 1
            elif isinstance(op, Compute):
                self._compute(op, rank, clock)
            elif isinstance(op, SetWord):
                w = self.words[(op.channel, op.pe)]
                w.value[op.word] += 1
                w.known[op.word] |= clock.known
            yield lambda: True

    def _compute(self, op: Compute, rank: int, clock: Clock) -> None:
        for piece in op.inputs:
            source = self.buffers.get((piece.tensor, rank))
            if source is None or self.plan.wiring.tensor(piece.tensor).origin == "argument":
                continue
            for event in np.unique(source.writer[tuple(slice(*b) for b in piece.bounds)]):
                if event < 0 or not clock.known >> int(event) & 1:
                    raise Wrong(f"a library function reads {piece.tensor} before it is there")
        target = self.buffers[(op.output.tensor, rank)]
        at = tuple(slice(*b) for b in op.output.bounds)
        assert all(b[1] <= n for b, n in zip(op.output.bounds, target.writer.shape, strict=True)), "outside"
        target.writer[at] = self._event(clock)
        target.times[at] += 1

    def _check_run(self, tensor: str, source: Buffer, run: slice, clock: Clock) -> None:
        assert run.stop <= source.writer.size, "outside"
        if self.plan.wiring.tensor(tensor).origin == "argument":
            return
        for event in np.unique(source.writer.reshape(-1)[run]):
            if event < 0 or not clock.known >> int(event) & 1:
                raise Wrong(f"a copy reads {tensor} before it is there")

    # ------------------------------------------------------------------------------------------------------------ workers
    def _worker(self, step: StepPlan, rank: int) -> Agent:
        clock = Clock()
        before = self._before(step)
        yield lambda: all((p, rank) in self.finished for p in before)
        for p in before:
            clock.known |= self.finished[(p, rank)]
        for tile in tiles_of(self.plan, step, rank):
            yield from self._tile(step, rank, clock, list(tile))
            for path in step.fused:
                follower = self.plan.step(path)
                own = self._fused_tile(follower, list(tile), rank)
                if own is not None:
                    yield from self._tile(follower, rank, clock, own)
            yield lambda: True
        self.finished[(step.path, rank)] = clock.known

    def _before(self, step: StepPlan) -> list[str]:
        """The roles of the kernels launched earlier on the same stream: they are through when a kernel begins."""
        kernels = {k.name: k for k in self.plan.kernels}
        launches = [h for h in self.plan.host if isinstance(h, Launch)]
        mine = next(i for i, h in enumerate(launches) if step.path in [p for p, _ in kernels[h.kernel].roles])
        earlier = [h for h in launches[:mine] if h.stream == launches[mine].stream]
        return [p for h in earlier for p, _ in kernels[h.kernel].roles]

    def _fused_tile(self, step: StepPlan, tile: list[tuple[int, int]], rank: int) -> list[tuple[int, int]] | None:
        tensor = self.plan.wiring.tensor(step.step.binding(step.domain).tensor)
        own: list[tuple[int, int]] = []
        for at, g, v in zip(step.host_axes, step.grid, step.step.binding(step.domain).view, strict=True):
            if at is None:
                own.append((rank, rank + 1))
                continue
            lo, hi = tile[at]
            part = self._part(g.size)
            assert v.axis is not None
            if step.own_rows and tensor.axes[v.axis].split == "R" and lo // part != rank:
                return None
            own.append((lo - rank * part, hi - rank * part) if v.local else (lo, hi))
        return own

    def _part(self, size: F.Formula) -> int:
        return max(1, -(-int(F.evaluate(size, self.plan.env(0))) // self.plan.topology.ranks))

    def _tile(self, step: StepPlan, rank: int, clock: Clock, tile: list[tuple[int, int]]) -> Iterator[Any]:
        if step.step.program.movement is not None:
            yield from _Movement(self, step, rank, clock, tile).run()
        else:
            yield from _Program(self, step, rank, clock, tile).run()


@dataclass
class _Run:
    replay: Replay
    step: StepPlan
    rank: int
    clock: Clock
    tile: list[tuple[int, int]]
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    grids: dict[str, GridAxis] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.replay.plan

    def index(self, param: str, index: Any) -> list[tuple[ViewAxis, Any]]:
        return list(zip(self.step.step.binding(param).view, entries(self.step.step, param, index), strict=True))

    def interval(self, param: str, v: ViewAxis, e: Any) -> tuple[int, int]:
        """Positions as the program counts them."""
        if isinstance(e, OfTile):
            return self.spans[e.var]
        if isinstance(e, At):
            at = self.at(e)
            return at, at + 1
        tensor = self.plan.wiring.tensor(self.step.step.binding(param).tensor)
        assert v.axis is not None
        size = int(F.evaluate(tensor.axes[v.axis].size, self.plan.env(self.rank)))
        part = self.replay._part(tensor.axes[v.axis].size)
        if tensor.axes[v.axis].split != "R":
            return 0, size
        here = max(0, min(size - self.rank * part, part))
        return (0, here) if v.local else (self.rank * part, self.rank * part + here)

    def at(self, e: At) -> int:
        if e.ring is not None:
            return (self.names[e.ring[0]] + e.ring[1]) % self.plan.topology.ranks
        assert e.expr.formula is not None
        return int(F.evaluate(e.expr.formula, {**self.plan.env(self.rank), **self.names}))

    def place(self, param: str, index: list[tuple[ViewAxis, Any]], holder: int) -> tuple[slice, ...]:
        tensor = self.plan.wiring.tensor(self.step.step.binding(param).tensor)
        where: dict[int, slice] = {a: slice(None) for a, x in enumerate(tensor.axes) if not x.own_slice}
        for v, e in index:
            if v.axis is None or tensor.axes[v.axis].own_slice:
                continue
            lo, hi = self.interval(param, v, e)
            if tensor.axes[v.axis].split == "R" and not v.local:
                base = holder * self.replay._part(tensor.axes[v.axis].size)
                lo, hi = lo - base, hi - base
            assert lo >= 0, "outside"
            where[v.axis] = slice(lo, hi)
        return tuple(where[a] for a in sorted(where))

    def holders(self, param: str, index: list[tuple[ViewAxis, Any]]) -> list[int]:
        tensor = self.plan.wiring.tensor(self.step.step.binding(param).tensor)
        for v, e in index:
            if v.axis is None or tensor.axes[v.axis].split != "R" or v.local:
                continue
            lo = self.interval(param, v, e)[0]
            return [lo if tensor.axes[v.axis].own_slice else lo // self.replay._part(tensor.axes[v.axis].size)]
        return list(range(self.plan.topology.ranks))

    def words(self, op: Any, index: list[tuple[ViewAxis, Any]], source: int) -> list[int]:
        """The words an index touches, as the emitted code has them."""
        signal = self.plan.signal(self.step.path, op)
        assert signal.channel is not None
        channel = self.plan.channel(signal.channel)
        env = self.plan.env(self.rank)
        spans: list[range] = []
        for axis in channel.axes:
            if axis.axis is None:
                spans.append(range(source, source + 1))
                continue
            entry = next(((v, e) for v, e in index if v.axis == axis.axis), None)
            if entry is None or not isinstance(entry[1], (OfTile, At)):
                spans.append(range(int(F.evaluate(axis.count, env))))
                continue
            lo, hi = self.interval(op.param, *entry)
            if axis.kind == "cut" and entry[0].local:
                base = self.rank * self.replay._part(axis.size)
                lo, hi = lo + base, hi + base
            first = int(F.evaluate(axis.index(lo), env))
            last = int(F.evaluate(axis.index(hi - 1), env))
            single = isinstance(entry[1], At) or axis.kind == "unit" or axis.holds(self.grids[entry[1].var])
            spans.append(range(first, (first if single else last) + 1))
        flat: list[int] = []
        for indices in product(*spans):
            flat.append(int(F.evaluate(channel.flat(indices), env)))
        return flat

    def hear(self, op: Wait, index: list[tuple[ViewAxis, Any]], source: int) -> Iterator[Any]:
        signal = self.plan.signal(self.step.path, op)
        if signal.action == "await":
            assert signal.channel is not None
            for word in self.words(op, index, source):
                yield from self.replay._hear(self.clock, signal.channel, self.rank, word)

    def tell(self, op: Notify, index: list[tuple[ViewAxis, Any]], holder: int | None) -> None:
        signal = self.plan.signal(self.step.path, op)
        if signal.action != "notify":
            return
        assert signal.channel is not None
        everyone = list(range(self.plan.topology.ranks))
        if signal.to == "self":
            told = [self.rank]
        elif signal.to == "peer":
            assert op.peer is not None
            told = [self.at(op.peer)]
        elif signal.to == "all":
            told = everyone if holder is None else [holder]
        else:
            found = [holder] if holder is not None else self.holders(op.param, index)
            told = found if len(found) == 1 or holder is not None else [self.waiter(signal.channel, op, index)]
        for word in self.words(op, index, self.rank):
            for rank in told:
                self.replay._raise(self.clock, signal.channel, rank, word)

    def waiter(self, channel: str, op: Notify, index: list[tuple[ViewAxis, Any]]) -> int:
        if self.plan.topology.ranks == 1:
            return 0
        axis = next(a for a in self.plan.channel(channel).axes if a.kind == "part")
        v, e = next((v, e) for v, e in index if v.axis == axis.axis)
        return self.interval(op.param, v, e)[0] // self.replay._part(axis.size)


class _Movement(_Run):
    def run(self) -> Iterator[Any]:
        movement = self.step.step.program.movement
        assert movement is not None
        for k, (span, g) in enumerate(zip(self.tile, self.step.grid, strict=True)):
            self.spans[str(k)], self.grids[str(k)] = span, g
        ops = list(walk(self.step.step.program.body))
        wait = next(op for op in ops if isinstance(op, Wait))
        notify = next(op for op in ops if isinstance(op, Notify))
        source = [(v, OfTile(str(k))) for k, v in enumerate(self.step.step.binding(movement.source).view)]
        target = [(v, OfTile(str(k))) for k, v in enumerate(self.step.step.binding(movement.destination).view)]
        tile = tuple(self.tile)
        holder = self.rank
        if not self.step.push:
            found = holder_of(self.plan, self.step, movement.source, tile, self.rank)
            holder = found if found is not None else self.rank
        yield from self.hear(wait, source, holder)
        names = [self.step.step.binding(p).tensor for p in (movement.source, movement.destination)]
        if names[0] not in self.step.forwarded:
            where = self.place(movement.source, source, holder)
            self.replay._read(self.clock, names[0], holder, where, self.step.path)
        peers = self.holders(movement.destination, target) if self.step.push else [self.rank]
        for peer in peers:
            if self.step.skip_own and self.step.push and peer == self.rank:
                continue
            self.replay._write(self.clock, names[1], peer, self.place(movement.destination, target, peer))
            self.tell(notify, target, peer if self.step.push and len(peers) > 1 else None)


class _Program(_Run):
    def run(self) -> Iterator[Any]:
        for span, g in zip(self.tile, self.step.grid, strict=True):
            if g.var is not None:
                self.spans[g.var], self.grids[g.var] = span, g
                if g.kind in ("unit", "own"):
                    self.names[g.var] = span[0]
        for name, value in self.step.step.constants:
            if isinstance(value, int):
                self.names[name] = int(value)
        yield from self.body(self.step.step.program.body)

    def body(self, body: tuple[Op, ...]) -> Iterator[Any]:
        for op in body:
            yield from self.op(op)

    def op(self, op: Op) -> Iterator[Any]:
        if isinstance(op, Tiles):
            yield from self.loop(op)
        elif isinstance(op, If):
            assert op.test.formula is not None
            env = {**self.plan.env(self.rank), **self.names}
            yield from self.body(op.body if F.evaluate(op.test.formula, env) else op.orelse)
        elif isinstance(op, Wait):
            index = self.index(op.param, op.index)
            if not self._in_registers(op.param, index):
                yield from self.hear(op, index, self.rank)
        elif isinstance(op, Notify):
            self.tell(op, self.index(op.param, op.index), None)
        elif isinstance(op, Load):
            index = self.index(op.param, op.index)
            if not self._in_registers(op.param, index):
                tensor = self.step.step.binding(op.param).tensor
                where = self.place(op.param, index, self.rank)
                self.replay._read(self.clock, tensor, self.rank, where, self.step.path)
        elif isinstance(op, Store):
            index = self.index(op.param, op.index)
            tensor = self.step.step.binding(op.param).tensor
            for holder in [self.rank] if op.to == "own" else self.holders(op.param, index):
                self.replay._write(self.clock, tensor, holder, self.place(op.param, index, holder))
        elif isinstance(op, Holder):
            found = self.holders(op.param, self.index(op.param, op.index))
            self.names[op.name] = found[0] if len(found) == 1 else self.rank
        else:
            assert isinstance(op, (Bounds, Let, Tile))

    def loop(self, op: Tiles) -> Iterator[Any]:
        assert (op.start, op.stop, op.part) == (None, None, None)
        view = self.step.step.binding(op.param).view[op.axis]
        grid = self.step.loop(view.dim)
        env = self.plan.env(self.rank)
        for i in range(int(F.evaluate(grid.count, env))):
            self.spans[op.var] = int(F.evaluate(grid.begin(i), env)), int(F.evaluate(grid.end(i), env))
            self.grids[op.var] = grid
            if view.unit:
                self.names[op.var] = self.spans[op.var][0]
            yield from self.body(op.body)

    def _in_registers(self, param: str, index: list[tuple[ViewAxis, Any]]) -> bool:
        """A forwarded tile: the host's, at this rank's slice where there are slices."""
        if self.step.step.binding(param).tensor not in self.step.forwarded:
            return False
        slices = [self.at(e) for v, e in index if v.unit and isinstance(e, At)]
        return all(s == self.rank for s in slices)


def replay(plan: Plan, seed: int = 0) -> None:
    """Raises:
    Wrong: a race, a count that does not come out, a deadlock, an element written twice or never.
    """
    Replay(plan, seed).run()
