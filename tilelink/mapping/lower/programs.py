"""The ops of a tile program, for one tile of its step; where a function of a library computes the tile, on a stream, of all of
what a loop walks at once, or panel by panel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from tilelink.ir import formula as F
from tilelink.ir import program as P
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import Compute, Data, For, If, Op, Read, Tiles, Write, unplaced
from tilelink.ir.partition import GridAxis, part
from tilelink.ir.wiring import Entries
from tilelink.mapping.libraries import RUN, axis_of, turns
from tilelink.mapping.lower.frame import Frame, Interval, under, unless
from tilelink.mapping.lower.signals import awaits, signals


def ops_of(frame: Frame, body: tuple[P.Op, ...]) -> tuple[Op, ...]:
    return tuple(found for op in body for found in op_of(frame, op))


def op_of(frame: Frame, op: P.Op) -> tuple[Op, ...]:
    if isinstance(op, P.Tiles):
        return _tiles(frame, op)
    if isinstance(op, P.Loop):
        return _loop(frame, op)
    if isinstance(op, P.If):
        return _if(frame, op)
    if isinstance(op, P.Wait):
        return _wait(frame, op)
    if isinstance(op, P.Notify):
        return signals(frame, op, frame.index(op.param, op.index), None)
    if isinstance(op, P.Load):
        return _load(frame, op)
    if isinstance(op, P.Store):
        return _store(frame, op)
    if isinstance(op, P.Let):
        return (Compute(op.value.text, op.loc),) if "tl.dot" in op.value.text else ()
    if isinstance(op, P.Bounds):
        bounds(frame, op)
    elif isinstance(op, P.Holder):
        frame.names[op.name] = frame.owner(frame.index(op.param, op.index)) or frame.step.rank
    elif isinstance(op, P.Raw) and op.what == "rank" and op.name is not None:
        frame.names[op.name] = frame.step.rank
    return ()


# --------------------------------------------------------------------------------------------------- loops and tests
def _if(frame: Frame, op: P.If) -> tuple[Op, ...]:
    test = frame.value(op.test)
    body, orelse = ops_of(frame, op.body), ops_of(frame, op.orelse)
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
    needed = None if op.test.only_if is None else frame.value(replace(op.test, formula=op.test.only_if))
    inner[0] = inner[0] if needed is None else If(F.truth(needed), (inner[0],))
    taken = [i for i, b in zip(inner, (body, orelse), strict=True) if len(b) > first + last]
    return (*body[:first], *taken, *body[len(body) - last :])


def _tiles(frame: Frame, op: P.Tiles) -> tuple[Op, ...]:
    grid, var = frame.step.loop(op), frame.unique(op.var)
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
    body = ops_of(frame, op.body)
    return (For(var, count, body, by_data, tuple(lets), said),) if body else ()


def _loop(frame: Frame, op: P.Loop) -> tuple[Op, ...]:
    count = op.turns
    often = F.substitute(count, frame.names) if count is not None and F.symbols(count) <= frame.names.keys() else None
    var = frame.unique(op.target or "turn")
    if op.target is not None:
        frame.names.pop(op.target, None)
        if often is not None:
            frame.names[op.target] = F.substitute(op.at(Sym(var)), {k: v for k, v in frame.names.items() if k != var})
    body = ops_of(frame, op.body)
    said = f"`{op.header}`"
    by_data = Data(f"how often {said} goes round", op.loc) if often is None else None
    found = (For(var, F.of(1) if often is None else often, body, by_data, said=said),) if body else ()
    # What the test of a `while` comes to does not change in its body: it is never entered, or it does not end.
    entered = frame.value(op.header) if op.target is None else None
    return found if entered is None else under([F.truth(entered)], found)


# ------------------------------------------------------------------------------------------------ memory and signals
def _wait(frame: Frame, op: P.Wait) -> tuple[Op, ...]:
    index = frame.index(op.param, op.index)
    found = awaits(frame, op, index, None)
    forwarded, alias = frame.registers(op.param, index), frame.alias(op.param)
    if forwarded is not None:
        return unless(forwarded, found)
    return found if alias is None else unless([alias[1]], found)


def _load(frame: Frame, op: P.Load) -> tuple[Op, ...]:
    index = frame.index(op.param, op.index)
    read = frame.access(Read, op.param, index, frame.step.rank, op.loc)
    forwarded, alias = frame.registers(op.param, index), frame.alias(op.param)
    if forwarded is not None:
        behind = under(forwarded, _stored_by_host(frame)) if frame.step.deferred else ()
        return (*unless(forwarded, read), *behind)
    if alias is None:
        return read
    own, test = alias
    first = frame.step.rank * part(frame.tensor(op.param).axes[0].size, frame.step.axis)
    mine = tuple(_from(r, own.source, first) for r in read)
    return (*unless([test], read), *under([test], mine))


def _store(frame: Frame, op: P.Store) -> tuple[Op, ...]:
    index = frame.index(op.param, op.index)
    to = frame.step.rank if op.to == "own" else frame.owner(index)
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
        frame.names[op.name] = view[op.axis].extent(frame.step.axis)
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
    first, last = grid.span
    low, high = F.maximum(start, first), F.minimum(stop, last)
    if op.part is not None:
        which, parts = (frame.value(e) for e in op.part)
        if which is None or parts is None:
            return None
        share = F.cdiv(F.maximum(high - low, 0), F.maximum(parts, 1))
        low = low + which * share
        high = F.minimum(low + share, high)
    return low, high


def _from(op: Op, source: str, first: Formula) -> Op:
    """A read of the tensor as one of the argument that the rank has brought its shard in."""
    if isinstance(op, For | If):
        return replace(op, body=tuple(_from(o, source, first) for o in op.body))
    if not isinstance(op, Read):
        return op
    (begin, end), *others = op.box
    return replace(op, buffer=source, box=((begin - first, end - first), *others))


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


# ---------------------------------------------------------------------------------------------- functions of a library
Touch: TypeAlias = P.Wait | P.Load | P.Store | P.Notify


def called(frame: Frame) -> Tiles:
    """Tile by tile: waits, the function on views of the tile, notifies."""
    step, program = frame.step, frame.step.step.program
    assert step.library is not None
    ops = [op for op in P.walk(program.body) if isinstance(op, P.Wait | P.Load | P.Store | P.Notify)]
    intervals = [*_intervals(frame, program.body)]
    behind = (*_lowered(frame, ops, P.Store), *_lowered(frame, ops, P.Notify))
    if step.by_panels:
        panel = P.OfTile(RUN)
        panels = {op for op in ops if any(e == panel for _, e in frame.index(op.param, op.index))}
        waits = _lowered(frame, [op for op in ops if op not in panels], P.Wait)
        merge = Compute(f"{step.library.name}'s merge", step.step.loc, (PARTS,), program.domain)
        body = (*waits, *_panels(frame, intervals, ops, panels), merge, *behind)
    else:
        call = Compute(step.library.name, step.step.loc, _arguments(frame), program.domain)
        body = (*_lowered(frame, ops, P.Wait), *_taken(frame, ops), call, *behind)
    return frame.loop(under(frame.tests, body))


def _lowered(frame: Frame, ops: Iterable[Touch], kind: type[P.Op]) -> tuple[Op, ...]:
    """Once, whatever lines of the program say it: a doorbell that is waited for twice is never rung again."""
    found: dict[Op, Op] = {}
    for op in ops:
        if isinstance(op, kind):
            for lowered in op_of(frame, op):
                found.setdefault(unplaced(lowered), lowered)
    return tuple(found.values())


def _arguments(frame: Frame) -> tuple[str, ...]:
    return tuple(p.name for p in frame.step.step.program.params if p.role == "in")


def _taken(frame: Frame, ops: Iterable[Touch]) -> Iterator[Op]:
    """What the function gets of each argument: the one view of it that the program reads, or all of it."""
    for param in _arguments(frame):
        loads = _lowered(frame, [op for op in ops if op.param == param], P.Load)
        if not loads:
            whole: Entries = tuple((v, P.Whole()) for v in frame.step.step.binding(param).view)
            loads = frame.access(Read, param, whole, frame.step.rank, frame.step.step.loc)
        yield from loads


# -------------------------------------------------------------------------------------------------------------- panels
PARTS = "parts"
"""What a function gives panel by panel."""


def _intervals(frame: Frame, body: tuple[P.Op, ...]) -> Iterator[Interval]:
    """From where to where each loop over tiles goes, in the program's order; names on the way are those of the frame."""
    for op in body:
        if isinstance(op, P.Bounds):
            bounds(frame, op)
        elif isinstance(op, P.Loop):
            for turn in range(turns(op, frame.step.step) or 0):
                if op.target is not None:
                    frame.names[op.target] = F.substitute(op.at(turn), frame.names)
                yield from _intervals(frame, op.body)
        elif isinstance(op, P.Tiles) and frame.step.by_panels:
            size = frame.step.loop(op).size
            low = F.of(0) if op.start is None else frame.value(op.start)
            high = size if op.stop is None else frame.value(op.stop)
            by_data = None
            if low is None or high is None:
                by_data = Data(f"from where to where `tl.tiles` walks `{op.param}`", op.loc)
            yield Interval(F.maximum(low or F.of(0), 0), F.minimum(high or size, size), by_data)


def _panels(frame: Frame, intervals: list[Interval], ops: list[Touch], panels: set[Touch]) -> tuple[Op, ...]:
    """Shard by shard, this rank's own first, as they arrive; each interval of a shard in panels that end where tiles do."""
    step, axis = frame.step, axis_of(frame.step)
    assert step.library is not None
    by_shards = axis.kind == "cut"
    first, last = (Sym("shard_begin"), Sym("shard_end")) if by_shards else (F.of(0), axis.size)
    length = last - first if axis.tile is None else F.of(axis.tile)
    count = F.of(1) if axis.tile is None else F.cdiv(F.maximum(last - first, 0), length)
    begin, end, at = Sym("panel_begin"), Sym("panel_end"), first + Sym("panel") * length
    frame.tiles[RUN] = Interval(begin, end, grid=axis.free)
    tile = ((g.dim, g.begin(Sym(f"i{a}")), g.end(Sym(f"i{a}"))) for a, g in enumerate(step.grid))
    call = Compute(step.library.name, step.step.loc, _arguments(frame), PARTS, (*tile, (axis.dim, begin, end)))
    waits = _lowered(frame, [op for op in ops if op in panels], P.Wait)
    body, found = under([F.binary("<", begin, end)], (*waits, *_taken(frame, ops), call)), list[Op]()
    for taken in intervals:
        stop = F.minimum(F.minimum(at + length, last), taken.end)
        lets = ((begin.name, F.maximum(at, taken.begin)), (end.name, stop))
        found.append(For("panel", count, body, taken.by_data, lets))
    if not by_shards:
        return tuple(found)
    shard = (step.rank + Sym("shard")) % step.ranks * axis.part
    ends = (("shard_begin", shard), ("shard_end", F.minimum(Sym("shard_begin") + axis.part, axis.size)))
    return (For("shard", step.ranks, tuple(found), lets=ends),)
