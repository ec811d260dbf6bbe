"""Programs whose tiles a function of a library computes, on streams: all of what a loop walks at once, or panel by panel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from tilelink.ir import formula as F
from tilelink.ir import program as P
from tilelink.ir.formula import Sym
from tilelink.ir.lowered import Compute, Data, For, Op, Read, Tiles, unplaced
from tilelink.mapping.libraries import RUN, axis_of, turns
from tilelink.mapping.lower.frame import Entries, Frame, Interval, under
from tilelink.mapping.lower.programs import Body, bounds

Touch: TypeAlias = P.Wait | P.Load | P.Store | P.Notify


def called(frame: Frame) -> Tiles:
    """Tile by tile: waits, the function on views of the tile, notifies."""
    step, program = frame.step, frame.step.step.program
    assert step.library is not None
    frame.walked = frozenset(op.var for op in P.walk(program.body) if isinstance(op, P.Tiles))
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
            for lowered in Body(frame).op(op):
                found.setdefault(unplaced(lowered), lowered)
    return tuple(found.values())


def _arguments(frame: Frame) -> tuple[str, ...]:
    return tuple(p.name for p in frame.step.step.program.params if p.role == "in")


def _taken(frame: Frame, ops: Iterable[Touch]) -> Iterator[Op]:
    """What the function gets of each argument: the one view of it that the program reads, or all of it."""
    for param in _arguments(frame):
        loads = _lowered(frame, [op for op in ops if op.param == param], P.Load)
        if not loads:
            whole: Entries = [(v, P.Whole()) for v in frame.step.step.binding(param).view]
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
