"""One call of a planned operator on one rank: the plan's host steps, in order, on the world's streams.

What does not change between calls (slots' views, words, sizes, copies) is resolved once per plan and slot; a cached call
allocates nothing but its results and does not synchronise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from tilelink.ir import formula as F
from tilelink.ir import plan as P
from tilelink.ir.kernel import Arg, KernelDecl, KernelSource
from tilelink.ir.plan import Plan
from tilelink.runtime.memory import DTYPES, Workspace, extents, largest
from tilelink.runtime.world import Descriptor, Event, Stream, World

Tensors = Mapping[str, torch.Tensor]
Action = Callable[["Running"], None]
Arguments = Callable[["Running"], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plan with its kernels: what `load` gives."""

    plan: Plan
    source: KernelSource
    module: ModuleType
    transfers: Mapping[str, tuple[tuple[P.StreamOp, ...], ...]]


@dataclass(slots=True)
class Running:
    """The state of one call: tensors by name, scalars by `path.name`, forked streams."""

    tensors: Tensors
    scalars: Mapping[str, float]
    credits: int
    main: Stream
    events: dict[int, Event]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with its launch parameters; `arguments` gives them their values in a call."""

    function: Any
    workers: int
    warps: int
    stages: int
    arguments: Arguments

    def launch(self, stream: Stream, running: Running) -> None:
        stream.launch(self.function, self.workers, self.arguments(running), warps=self.warps, stages=self.stages)

    def load(self, running: Running) -> None:
        running.main.load(self.function, self.workers, self.arguments(running), warps=self.warps, stages=self.stages)


@dataclass(slots=True)
class Prepared:
    """A plan on one slot of one workspace."""

    actions: tuple[Action, ...]
    kernels: tuple[Kernel, ...]
    loaded: bool = False

    def run(self, world: World, tensors: Tensors, scalars: Mapping[str, float], credits: int) -> None:
        running = Running(tensors, scalars, credits, world.main_stream(), {})
        if not self.loaded:
            for kernel in self.kernels:
                kernel.load(running)
            self.loaded = True
        for action in self.actions:
            action(running)


def prepare(loaded: Loaded, workspace: Workspace, slot: int) -> Prepared:
    return _Preparation(loaded, workspace, slot).prepared()


@dataclass(slots=True)
class _Preparation:
    loaded: Loaded
    workspace: Workspace
    slot: int
    kernels: list[Kernel] = field(default_factory=list[Kernel])

    @property
    def world(self) -> World:
        return self.workspace.world

    @property
    def plan(self) -> Plan:
        return self.loaded.plan

    def prepared(self) -> Prepared:
        actions: list[Action] = []
        for step in self.plan.host:
            actions += self._actions(step)
        return Prepared(tuple(actions), tuple(self.kernels))

    def _actions(self, step: P.HostStep) -> list[Action]:
        if isinstance(step, P.Enter):
            return [self._launch("enter", P_MAIN)]
        if isinstance(step, P.Stage):
            return [*(self._stage(t) for t in step.tensors), self._launch("ready", P_MAIN)]
        if isinstance(step, P.Leave):
            return [self._launch("leave", P_MAIN)]
        if isinstance(step, P.Launch):
            return [self._launch(step.kernel, step.stream)]
        if isinstance(step, P.Fork):
            return [self._fork(step.stream)]
        if isinstance(step, P.Join):
            return [self._join(step.stream)]
        out: list[Action] = []
        for k, ops in enumerate(self.loaded.transfers[step.path]):
            for op in ops:
                out.append(self._transfer(op, step.stream + k))
        return out

    # ------------------------------------------------------------------------------------------------ streams and copies
    def _fork(self, stream: int) -> Action:
        side = self.world.side_stream(stream)

        def fork(running: Running) -> None:
            side.wait(running.main.record())

        return fork

    def _join(self, stream: int) -> Action:
        side = self.world.side_stream(stream)

        def join(running: Running) -> None:
            running.main.wait(side.record())

        return join

    def _stage(self, tensor: str) -> Action:
        # The staged instance has a whole part on every rank; the last ranks fill less of it.
        target = self.buffer(tensor)

        def stage(running: Running) -> None:
            given = running.tensors[tensor]
            if given.numel():
                running.main.copy(target[tuple(slice(0, n) for n in given.shape)], given)

        return stage

    def _transfer(self, op: P.StreamOp, stream: int) -> Action:
        side = self.world.side_stream(stream)
        if isinstance(op, P.BellWait):
            bell = self.words(op.channel, "bells")[op.word : op.word + 1]
            return lambda running: side.wait_bell(bell)
        if isinstance(op, P.SetWord):
            name = f"{op.channel}.words/{self.slot}"
            count = op.word + 1
            word = self.workspace.view(name, torch.int64, count, None if op.pe == self.world.rank else op.pe)[op.word :]
            epoch = self.workspace.view("epoch", torch.int64, 1)
            return lambda running: side.copy(word, epoch)
        if isinstance(op, P.WordWait):
            return self._word_wait(op, side)
        return self._copy(op, side)

    def _word_wait(self, op: P.WordWait, side: Stream) -> Action:
        if op.kind == "channel":
            word = self.words(op.of, "words")[op.word :]
            stream_written = self.plan.channel(op.of).writers == "stream"
            value = (
                self.workspace.view("epoch", torch.int64, 1) if stream_written else self.words(op.of, "due")[op.word :]
            )
        else:
            word = self.workspace.view(op.kind, torch.int64, self.world.ranks)[op.word :]
            value = self.workspace.view("epoch", torch.int64, 1)
        args = {"word_at": word, "value_at": value}
        kernel = Kernel(self.loaded.module.await_word, 1, 1, 1, lambda running: args)
        self.kernels.append(kernel)
        return lambda running: kernel.launch(side, running)

    def _copy(self, op: P.Copy, side: Stream) -> Action:
        target = self._side_of(op.target, op.pe if op.at == "target" else None)
        source = self._side_of(op.source, op.pe if op.at == "source" else None)

        def copy(running: Running) -> None:
            to, frm = target(running), source(running)
            side.copy(
                to[op.target_offset : op.target_offset + op.count], frm[op.source_offset : op.source_offset + op.count]
            )

        return copy

    def _side_of(self, tensor: str, pe: int | None) -> Callable[[Running], torch.Tensor]:
        """The flat instance of a tensor: this rank's, or that of rank `pe`."""
        b = self.plan.buffer(tensor)
        remote = pe is not None and pe != self.world.rank
        if b.space in ("argument", "result") and not (b.staged and pe is not None):
            if pe is not None and remote:
                instance = self.world.symmetric_arena
                return lambda running: instance(running.tensors[tensor], pe)
            return lambda running: running.tensors[tensor].view(-1)
        flat = self.flat(tensor, pe if remote else None)
        return lambda running: flat

    # ---------------------------------------------------------------------------------------------------------- memory
    def buffer(self, tensor: str, pe: int | None = None) -> torch.Tensor:
        """This call's slot of a workspace buffer, in its shape."""
        shape = extents(self.plan, self.plan.buffer(tensor), self.world.rank)
        return self.flat(tensor, pe)[: math.prod(shape)].view(shape)

    def flat(self, tensor: str, pe: int | None = None) -> torch.Tensor:
        """The same, as one run of at least one element: an address even where a rank holds nothing."""
        b = self.plan.buffer(tensor)
        return self.workspace.view(f"{tensor}/{self.slot % b.slots}", DTYPES[b.dtype], largest(self.plan, b), pe)

    def words(self, channel: str, what: str) -> torch.Tensor:
        name = f"{channel}.{what}/{self.slot}"
        return self.workspace.view(name, torch.int64, self.workspace.capacity[name].nbytes // 8)

    # --------------------------------------------------------------------------------------------------------- launches
    def _launch(self, name: str, stream: int) -> Action:
        decl = self.loaded.source.kernel(name)
        side = None if stream == P_MAIN else self.world.side_stream(stream)
        fixed = {a.name: self._fixed(a) for a in decl.args if not self._varies(a)}
        varying = tuple((a.name, self._varying(a)) for a in decl.args if self._varies(a))

        def arguments(running: Running) -> dict[str, Any]:
            return fixed | {n: value(running) for n, value in varying}

        kernel = Kernel(getattr(self.loaded.module, name), self._workers(decl), decl.warps, decl.stages, arguments)
        self.kernels.append(kernel)
        return lambda running: kernel.launch(side or running.main, running)

    def _workers(self, decl: KernelDecl) -> int:
        assert decl.workers is not None
        if decl.tiles is None:
            return decl.workers
        tiles = int(F.evaluate(decl.tiles, self.plan.env(self.world.rank)))
        return min(decl.workers, decl.extra + max(tiles, 1))

    def _varies(self, arg: Arg) -> bool:
        if arg.kind in ("credits", "scalar", "stride"):
            return True
        if arg.kind not in ("tensor", "descriptor", "context"):
            return False
        return bool(arg.of) and self._given(arg.of, staged_too=arg.kind != "context")

    def _given(self, tensor: str, staged_too: bool) -> bool:
        b = self.plan.buffer(tensor)
        return b.space in ("argument", "result") and (staged_too or not b.staged)

    def _varying(self, arg: Arg) -> Callable[[Running], Any]:
        if arg.kind == "credits":
            return lambda running: running.credits
        if arg.kind == "scalar":
            return lambda running: running.scalars[arg.of]
        if arg.kind == "stride":
            assert arg.axis is not None
            axis = arg.axis
            return lambda running: running.tensors[arg.of].stride(axis)
        if arg.kind == "context":
            context = self.world.context_of
            return lambda running: context(running.tensors[arg.of])
        if arg.kind == "descriptor":
            return lambda running: Descriptor(running.tensors[arg.of].permute(arg.axes), arg.block)
        return lambda running: running.tensors[arg.of]

    def _fixed(self, arg: Arg) -> Any:
        if arg.kind == "constant":
            return arg.value
        if arg.kind == "size":
            assert arg.formula is not None
            return int(F.evaluate(arg.formula, self.plan.env(self.world.rank)))
        if arg.kind in ("words", "due", "bells"):
            return self.words(arg.of, arg.kind)
        if arg.kind == "context":
            return self.workspace.arena.context
        if arg.kind == "order":
            rows = dict(self.plan.tables)[arg.name][self.world.rank]
            table = self.world.zeros(max(len(rows), 1), torch.int32)
            table[: len(rows)] = torch.tensor(rows, dtype=torch.int32)
            return table
        if arg.kind == "state":
            return self._state(arg.of)
        if arg.kind == "descriptor":
            return Descriptor(self.buffer(arg.of).permute(arg.axes), arg.block)
        return self.flat(arg.of)

    def _state(self, what: str) -> torch.Tensor:
        if what in ("entered", "ready", "left"):
            return self.workspace.view(what, torch.int64, self.world.ranks)
        if what == "last":
            return self.workspace.view("last", torch.int64, self.plan.schedule.slots)[self.slot :]
        return self.workspace.view("epoch", torch.int64, 1)


P_MAIN = 0
