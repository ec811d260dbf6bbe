"""What each statement of a program becomes, in the program's own names: what codegen prints."""

from __future__ import annotations

from collections.abc import Iterator

from tilelink.ir import formula as F
from tilelink.ir import program as P
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import AT, Op, Part, Read, Walk
from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.lower.copies import copied
from tilelink.mapping.lower.frame import Frame
from tilelink.mapping.lower.intervals import Interval
from tilelink.mapping.lower.programs import Body
from tilelink.mapping.lower.signals import said


def part_of(plan: Plan, step: StepPlan) -> Part:
    """One tile of a step that workers take."""
    host = None if step.into is None else plan.step(step.into)
    frame, program = Frame(plan, step, host, by_name=True), step.step.program
    tiles, tests = tuple(_tiles(step) if host is None else _passed(step, host)), tuple(frame.tests)
    if program.copy_program is not None:
        return Part(step.path, tiles, tests, copied(frame), (), ())
    found, holders = tuple(_said(frame, program.body)), tuple(_holders(frame, program.body))
    return Part(step.path, tiles, tests, (), found, holders, tuple(_walks(frame, program.body)))


def _tiles(step: StepPlan) -> Iterator[tuple[str, Formula, Formula]]:
    for a, g in enumerate(step.grid):
        index, var = Sym(f"i{a}"), str(a) if step.step.program.copy_program is not None else g.var
        if var is not None and g.kind == "plain" and g.tile is None:
            yield var, F.of(0), g.size
        elif var is not None:
            begin = g.begin(index)
            yield var, begin, begin + 1 if g.unit else F.minimum(Sym(f"{var}.begin") + g.step, g.limit(index))


def _passed(step: StepPlan, host: StepPlan) -> Iterator[tuple[str, Formula, Formula]]:
    view = step.step.binding(step.domain).view
    for a, (g, v, at) in enumerate(zip(step.grid, view, step.host_axes, strict=True)):
        var = str(a) if step.step.program.copy_program is not None else g.var
        if at is None and var is not None:
            yield var, step.rank, step.rank + 1
        elif at is not None:
            first = g.rank * g.part if at == step.own_axis and v.local else F.of(0)
            begin, end = (Sym(f"{host.grid[at].var}.{side}") - first for side in ("begin", "end"))
            yield var or f"axis{a}", begin, end


def _said(frame: Frame, body: tuple[P.Op, ...]) -> Iterator[tuple[P.Op, tuple[Op, ...]]]:
    for op in P.walk(body):
        if isinstance(op, P.Tiles):
            frame.tiles[op.var] = _tile(frame, op)
        elif isinstance(op, P.Wait | P.Notify):
            yield op, Body(frame).op(op)
        elif isinstance(op, P.Store):
            yield op, Body(frame).store(op)
        elif isinstance(op, P.Load):
            yield op, frame.access(Read, op.param, frame.index(op.param, op.index), frame.step.rank, op.loc)


def _tile(frame: Frame, op: P.Tiles) -> Interval:
    grid, begin = frame.step.loop(op), Sym(f"{op.var}.begin")
    if frame.step.step.binding(op.param).view[op.axis].unit:
        return Interval(begin, begin + 1, grid=grid)
    if op.limited:
        return Interval(begin, Sym(f"{op.var}.end"), grid=grid.free)
    return frame.tile_by_name(grid, op.var)


def _holders(frame: Frame, body: tuple[P.Op, ...]) -> Iterator[tuple[P.Op, Formula]]:
    for op in P.walk(body):
        if isinstance(op, P.Holder):
            found = frame.owner(op.param, frame.index(op.param, op.index))
            yield op, frame.step.rank if found is None else found


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
