"""A rank's own part of a gathered argument is read in the argument, and not moved.

That is so of tensors that a copy engine gathers. A plan says it (`InPlace`), and its proof does not rely on it: with or
without, the same values are read, and nobody waits for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilelink.ir import formula as F
from tilelink.ir.partition import Channel
from tilelink.ir.plan import InPlace, Layout, StepPlan
from tilelink.ir.program import Load, OfTile, Wait, walk
from tilelink.ir.wiring import Step, TensorDecl, Wiring, entry_on
from tilelink.mapping.libraries import RUN, axis_of, tiled


def with_aliases(
    wiring: Wiring,
    steps: tuple[StepPlan, ...],
    channels: tuple[Channel, ...],
    layouts: Mapping[str, Layout],
    sizes: Mapping[str, int],
    ranks: int,
) -> tuple[StepPlan, ...]:
    """The steps, with what they read in place."""
    found: dict[str, list[InPlace]] = {}
    for channel in channels:
        for path, part in _readers(wiring, steps, channel, layouts, {**sizes, "RANKS": ranks}).items():
            found.setdefault(path, []).append(part)
    return tuple(replace(s, in_place=tuple(found.get(s.path, ()))) for s in steps)


def _readers(
    wiring: Wiring,
    steps: tuple[StepPlan, ...],
    channel: Channel,
    layouts: Mapping[str, Layout],
    sizes: Mapping[str, int],
) -> dict[str, InPlace]:
    """Everyone who reads the channel's tensor, by path, if all of them can do without its own part."""
    makers = [s for s in steps if s.step in wiring.producers(channel.tensor)]
    tensor = wiring.tensor(channel.tensor)
    if len(makers) != 1 or makers[0].engine.sm != "within":
        return {}
    source = brought_along(wiring, makers[0].step, tensor, layouts)
    if source is None:
        return {}
    axis = next(k for k, a in enumerate(source.axes) if a.over is not None)
    out: dict[str, InPlace] = {}
    for s in steps:
        for b in s.step.bindings:
            if b.tensor != tensor.name or s is makers[0]:
                continue
            var = _tile_of(s, b.param, axis, sizes)
            if var is None:
                return {}
            part = InPlace(tensor.name, source.name, axis, var)
            if out.setdefault(s.path, part) != part:
                return {}  # taken at two tiles
    return out


def brought_along(wiring: Wiring, step: Step, tensor: TensorDecl, layouts: Mapping[str, Layout]) -> TensorDecl | None:
    """The argument that a copy program makes the tensor of, part by part and as it is; None: it is not so."""
    if step.moved_from is None or tensor.name in wiring.results:
        return None
    source = wiring.tensor(step.moved_from)
    if source.origin != "argument" or source.dtype != tensor.dtype or not layouts[source.name].contiguous:
        return None
    straight = all(a.axis == b.axis for a, b in step.moved_axes)
    # Along an axis in front of the split one, elements of the part lie closer together than those of the whole.
    outermost = [a.split for a in source.axes if a.split is not None] == ["R"] and source.axes[0].split == "R"
    whole = all(a.split is None for a in tensor.axes)
    slices = any(a.own_slice for a in source.axes)
    return source if straight and outermost and whole and not slices else None


def _tile_of(s: StepPlan, param: str, axis: int, sizes: Mapping[str, int]) -> str | None:
    """The tile by which a step waits for the tensor, and reads it, along an axis; None: not so, or it crosses parts."""
    program = s.step.program
    if not s.engine.computes or s.into is not None or s.fused:
        return None
    loads = [op for op in walk(program.body) if isinstance(op, Load) and op.param == param]
    waits = [op for op in walk(program.body) if isinstance(op, Wait) and op.param == param]
    if s.by_panels:
        named = {tiled(s.step, param, op.index, runs=True)[axis] for op in (*loads, *waits)}
        return RUN if named == {RUN} and axis_of(s).kind == "cut" else None
    if len(loads) != 1 or len(waits) != 1 or waits[0] not in program.body:
        return None
    at = {entry_on(s.step, param, op.index, axis) for op in (*loads, *waits)}
    entry = at.pop()
    if at or not isinstance(entry, OfTile):
        return None
    var = entry.var
    grid = next((g for g in s.grid if g.var == var), None)
    if grid is not None and grid.kind == "cut":
        return var
    if grid is None or grid.kind != "plain" or grid.tile is None:
        return None
    return var if int(F.evaluate(grid.size, sizes)) % (grid.tile * sizes["RANKS"]) == 0 else None
