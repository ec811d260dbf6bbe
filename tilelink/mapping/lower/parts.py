"""What each statement of a program becomes, in the program's own names: what codegen prints."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.ir import formula as F
from tilelink.ir import program as P
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import AT, Op, Part, Read, Walk
from tilelink.ir.partition import extent
from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.lower.copies import copied
from tilelink.mapping.lower.frame import Frame
from tilelink.mapping.lower.programs import Body
from tilelink.mapping.lower.signals import said


def part_of(plan: Plan, step: StepPlan) -> Part:
    """One tile of a step that workers take."""
    host = None if step.into is None else plan.step(step.into)
    frame, program = Frame(plan, step, host, by_name=True), step.step.program
    tiles, tests = tuple(_tiles(frame)), tuple(frame.tests)
    if program.movement is not None:
        return Part(step.path, tiles, tests, copied(frame), (), ())
    found, values = tuple(_said(frame, program.body)), tuple(_values(frame, program.body))
    return Part(step.path, tiles, tests, (), found, values, tuple(_walks(frame, program.body)))


def _tiles(frame: Frame) -> Iterator[tuple[str, Formula, Formula]]:
    """Those that the program names, and those that a mainloop step passes on."""
    for (name, begin), (_, end) in zip(frame.lets[::2], frame.lets[1::2], strict=True):
        var = name.removesuffix(".begin")
        if var in frame.tiles or any("." in symbol for symbol in F.symbols(begin)):
            yield var, begin, end


def _said(frame: Frame, body: tuple[P.Op, ...]) -> Iterator[tuple[P.Op, tuple[Op, ...]]]:
    for op in P.walk(body):
        if isinstance(op, P.Tiles):
            grid = frame.step.loop(op)
            frame.tiles[op.var] = frame.tile(grid.free if op.limited else grid, Sym(op.var), op.var, [])
        elif isinstance(op, P.Wait | P.Notify):
            yield op, Body(frame).op(op)
        elif isinstance(op, P.Store):
            yield op, Body(frame).store(op)
        elif isinstance(op, P.Load):
            yield op, frame.access(Read, op.param, frame.index(op.param, op.index), frame.step.rank, op.loc)


def _values(frame: Frame, body: tuple[P.Op, ...]) -> Iterator[tuple[P.Op, tuple[Formula, ...]]]:
    for op in P.walk(body):
        if isinstance(op, P.Holder):
            found = frame.owner(op.param, frame.index(op.param, op.index))
            yield op, (frame.step.rank if found is None else found,)
        elif isinstance(op, P.Bounds) and op.axis is not None and op.what in ("size", "range"):
            view = frame.step.step.binding(op.param).view[op.axis]
            yield op, (extent(frame.tensor(op.param), view, frame.step.axis),)
        elif isinstance(op, P.Tiles):
            yield op, frame.step.loop(op).span


def _walks(frame: Frame, body: tuple[P.Op, ...]) -> Iterator[tuple[str, Walk]]:
    waits = [(o, s.channel) for o in P.walk(body) if isinstance(o, P.Wait) and (s := said(frame, o)) and s.channel]
    for op, name in waits:
        channel = frame.plan.channel(name)
        for view, entry in frame.index(op.param, op.index):
            axis = next((a for a in channel.axes if a.axis == view.axis), None)
            if isinstance(entry, P.OfTile) and axis is not None:
                begin, end = axis.interval(Sym("flag"))
                shift = axis.rank * axis.part if view.local else F.of(0)
                base = axis.first(local=view.local)
                index, first = axis.index(base + Sym(AT)), F.of(0) if base == F.of(0) else axis.index(base)
                yield entry.var, Walk(op, index, first, begin - shift, end - shift, len(channel.axes) == 1)
