"""What is likely meant where Triton does not accept a line: loops that count positions of an axis that has tiles."""

from __future__ import annotations

from tilelink.ir.kernel import Advice
from tilelink.ir.plan import Plan
from tilelink.ir.program import At, Load, Loop, Param, Store, TileProgram, walk
from tilelink.ir.shape import Dim


def advice_of(plan: Plan) -> tuple[Advice, ...]:
    """For each `range` loop of the plan's programs by whose variable a tiled axis is indexed."""
    programs = dict.fromkeys(s.step.program for s in plan.steps)
    return tuple(a for p in programs for op in walk(p.body) if isinstance(op, Loop) for a in _of_loop(p, op))


def _of_loop(program: TileProgram, loop: Loop) -> tuple[Advice, ...]:
    if loop.target is None:
        return ()
    inside = [*walk(loop.body)]
    found = [
        (k, param)
        for op in inside
        if isinstance(op, (Load, Store))
        for param in (program.param(op.param),)
        for k, entry in enumerate(op.index)
        if isinstance(entry, At) and loop.target in entry.expr.names and _tiled(param, k)
    ]
    if not found:
        return ()
    k, param = min(found, key=lambda one: one[0])
    hint = (
        f"for tiles of `{param.shape.axes[k].name}` write `for {loop.target} in tl.tiles({param.name}, axis={k})`: "
        f"what `range` counts are single positions, along which a block has no axis"
    )
    return (Advice(loop.loc.file, loop.loc.line, max(op.loc.line for op in inside), hint),)


def _tiled(param: Param, k: int) -> bool:
    size = param.shape.axes[k].size
    return isinstance(size, Dim) and not size.unit
