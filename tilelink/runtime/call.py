"""One call of a planned operator on one rank: the plan's host steps, in order, as work for the backend's streams.

What does not change between calls (slots' views, flags, sizes, copies) is resolved once per plan and slot; a cached call
allocates nothing but its results and does not synchronise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, TypeAlias

import torch

from tilelink.ir import formula as F
from tilelink.ir import lowered as L
from tilelink.ir import plan as H
from tilelink.ir import streams as S
from tilelink.ir.kernel import AWAIT_FLAG, Arg, KernelDecl, KernelSource, TraceLayout
from tilelink.ir.plan import COPIES, Plan, order_of
from tilelink.ir.schedule import ONE_BLOCK, ByRuns
from tilelink.ir.shape import RANK_AXIS
from tilelink.runtime import backend as W
from tilelink.runtime.backend import Backend
from tilelink.runtime.functions import explained, function_of
from tilelink.runtime.memory import DTYPES, Workspace, extents, largest

# ---------------------------------------------------------------------------------------------------------------------
# What a traced call writes down: kernels into memory of their own, streams as stamps.

UNKNOWN = 256
"""Tiles of a worker that there is room for where nobody knows how many there will be; further ones take the last place."""


@dataclass(frozen=True, slots=True)
class KernelEvents:
    """`memory`: per worker one flag for its multiprocessor, then `layout.slots` flags for each of `tiles` tiles, for each
    function that it runs in turn."""

    layout: TraceLayout
    workers: int
    tiles: int
    memory: torch.Tensor


Kind: TypeAlias = Literal["wait", "communicate", "compute"]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """What a stream did between two stamps, for step `path`."""

    stream: int
    path: str
    kind: Kind
    detail: str
    begin: Any
    end: Any


@dataclass(slots=True)
class CallEvents:
    """One traced call of one rank. Kernels' memory is the same in every call through a slot."""

    kernels: dict[str, KernelEvents] = field(default_factory=dict[str, KernelEvents])
    streams: list[StreamEvent] = field(default_factory=list[StreamEvent])

    def clear(self) -> None:
        """Forget the calls before."""
        self.streams.clear()
        for kernel in self.kernels.values():
            kernel.memory.zero_()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plan with its kernels, and what this rank's streams do, by executor of the lowered plan."""

    plan: Plan
    source: KernelSource
    module: ModuleType
    streams: Mapping[str, S.Actions]


@dataclass(frozen=True, slots=True)
class Slot:
    """The steps of a call on one slot. `events`: what the last calls have written down, where they are traced."""

    steps: tuple[W.Step, ...]
    events: CallEvents | None


def results_on(plan: Plan, rank: int) -> tuple[tuple[str, tuple[int, ...], torch.dtype], ...]:
    """Name, shape and dtype of each result on a rank."""
    buffers = [plan.buffer(name) for name in plan.wiring.results]
    return tuple((b.name, extents(plan, b, rank), DTYPES[b.dtype]) for b in buffers)


def prepare(loaded: Loaded, workspace: Workspace, slot: int, first: W.Call, watch: torch.Tensor | None = None) -> Slot:
    """A plan on one slot of one workspace, for calls with arguments like those of `first`."""
    events = CallEvents() if loaded.source.traces else None
    made = _Preparation(loaded, workspace, slot, first, watch, events)
    return Slot(tuple(made.steps()), events)


@dataclass(slots=True)
class _Preparation:
    loaded: Loaded
    workspace: Workspace
    slot: int
    first: W.Call
    watch: torch.Tensor | None
    events: CallEvents | None

    @property
    def backend(self) -> Backend:
        return self.workspace.backend

    @property
    def plan(self) -> Plan:
        return self.loaded.plan

    def steps(self) -> Iterator[W.Step]:
        for step in self.plan.host:
            if isinstance(step, (H.Transfer, H.Keep)):
                for k, done in enumerate(self.loaded.streams[step.executor]):
                    yield from (self._done(step.path, action, step.stream + k) for action in done)
            elif isinstance(step, H.CallEntry) and not self.plan.whole_call:
                yield self._launch("call_entry", H.MAIN)
            elif isinstance(step, H.Stage):
                (done,) = self.loaded.streams[step.executor]
                copies = (a for a in done if isinstance(a, S.Copy) and not a.source.empty)
                yield from (self._step(self._action("", copy), H.MAIN) for copy in copies)
                yield self._launch("ready", H.MAIN)  # which tells all
            elif isinstance(step, H.CallExit):
                yield self._launch("call_exit", H.MAIN)
            elif isinstance(step, H.Launch):
                yield self._launch(step.kernel, step.stream)
            elif isinstance(step, H.Fork):
                yield self._step(W.Follow(H.MAIN), step.stream)
            elif isinstance(step, H.Join):
                yield self._step(W.Follow(step.stream), H.MAIN)

    def _step(self, work: W.Work, stream: int) -> W.Step:
        return self.backend.step(work, stream, self.first)

    # ------------------------------------------------------------------------------------------------------------ streams
    def _done(self, path: str, action: S.Action, stream: int) -> W.Step:
        step, events = self._step(self._action(path, action), stream), self.events
        if events is None or isinstance(action, S.Set):
            return step
        kind, detail = self._said(path, action)

        def traced(call: W.Call) -> None:
            on = W.stream_of(stream, call)
            begin = on.stamp()
            step(call)
            events.streams.append(StreamEvent(stream, path, kind, detail, begin, on.stamp()))

        return traced

    def _said(self, path: str, action: S.Action) -> tuple[Kind, str]:
        """What is done, and in words what is copied or computed."""
        library = self.plan.step(path).library
        if isinstance(action, S.Compute) and library is not None:
            part = ", a run" if action.output is None else ", merging" if library.runs else ""
            return "compute", library.name + part
        if isinstance(action, S.Copy):
            pushed = action.source.rank == self.backend.rank
            return "communicate", f"to rank {action.target.rank}" if pushed else f"from rank {action.source.rank}"
        return "wait", ""

    def _action(self, path: str, action: S.Action) -> W.Work:
        if isinstance(action, S.Wait):
            return self._wait(path, action)
        if isinstance(action, S.Compute):
            return self._apply(path, action)
        if isinstance(action, S.Copy):
            return W.Copy(self._view(action.target), self._view(action.source))
        name, at, remote = f"{action.flags}.flags/{self.slot}", action.index, self._remote(action.rank)
        flags = self.workspace.view(name, torch.int64, at + 1, remote)
        return W.Copy(W.View(flags, ((at, at + 1),), remote), W.View(self._state("epoch"), ((0, 1),)))

    def _wait(self, path: str, action: S.Wait) -> W.Work:
        if action.style == "doorbell":
            return W.WaitDoorbell(self.flags(action.flags, "doorbells")[action.index : action.index + 1], action.times)
        own = L.STATES.get(action.flags)
        flags = self.flags(action.flags, "flags") if own is None else self._state(own)
        expected = (
            self.flags(action.flags, "expected")[action.index :] if action.style == "count" else self._state("epoch")
        )
        given: dict[str, W.Value] = {"flag_at": flags[action.index :], "value_at": expected}
        declared = self.loaded.source.kernel(AWAIT_FLAG).args
        if any(a.kind == "watch" for a in declared):
            sites = [(s.path, s.kind, s.of if s.kind == "channel" else "") for s in self.loaded.source.sites]
            site = (path, "channel", action.flags) if own is None else (path, own, "")
            given |= {"watch_at": self.watch, "site": sites.index(site), "flag": action.index}
        return W.Launch(self.loaded.module.await_flag, 1, {a.name: given[a.of] for a in declared}, ONE_BLOCK)

    def _apply(self, path: str, action: S.Compute) -> W.Apply:
        step = self.plan.step(path)
        assert step.library is not None
        function, name, constants = function_of(step.library.function), step.library.name, dict(step.step.constants)
        tile = f"{path}/{action.tile}" if step.library.runs else None
        if step.library.runs:
            assert isinstance(function, ByRuns), f"{name} is no function by panels"
            if action.output is None:
                constants = {**constants, "at": {dim: (begin, end) for dim, begin, end in action.at}}
            else:
                function, name, constants = function.merge, f"{name}'s merge", {}
        output = None if action.output is None else self._view(action.output)
        called = explained(function, constants, name, path, step.step.loc)
        return W.Apply(called, tuple(map(self._view, action.inputs)), output, tile)

    def _view(self, piece: S.Piece) -> W.View:
        """Part of an instance: this rank's, or a peer's."""
        tensor, staged = piece.buffer.removesuffix(L.STAGE), piece.buffer.endswith(L.STAGE)
        remote = self._remote(piece.rank)
        if staged or not self._comes_with_the_call(tensor):
            return W.View(self.buffer(tensor, remote), piece.box, remote)
        return W.View(W.Given(tensor), piece.box, remote, extents(self.plan, self.plan.buffer(tensor), piece.rank))

    def _remote(self, rank: int) -> int | None:
        return None if rank == self.backend.rank else rank

    # ---------------------------------------------------------------------------------------------------------- memory
    def buffer(self, tensor: str, pe: int | None = None) -> torch.Tensor:
        """This call's slot of a workspace buffer, in its shape."""
        shape = extents(self.plan, self.plan.buffer(tensor), self.backend.rank if pe is None else pe)
        return self.flat(tensor, pe)[: math.prod(shape)].view(shape)

    def flat(self, tensor: str, pe: int | None = None) -> torch.Tensor:
        """The same, as one run of at least one element: an address even where a rank holds nothing."""
        b = self.plan.buffer(tensor)
        return self.workspace.view(f"{tensor}/{self.slot % b.slots}", DTYPES[b.dtype], largest(self.plan, b), pe)

    def flags(self, of: str, what: str, slot: int | None = None) -> torch.Tensor:
        return self.workspace.words(f"{of}.{what}/{self.slot if slot is None else slot}")

    def _state(self, what: str) -> torch.Tensor:
        words = self.workspace.words(what)
        return words[COPIES * self.slot :][:COPIES] if what == "last" else words

    # --------------------------------------------------------------------------------------------------------- launches
    def _launch(self, name: str, stream: int) -> W.Step:
        decl = self.loaded.source.kernel(name)
        args = {a.name: self._value(a) for a in decl.args}
        work = W.Launch(getattr(self.loaded.module, name), self._workers(decl), args, decl.options)
        return self._step(work, stream)

    def _workers(self, decl: KernelDecl) -> int:
        assert decl.workers is not None
        if decl.tiles is None:
            return decl.workers
        tiles = int(F.evaluate(decl.tiles, self.plan.env(self.backend.rank)))
        return min(decl.workers, decl.extra + max(tiles, 1))

    def _value(self, arg: Arg) -> W.Value:
        if arg.kind == "credits":
            return W.Credits()
        if arg.kind == "scalar":
            path, _, constant = arg.of.rpartition(".")
            value = dict(self.plan.step(path).step.constants)[constant]
            assert isinstance(value, float)
            return value
        if arg.kind == "stride":
            assert arg.axis is not None
            return self.first.tensors[arg.of].stride(arg.axis)
        if arg.kind == "constant":
            return arg.value
        if arg.kind == "size":
            assert arg.formula is not None
            return int(F.evaluate(arg.formula, self.plan.env(self.backend.rank)))
        if arg.kind == "ll":
            return self.flags(arg.of, "ll", self.slot % self.plan.buffer(arg.of).slots)
        if arg.kind in ("flags", "epoch_flags", "expected", "doorbells", "counts", "made", "work_indices"):
            return self.flags(arg.of, arg.kind)
        if arg.kind == "context":
            own = bool(arg.of) and self._comes_with_the_call(arg.of) and not self.plan.buffer(arg.of).staged
            line = None if arg.along == RANK_AXIS else self.plan.topology.line(self.backend.rank, arg.along)
            return W.ContextOf(arg.of, line) if own else self.workspace.arena.along(line)
        if arg.kind == "watch":
            return self.watch
        if arg.kind == "order":
            return self._order(arg.of)
        if arg.kind == "state":
            return self._state(arg.of)
        if arg.kind in ("trace", "trace_tiles"):
            kept = self._events_of(arg.of)
            return kept.memory if arg.kind == "trace" else kept.tiles
        given = arg.kind != "stage" and self._comes_with_the_call(arg.of)
        if arg.kind == "descriptor":
            return W.Descriptor(W.Given(arg.of) if given else self.buffer(arg.of), arg.block, arg.axes, arg.parts)
        return W.Given(arg.of) if given else self.flat(arg.of)

    def _events_of(self, kernel: str) -> KernelEvents:
        assert self.events is not None
        if kernel in self.events.kernels:
            return self.events.kernels[kernel]
        layout = next(t for t in self.loaded.source.traces if t.kernel == kernel)
        left = workers = self._workers(self.loaded.source.kernel(kernel))
        tiles = 1  # the most that one worker takes, in any role
        for role in layout.roles:
            mine = role.workers if role.workers is not None else max(left, 1)
            left -= role.workers or 0
            total = UNKNOWN if role.total is None else int(F.evaluate(role.total, self.plan.env(self.backend.rank)))
            drawn = role.total is None or role.drawn
            tiles = max(tiles, min(total, UNKNOWN) if drawn else -(-total // mine))
        memory = self.backend.zeros(workers * (1 + layout.turns * tiles * layout.slots), torch.int64)
        made = self.events.kernels[kernel] = KernelEvents(layout, workers, tiles, memory)
        return made

    def _comes_with_the_call(self, tensor: str) -> bool:
        buffer = self.plan.buffer_or_none(tensor)  # of a tensor that nobody reads there are signals alone
        return buffer is not None and buffer.space in ("argument", "result")

    def _order(self, path: str) -> torch.Tensor:
        rows: Any = dict(self.plan.tables)[order_of(path)][self.backend.rank]
        table = self.backend.zeros(max(len(rows), 1), torch.int32)
        table[: len(rows)] = torch.tensor(rows, dtype=torch.int32, device="cpu")
        return table
