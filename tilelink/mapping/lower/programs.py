"""The ops of a tile program, for one tile of its step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.ir import formula as F
from tilelink.ir import program as P
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import Compute, For, If, Op, Read, Write
from tilelink.ir.partition import GridAxis, extent, part
from tilelink.mapping.lower.frame import Frame, Interval, under, unless
from tilelink.mapping.lower.signals import awaits, signals


@dataclass(frozen=True, slots=True)
class Body:
    """Of a program whose tile stands in `frame`."""

    frame: Frame

    def ops(self, body: tuple[P.Op, ...]) -> tuple[Op, ...]:
        return tuple(found for op in body for found in self.op(op))

    def op(self, op: P.Op) -> tuple[Op, ...]:
        frame = self.frame
        if isinstance(op, P.Tiles):
            return self._tiles(op)
        if isinstance(op, P.Loop):
            return self._loop(op)
        if isinstance(op, P.If):
            return self._if(op)
        if isinstance(op, P.Wait):
            return self._wait(op)
        if isinstance(op, P.Notify):
            return signals(frame, op, frame.index(op.param, op.index), None)
        if isinstance(op, P.Load):
            return self._load(op)
        if isinstance(op, P.Store):
            return self._store(op)
        if isinstance(op, P.Let):
            return (Compute(op.value.text, op.loc),) if "tl.dot" in op.value.text else ()
        if isinstance(op, P.Bounds):
            bounds(frame, op)
        elif isinstance(op, P.Holder):
            found = frame.owner(op.param, frame.index(op.param, op.index))
            frame.names[op.name] = frame.step.rank if found is None else found
        elif isinstance(op, P.Raw) and op.what == "rank" and op.name is not None:
            frame.names[op.name] = frame.step.rank
        return ()

    # --------------------------------------------------------------------------------------------------- loops and tests
    def _if(self, op: P.If) -> tuple[Op, ...]:
        test = self.frame.value(op.test)
        body, orelse = self.ops(op.body), self.ops(op.orelse)
        if isinstance(test, F.Const):
            return body if test.value else orelse
        against = None if test is None else F.negate(test)
        return tuple(If(t, b) for t, b in ((test, body), (against, orelse)) if b)

    def _tiles(self, op: P.Tiles) -> tuple[Op, ...]:
        frame, grid, var = self.frame, self.frame.step.loop(op), self.frame.unique(op.var)
        lets: list[tuple[str, Formula]] = []
        count, by_data = grid.count, grid.kind == "table"
        found = frame.tile(grid, Sym(var), var, lets)
        if op.limited:
            limits = _limits(frame, op, grid)
            by_data = limits is None
            if limits is not None:
                (low, high), length = limits, F.of(grid.tile or 1)
                count = F.cdiv(F.maximum(high - low, 0), length)
                begin = low + Sym(var) * length
                found, lets = Interval(begin, F.minimum(begin + length, high), grid=replace(grid, kind="free")), []
        elif by_data:
            count = F.of(1)
        frame.tiles[op.var] = found
        if frame.step.step.binding(op.param).view[op.axis].unit:
            frame.names[op.var] = found.begin
        body = self.ops(op.body)
        return (For(var, count, body, by_data, tuple(lets)),) if body else ()

    def _loop(self, op: P.Loop) -> tuple[Op, ...]:
        frame, turns = self.frame, op.turns
        often = (
            F.substitute(turns, frame.names) if turns is not None and F.symbols(turns) <= frame.names.keys() else None
        )
        var = frame.unique(op.target or "turn")
        if op.target is not None:
            frame.names.pop(op.target, None)
            if often is not None:
                frame.names[op.target] = F.substitute(
                    op.at(Sym(var)), {k: v for k, v in frame.names.items() if k != var}
                )
        body = self.ops(op.body)
        return (For(var, F.of(1) if often is None else often, body, often is None),) if body else ()

    # ------------------------------------------------------------------------------------------------ memory and signals
    def _wait(self, op: P.Wait) -> tuple[Op, ...]:
        frame, index = self.frame, self.frame.index(op.param, op.index)
        found = awaits(frame, op, index, None)
        forwarded, alias = frame.registers(op.param, index), frame.alias(op.param)
        if forwarded is not None:
            return unless(forwarded, found)
        return found if alias is None else unless([alias[1]], found)

    def _load(self, op: P.Load) -> tuple[Op, ...]:
        frame, index = self.frame, self.frame.index(op.param, op.index)
        read = frame.access(Read, op.param, index, frame.step.rank, op.loc)
        forwarded, alias = frame.registers(op.param, index), frame.alias(op.param)
        if forwarded is not None:
            behind = under(forwarded, _stored_by_host(frame)) if frame.step.behind else ()
            return (*unless(forwarded, read), *behind)
        if alias is None:
            return read
        own, test = alias
        first = frame.step.rank * part(frame.tensor(op.param).axes[own.axis].size, frame.step.axis)
        kept = [a for a, axis in enumerate(frame.tensor(op.param).axes) if not axis.own_slice].index(own.axis)
        mine = tuple(_from(r, own.source, kept, first) for r in read)
        return (*unless([test], read), *under([test], mine))

    def _store(self, op: P.Store) -> tuple[Op, ...]:
        frame, index, by_data = self.frame, self.frame.index(op.param, op.index), op.mask is not None
        if op.to == "own":
            return frame.access(Write, op.param, index, frame.step.rank, op.loc, by_data=by_data)
        to = frame.owner(op.param, index)
        if to is not None:
            return frame.access(Write, op.param, index, to, op.loc, by_data=by_data)
        pe = frame.unique("pe")
        every = frame.access(Write, op.param, index, Sym(pe), op.loc, by_data=by_data)
        return (For(pe, frame.step.ranks, every),) if every else ()


def bounds(frame: Frame, op: P.Bounds) -> None:
    """A name for a size, or for where a tile begins or ends."""
    view = frame.step.step.binding(op.param).view
    if op.what == "size" and op.axis is not None:
        frame.names[op.name] = extent(frame.tensor(op.param), view[op.axis], frame.step.axis)
    elif op.what in ("begin", "end") and op.var in frame.tiles and not frame.tiles[op.var].by_data:
        tile = frame.tiles[op.var]
        frame.names[op.name] = tile.begin if op.what == "begin" else tile.end


def _limits(frame: Frame, op: P.Tiles, grid: GridAxis) -> tuple[Formula, Formula] | None:
    """From where to where a loop with limits goes; None: data says, or its tiles are no plain ones."""
    if grid.kind != "plain" or grid.tile is None:
        return None
    start = F.of(0) if op.start is None else frame.value(op.start)
    stop = grid.size if op.stop is None else frame.value(op.stop)
    if start is None or stop is None:
        return None
    low, high = F.maximum(start, 0), F.minimum(stop, grid.size)
    if op.part is not None:
        which, parts = (frame.value(e) for e in op.part)
        if which is None or parts is None:
            return None
        share = F.cdiv(F.maximum(high - low, 0), F.maximum(parts, 1))
        low = low + which * share
        high = F.minimum(low + share, high)
    return low, high


def _from(op: Op, source: str, axis: int, first: Formula) -> Op:
    """A read of the tensor as one of the argument that the rank has brought its shard in."""
    if isinstance(op, If):
        return replace(op, body=tuple(_from(o, source, axis, first) for o in op.body))
    if not isinstance(op, Read):
        return op
    box = tuple((b - first, e - first) if a == axis else (b, e) for a, (b, e) in enumerate(op.box))
    return replace(op, buffer=source, box=box)


def _stored_by_host(frame: Frame) -> tuple[Op, ...]:
    """A deferred epilogue reads what would be in registers from where its mainloop step has stored it."""
    host = frame.plan.step(frame.step.executor)
    theirs = Frame(frame.plan, host)
    for op in P.walk(host.step.program.body):
        if isinstance(op, P.Bounds):
            bounds(theirs, op)
        elif isinstance(op, P.Store) and op.to == "own" and _has_memory(theirs, op.param):
            return theirs.access(Read, op.param, theirs.index(op.param, op.index), host.rank, op.loc)
    return ()


def _has_memory(frame: Frame, param: str) -> bool:
    return frame.plan.buffer_or_none(frame.step.step.binding(param).tensor) is not None
