"""What a call does on every rank: the executors that the host starts, and what each comes after."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilelink.ir import formula as F
from tilelink.ir import plan as H
from tilelink.ir.formula import Sym
from tilelink.ir.lowered import (
    ENTERED,
    LEFT,
    READY,
    STAGE,
    Await,
    Copy,
    Executor,
    Flags,
    For,
    If,
    Op,
    Opaque,
    Part,
    Read,
    Signal,
    Tiles,
    Write,
    walk,
)
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import is_raw
from tilelink.ir.schedule import HOST, WORKERS, Engine
from tilelink.ir.shape import RANK_AXIS, ranks_along
from tilelink.mapping.lower.copies import Tables, copied, stream_loop
from tilelink.mapping.lower.frame import RANK, Frame, segments, under
from tilelink.mapping.lower.library import called
from tilelink.mapping.lower.parts import part_of
from tilelink.mapping.lower.programs import Body
from tilelink.mapping.lower.signals import flags_of

RANKS = ranks_along()


@dataclass(slots=True)
class Call:
    """`heads`: by stream, the executors that have to end before what comes next there begins."""

    plan: Plan
    text: bool = True
    flags: dict[str, Flags] = field(default_factory=dict[str, Flags])
    heads: dict[int, tuple[str, ...]] = field(default_factory=lambda: {H.MAIN: tuple[str, ...]()})
    tables: Tables = field(default_factory=dict[str, "tuple[tuple[int, ...], ...]"])
    executors: list[Executor] = field(default_factory=list[Executor])
    parts: list[Part] = field(default_factory=list[Part])

    def run(self) -> None:
        for channel in self.plan.channels:
            self.flags[channel.name] = flags_of(self.plan, channel)
        for step in self.plan.host:
            self._step(step)
        ops = (op for e in self.executors for loop in e.loops for op in walk(loop.body))
        for name in [op.flags for op in ops if isinstance(op, Await) and op.flags not in self.flags]:
            self.flags[name] = Flags(name, RANKS, style="epoch")  # nobody tells

    def _step(self, h: H.HostStep) -> None:
        heads, plan = self.heads, self.plan
        if isinstance(h, H.CallEntry):
            self._host("call_entry", self._call_entry())
        elif isinstance(h, H.Stage):
            self._host(h.executor, (*(self._staged(t) for t in h.tensors), self._tell(READY)))
        elif isinstance(h, H.CallExit):
            self._host("call_exit", (self._tell(LEFT), For("pe", RANKS, (Await(LEFT, Sym("pe")),))))
        elif isinstance(h, H.Fork):
            heads[h.stream] = (*heads.get(h.stream, ()), *heads[H.MAIN])
        elif isinstance(h, H.Join):
            heads[H.MAIN] = (*heads[H.MAIN], *heads.get(h.stream, ()))
        elif isinstance(h, H.Keep):
            loop = stream_loop(Frame(plan, plan.step(h.path)), self.tables, own=True, others=False, kept=True)
            self._start(H.MAIN, h.executor, plan.step(h.path).engine, loop)
        elif isinstance(h, H.Transfer):
            self._transfer(h, plan.step(h.path))
        else:
            self._launch(h)

    def _transfer(self, h: H.Transfer, step: StepPlan) -> None:
        if step.library is not None:
            loop = called(Frame(self.plan, step))
        else:
            own = step.step.moved_to not in self.plan.read_in_place and H.Keep(h.path) not in self.plan.host
            loop = stream_loop(Frame(self.plan, step), self.tables, own=own, others=True)
        streams = range(h.stream, h.stream + step.streams)
        after = tuple(dict.fromkeys(name for s in streams for name in self.heads[s]))
        self.executors.append(Executor(h.executor, step.engine, (loop,), after, step.streams))
        self.heads |= dict.fromkeys(streams, (h.executor,))

    def _launch(self, h: H.Launch) -> None:
        kernel, after = self.plan.kernel(h.kernel), self.heads[h.stream]
        warps = kernel.options.num_warps
        first = len(self.executors)
        for step in map(self.plan.step, (path for path, _ in kernel.roles if self.text)):
            self.parts += [part_of(self.plan, s) for s in (step, *map(self.plan.step, step.fused))]
        for path, workers in kernel.beside:
            self.executors.append(
                Executor(path, self.plan.step(path).engine, self._role(path), after, workers or 1, kernel.name, warps)
            )
        loops = tuple(loop for path in kernel.in_turn for loop in self._role(path))
        workers = kernel.roles[-1][1] or 1
        self.executors.append(Executor("+".join(kernel.in_turn), WORKERS, loops, after, workers, kernel.name, warps))
        self.heads[h.stream] = tuple(e.name for e in self.executors[first:])

    def _role(self, path: str) -> tuple[Tiles, ...]:
        """A step's tiles with their epilogues, and behind them its deferred epilogues."""
        plan, step = self.plan, self.plan.step(path)
        frame = Frame(plan, step)
        body, lets = _ops(frame), [*frame.lets]
        deferred: list[StepPlan] = []
        for epilogue in (plan.step(f) for f in step.fused):
            if epilogue.deferred:
                body = (*body, *self._made(step, epilogue))
                deferred.append(epilogue)
                continue
            theirs = Frame(plan, epilogue, step)
            body = (*body, *_subtiles(theirs))
            lets += theirs.lets
        loops = [_tiles(frame, under(frame.tests, body), lets)]
        for epilogue in deferred:
            theirs = Frame(plan, epilogue, step)
            first = step.total - epilogue.own_tiles(step)
            order = tuple((n, F.substitute(v, {"t": first + Sym("t")})) for n, v in step.order)
            waits: tuple[Op, ...] = (Await(_made(epilogue), Sym("t")),)
            found = (*waits, *_subtiles(theirs))
            loop = frame.loop(found, epilogue.own_tiles(step), order, (*frame.lets, *theirs.lets))
            loops.append(replace(loop, path=epilogue.path, loc=epilogue.step.loc))
        return tuple(loops)

    def _made(self, step: StepPlan, epilogue: StepPlan) -> tuple[Op, ...]:
        """A mainloop step says of a tile of the local shard that it is made; the flag is the epilogue's work index."""
        name, grid = _made(epilogue), step.grid[epilogue.own_axis or 0]
        self.flags[name] = Flags(name, epilogue.own_tiles(step), style="epoch", scope="gpu")
        owner = grid.begin(Sym(f"i{epilogue.own_axis or 0}")) // grid.part
        index = Sym("t") - (step.total - epilogue.own_tiles(step))
        return (If(F.binary("==", owner, epilogue.rank), (Signal(name, index, RANK, RANK_AXIS),)),)

    # ----------------------------------------------------------------------------------------------------- call entry
    def _host(self, name: str, body: tuple[Op, ...]) -> None:
        self._start(H.MAIN, name, HOST, Tiles(name, F.of(1), (), (), (), body))

    def _start(self, stream: int, name: str, engine: Engine, loop: Tiles) -> None:
        self.executors.append(Executor(name, engine, (loop,), self.heads[stream]))
        self.heads[stream] = (name,)

    def _tell(self, name: str) -> Op:
        self.flags[name] = Flags(name, RANKS, style="epoch")
        return Signal(name, RANK, None, RANK_AXIS)

    def _call_entry(self) -> tuple[Op, ...]:
        """Tell all; take the credits: who has entered the call behind the one that used the slots has left that one."""
        told = self._tell(ENTERED)
        if all(c.implied_by is not None for c in self.plan.credits):
            return (told,)
        return told, For("pe", RANKS, (Await(ENTERED, Sym("pe"), self.plan.schedule.slots - 1),))

    def _staged(self, tensor: str) -> Op:
        # What an argument has of its shard: the last ranks may have less than there is room for.
        frame_box = tuple((F.of(0), e) for e in self.plan.buffer(tensor).extents)
        return Copy(Read(tensor, RANK, frame_box), Write(f"{tensor}{STAGE}", RANK, frame_box))


def _made(epilogue: StepPlan) -> str:
    return f"made.{epilogue.path}"


def _ops(frame: Frame) -> tuple[Op, ...]:
    program = frame.step.step.program
    if is_raw(program):
        return (Opaque(frame.step.step.loc),)
    return copied(frame) if program.copy_program is not None else Body(frame).ops(program.body)


def _subtiles(frame: Frame) -> tuple[Op, ...]:
    said = f"a program that runs for the tiles of `{frame.step.into}`, into which it is fused"
    body = under(frame.tests, _ops(frame), said)
    return body if frame.step.subtiles == 1 or not body else (For(frame.subtile, F.of(frame.step.subtiles), body),)


def _tiles(frame: Frame, body: tuple[Op, ...], lets: list[tuple[str, F.Formula]]) -> Tiles:
    """Of a run-time split any one tile stands for all: its index counts for nothing. Its table is read before the first tile."""
    step = frame.step
    names = dict.fromkeys(g.table for g in (*step.grid, *step.loops) if g.table is not None)
    tables = tuple(op for name in names for op in frame.whole(name))
    one: dict[str, F.Like] = {f"{name}_tiles": F.of(1) for name in names}
    order = tuple((n, F.substitute(v, one)) for n, v in step.order)
    by_data = next((segments(g) for g in step.grid if g.kind == "table"), None)
    return frame.loop((*tables, *body), F.substitute(step.total, one), order, lets, by_data)
