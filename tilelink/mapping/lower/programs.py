"""The ops of a tile program, for one tile of its step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.ir import formula as F
from tilelink.ir import program as P
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import Compute, Data, For, If, Op, Read, Write, unplaced
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
            return self.store(op)
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
        said, against = f"`if {op.test}`", f"the `else` of `if {op.test}`"
        if test is not None:
            if isinstance(test, F.Const):
                return body if test.value else orelse
            branches = ((test, body, said), (F.negate(test), orelse, against))
            return tuple(If(t, b, said=words) for t, b, words in branches if b)
        # What both ways begin or end with happens in any case.
        first, last = _common(body, orelse), _common(body[::-1], orelse[::-1])
        last = min(last, len(body) - first, len(orelse) - first)
        by_data = Data(said, op.loc)
        inner = [If(None, b[first : len(b) - last], by_data, w) for b, w in ((body, said), (orelse, against))]
        needed = None if op.test.only_if is None else self.frame.value(replace(op.test, formula=op.test.only_if))
        inner[0] = inner[0] if needed is None else If(F.truth(needed), (inner[0],))
        taken = [i for i, b in zip(inner, (body, orelse), strict=True) if len(b) > first + last]
        return (*body[:first], *taken, *body[len(body) - last :])

    def _tiles(self, op: P.Tiles) -> tuple[Op, ...]:
        frame, grid, var = self.frame, self.frame.step.loop(op), self.frame.unique(op.var)
        lets: list[tuple[str, Formula]] = []
        count, by_data, said = grid.count, None, f"`tl.tiles({op.param})`"
        found = frame.tile(grid, Sym(var), frame.prefixed(op.var), lets)
        if op.limited:
            limits, said = _limits(frame, op, grid), "a `tl.tiles` with limits"
            if limits is None:
                by_data = Data(f"from where to where `tl.tiles` walks `{op.param}`", op.loc)
            else:
                (low, high), length = limits, grid.step
                count = F.cdiv(F.maximum(high - low, 0), length)
                begin = low + Sym(var) * length
                found, lets = Interval(begin, F.minimum(begin + length, high), grid=grid.free), []
        frame.tiles[op.var] = found
        if frame.step.step.binding(op.param).view[op.axis].unit:
            frame.names[op.var] = found.begin
        body = self.ops(op.body)
        return (For(var, count, body, by_data, tuple(lets), said),) if body else ()

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
        said = f"`{op.header}`"
        by_data = Data(f"how often {said} goes round", op.loc) if often is None else None
        found = (For(var, F.of(1) if often is None else often, body, by_data, said=said),) if body else ()
        # What the test of a `while` comes to does not change in its body: it is never entered, or it does not end.
        entered = frame.value(op.header) if op.target is None else None
        return found if entered is None else under([F.truth(entered)], found)

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
            behind = under(forwarded, _stored_by_host(frame)) if frame.step.deferred else ()
            return (*unless(forwarded, read), *behind)
        if alias is None:
            return read
        own, test = alias
        first = frame.step.rank * part(frame.tensor(op.param).axes[own.axis].size, frame.step.axis)
        kept = [a for a, axis in enumerate(frame.tensor(op.param).axes) if not axis.own_slice].index(own.axis)
        mine = tuple(_from(r, own.source, kept, first) for r in read)
        return (*unless([test], read), *under([test], mine))

    def store(self, op: P.Store) -> tuple[Op, ...]:
        frame, index = self.frame, self.frame.index(op.param, op.index)
        if op.to == "own":
            return frame.access(Write, op.param, index, frame.step.rank, op.loc, mask=op.mask)
        to = frame.owner(op.param, index)
        if to is not None:
            return frame.access(Write, op.param, index, to, op.loc, mask=op.mask)
        pe, turn = frame.unique("pe"), frame.unique("turn")
        every = frame.access(Write, op.param, index, Sym(pe), op.loc, mask=op.mask)
        at = (frame.step.rank + Sym(turn)) % frame.step.ranks
        return (For(turn, frame.step.ranks, every, lets=((pe, at),)),) if every else ()


def _common(a: tuple[Op, ...], b: tuple[Op, ...]) -> int:
    """How many ops are alike, from the first on."""
    return next(
        (k for k, (x, y) in enumerate(zip(a, b, strict=False)) if unplaced(x) != unplaced(y)), min(len(a), len(b))
    )


def bounds(frame: Frame, op: P.Bounds) -> None:
    """A name for a size, or for where a tile begins or ends."""
    view = frame.step.step.binding(op.param).view
    if op.what == "size" and op.axis is not None:
        frame.names[op.name] = extent(frame.tensor(op.param), view[op.axis], frame.step.axis)
    elif op.what in ("range", "mask"):
        frame.vectors[op.name] = op
    elif op.what in ("begin", "end") and op.var in frame.tiles and not frame.tiles[op.var].by_data:
        tile = frame.tiles[op.var]
        frame.names[op.name] = tile.begin if op.what == "begin" else tile.end


def _limits(frame: Frame, op: P.Tiles, grid: GridAxis) -> tuple[Formula, Formula] | None:
    """From where to where a loop with limits goes; None: data says."""
    start = F.of(0) if op.start is None else frame.value(op.start)
    stop = grid.size if op.stop is None or op.stop.text == "None" else frame.value(op.stop)
    if start is None or stop is None:
        return None
    first = grid.rank * grid.part if grid.kind == "mine" else F.of(0)
    last = F.minimum(first + grid.part, grid.size) if grid.kind == "mine" else grid.size
    low, high = F.maximum(start, first), F.minimum(stop, last)
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
    if isinstance(op, For | If):
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
        elif isinstance(op, P.Store) and op.to == "own":
            found = theirs.access(Read, op.param, theirs.index(op.param, op.index), host.rank, op.loc)
            if found:
                return found
    return ()
