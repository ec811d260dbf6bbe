"""What a call does on every rank: the executors that the host starts, and what each comes after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tilelink.errors import Loc, Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir import lowered as L
from tilelink.ir import plan as H
from tilelink.ir import program as P
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import ENTERED, LEFT, READY, STAGE, Executor, Flags, Op, Part, Tiles, walk
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import is_raw
from tilelink.ir.schedule import HOST, WORKERS, Engine
from tilelink.ir.shape import RANK_AXIS, ranks_along
from tilelink.ir.verdict import REPORT
from tilelink.mapping.lower.copies import Tables, copied, stream_loop
from tilelink.mapping.lower.frame import RANK, Frame, segments, under
from tilelink.mapping.lower.programs import called, op_of, ops_of
from tilelink.mapping.lower.signals import flags_of

RANKS = ranks_along()


def unkept(what: str, why: str, loc: Loc | None, notes: tuple[Note, ...] = ()) -> TilelinkError:
    """The host's sequence, or the plan, does not keep what it has to."""
    return TilelinkError("TL609", what, loc=loc, why=why, hint=REPORT, notes=notes)


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
            self.flags[channel.tensor] = flags_of(self.plan, channel)
        for step in self.plan.host:
            self._step(step)
        ops = (op for e in self.executors for loop in e.loops for op in walk(loop.body))
        for name in [op.flags for op in ops if isinstance(op, L.Await) and op.flags not in self.flags]:
            self.flags[name] = Flags(name, RANKS, style="epoch")  # nobody tells
        if loose := self.heads.keys() - {H.MAIN}:
            why = "the next call, and whoever reads the results, would overtake it"
            raise unkept(f"side stream {min(loose)} is never joined", why, self.plan.wiring.loc)

    def _step(self, h: H.HostStep) -> None:
        heads, plan = self.heads, self.plan
        if isinstance(h, H.CallEntry):
            # Tell all; take the credits: who has entered the call behind the one that used the slots has left that one.
            credits = L.For("pe", RANKS, (L.Await(ENTERED, Sym("pe"), plan.schedule.slots - 1),))
            self._host("call_entry", (self._tell(ENTERED), credits) if plan.takes_credits else (self._tell(ENTERED),))
        elif isinstance(h, H.Stage):
            # What an argument has of its shard: the last ranks may have less than there is room for.
            boxes = {tensor: tuple((F.of(0), e) for e in plan.buffer(tensor).extents) for tensor in h.tensors}
            staged = (L.Copy(L.Read(n, RANK, box), L.Write(f"{n}{STAGE}", RANK, box)) for n, box in boxes.items())
            self._host(h.executor, (*staged, self._tell(READY)))
        elif isinstance(h, H.CallExit):
            self._host("call_exit", (self._tell(LEFT), L.For("pe", RANKS, (L.Await(LEFT, Sym("pe")),))))
        elif isinstance(h, H.Fork):
            heads[h.stream] = (*heads.get(h.stream, ()), *heads[H.MAIN])
        elif isinstance(h, H.Join):
            heads[H.MAIN] = (*heads[H.MAIN], *heads.pop(h.stream, ()))
        elif isinstance(h, H.Keep):
            loop = stream_loop(Frame(plan, plan.step(h.path)), self.tables, own=True, others=False)
            self._start(h.executor, plan.step(h.path).engine, loop)
        elif isinstance(h, H.Transfer):
            self._transfer(h, plan.step(h.path))
        else:
            self._launch(h)

    def _before(self, stream: int) -> tuple[str, ...]:
        """The executors that have to end before what comes next on a stream."""
        if stream not in self.heads:
            why = "what runs there would not wait for the call before, nor for the arguments"
            raise unkept(f"side stream {stream} is used before it is forked", why, self.plan.wiring.loc)
        return self.heads[stream]

    def _transfer(self, h: H.Transfer, step: StepPlan) -> None:
        if step.library is not None:
            loop = called(Frame(self.plan, step))
        else:
            own = step.step.moved_to not in self.plan.read_in_place and H.Keep(h.path) not in self.plan.host
            loop = stream_loop(Frame(self.plan, step), self.tables, own=own, others=True)
        streams = range(h.stream, h.stream + step.streams)
        if len({self._before(stream) for stream in streams}) > 1:
            why = "what one of its streams comes behind, the others need not"
            raise unkept(f"the streams of `{h.path}` go on from different steps", why, step.step.loc)
        after = tuple(dict.fromkeys(self.heads[h.stream]))
        self.executors.append(Executor(h.executor, step.engine, (loop,), after, step.streams))
        self.heads |= dict.fromkeys(streams, (h.executor,))

    def _launch(self, h: H.Launch) -> None:
        kernel, after = self.plan.kernel(h.kernel), self._before(h.stream)
        warps = kernel.options.num_warps
        first = len(self.executors)
        for step in map(self.plan.step, (path for path, _ in kernel.roles if self.text)):
            self.parts += [_part(self.plan, s) for s in (step, *map(self.plan.step, step.fused))]
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
        behind: list[Tiles] = []
        for epilogue in (plan.step(f) for f in step.fused):
            theirs = Frame(plan, epilogue, step)
            said = f"a program that runs for the tiles of `{epilogue.into}`, into which it is fused"
            found = under(theirs.tests, _ops(theirs), said)
            if found and epilogue.subtiles > 1:
                found = (L.For(theirs.unique("subtile"), F.of(epilogue.subtiles), found),)
            if not epilogue.deferred:
                body, lets = (*body, *found), [*lets, *theirs.lets]
                continue
            # A mainloop step says of a tile of the local shard that it is made; the flag is the epilogue's work index.
            made, grid, tiles = f"made.{epilogue.path}", step.grid[epilogue.own_axis or 0], epilogue.own_tiles(step)
            self.flags[made] = Flags(made, tiles, style="epoch", scope="gpu")
            owner = grid.begin(Sym(f"i{epilogue.own_axis or 0}")) // grid.part
            first = step.total - tiles
            told = L.Signal(made, Sym("t") - first, RANK, RANK_AXIS)
            body = (*body, L.If(F.binary("==", owner, epilogue.rank), (told,)))
            order = tuple((n, F.substitute(v, {"t": first + Sym("t")})) for n, v in step.order)
            waited: tuple[Op, ...] = (L.Await(made, Sym("t")), *found)
            loop, names = frame.loop(waited), (*frame.lets, *theirs.lets)
            behind.append(
                replace(loop, path=epilogue.path, total=tiles, order=order, lets=names, loc=epilogue.step.loc)
            )
        body = under(frame.tests, body)
        # Of a run-time split any one tile stands for all: its index counts for nothing. Its table is read before the first tile.
        names = dict.fromkeys(g.table for g in step.grid if g.table is not None)
        boxes = {name: tuple((F.of(0), size) for size in plan.buffer(name).extents) for name in names}
        tables = tuple(L.Read(name, RANK, box, None, step.step.loc, name) for name, box in boxes.items())
        one: dict[str, F.Like] = {f"{name}_tiles": F.of(1) for name in names}
        order = tuple((n, F.substitute(v, one)) for n, v in step.order)
        by_data = next((segments(g) for g in step.grid if g.kind == "table"), None)
        loop, total = frame.loop((*tables, *body)), F.substitute(step.total, one)
        return replace(loop, total=total, order=order, lets=tuple(lets), by_data=by_data), *behind

    def _host(self, name: str, body: tuple[Op, ...]) -> None:
        self._start(name, HOST, Tiles(name, F.of(1), (), (), (), body))

    def _start(self, name: str, engine: Engine, loop: Tiles) -> None:
        """On the main stream."""
        self.executors.append(Executor(name, engine, (loop,), self.heads[H.MAIN]))
        self.heads[H.MAIN] = (name,)

    def _tell(self, name: str) -> Op:
        self.flags[name] = Flags(name, RANKS, style="epoch")
        return L.Signal(name, RANK, None, RANK_AXIS)


def _ops(frame: Frame) -> tuple[Op, ...]:
    """One tile of the step's."""
    program = frame.step.step.program
    if is_raw(program):
        return (L.Opaque(frame.step.step.loc),)
    return copied(frame) if frame.step.copies else ops_of(frame, program.body)


# ------------------------------------------------------------------------------------------------------------------- text
def _part(plan: Plan, step: StepPlan) -> Part:
    """What each statement of a step that workers take becomes, in its program's own names: what codegen prints."""
    host = None if step.into is None else plan.step(step.into)
    frame, body = Frame(plan, step, host, by_name=True), step.step.program.body
    lets, tests = dict(frame.lets), tuple(frame.tests)
    tiles = tuple((n, F.substitute(t.begin, lets), F.substitute(t.end, lets)) for n, t in frame.tiles.items())
    tiles = tiles if host is None else tuple(_passed(step, host))
    if step.copies:
        return Part(step.path, tiles, tests, copied(frame), (), ())
    said: list[tuple[P.Op, tuple[Op, ...]]] = []
    for op in P.walk(body):
        if isinstance(op, P.Tiles):
            grid = step.loop(op)
            frame.tiles[op.var] = frame.tile(grid.free if op.limited else grid, F.of(0), op.var, [])
        elif isinstance(op, P.Wait | P.Notify | P.Store):
            said.append((op, op_of(frame, op)))
        elif isinstance(op, P.Load):
            said.append((op, frame.access(L.Read, op.param, frame.index(op.param, op.index), step.rank, op.loc)))
    asked = [op for op in P.walk(body) if isinstance(op, P.Holder)]
    holders = tuple((op, frame.owner(frame.index(op.param, op.index)) or step.rank) for op in asked)
    return Part(step.path, tiles, tests, (), tuple(said), holders, tuple(_walks(frame, body)))


def _passed(step: StepPlan, host: StepPlan) -> Iterator[tuple[str, Formula, Formula]]:
    view = step.step.binding(step.domain).view
    for a, (g, v, at) in enumerate(zip(step.grid, view, step.host_axes, strict=True)):
        if at is None and g.var is not None:
            yield g.var, step.rank, step.rank + 1
        elif at is not None:
            first = g.rank * g.part if at == step.own_axis and v.local else F.of(0)
            begin, end = (Sym(f"{host.grid[at].var}.{side}") - first for side in ("begin", "end"))
            yield g.var or f"axis{a}", begin, end


def _walks(frame: Frame, body: tuple[P.Op, ...]) -> Iterator[tuple[str, L.Walk]]:
    for op in (o for o in P.walk(body) if isinstance(o, P.Wait)):
        said = frame.plan.signal(frame.step.path, op)
        if said is None or said.channel is None:
            continue
        channel = frame.plan.channel(said.channel)
        for view, entry in frame.index(op.param, op.index):
            axis = next((a for a in channel.axes if a.axis == view.axis), None)
            if isinstance(entry, P.OfTile) and axis is not None:
                begin, end = axis.interval(Sym("flag"))
                shift = axis.rank * axis.part if view.local else F.of(0)
                base = axis.first(local=view.local)
                index, first = axis.index(base + Sym(L.AT)), F.of(0) if base == F.of(0) else axis.index(base)
                yield entry.var, L.Walk(op, index, first, begin - shift, end - shift, len(channel.axes) == 1)
