"""Where each tensor's local tensor lives on a rank: argument, result, workspace, or registers only; and which of it is read
in the argument that the rank has brought along."""

from __future__ import annotations

from dataclasses import replace

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.lowered import Buffer
from tilelink.ir.plan import InPlace, Plan, StepPlan
from tilelink.ir.program import Load, OfTile, Wait, pointed, walk
from tilelink.ir.wiring import Step, TensorDecl, entry_on
from tilelink.mapping.libraries import RUN, axis_of, viewed
from tilelink.mapping.signal_matching import crosses, reads_remote


def buffers_of(plan: Plan) -> tuple[Buffer, ...]:
    """The memory of all tensors that have some.

    Raises:
        TilelinkError: TL305 a result that other ranks write, TL307 an argument whose layout a copy program cannot take.
    """
    wiring = plan.wiring
    found = tuple(b for t in wiring.tensors if (b := _buffer(plan, t)) is not None)
    staged = {b.name for b in found if b.staged}
    for s in plan.steps:
        name = s.step.moved_from
        if name is None or wiring.tensor(name).origin != "argument":
            continue
        last, layout = len([a for a in wiring.tensor(name).axes if not a.own_slice]) - 1, plan.layout(name)
        if layout.contiguous if name not in staged else layout.unit_axis == last:
            continue
        raise TilelinkError(
            "TL307",
            f"`{s.path}` moves the argument `{name}`, whose elements do not lie one after the other",
            loc=s.step.loc,
            why="it is moved from where it lies, in runs of memory from first to last element"
            if name not in staged
            else "peers read a copy of it, which is made of rows whose elements lie side by side in memory",
            hint=f"pass {name}.contiguous()",
        )
    return found


def _buffer(plan: Plan, tensor: TensorDecl) -> Buffer | None:
    """Where the tensor's own instance lives, from who touches it; None: it lives in registers only."""
    wiring, slots = plan.wiring, plan.schedule.slots
    touching = [(s, b.param) for s in plan.steps for b in s.step.bindings if b.tensor == tensor.name]
    remote = any(reads_remote(s, p) for s, p in touching) or any(crosses(s, p) for s, p in touching)
    declared = {s.step.program.param(p).shape.written for s, p in touching}
    found = Buffer(
        name=tensor.name,
        extents=_extents(tensor, exact=tensor.origin == "argument" or tensor.name in wiring.results),
        dtype=tensor.dtype,
        space="device",
        axes=tuple(a.name for a in tensor.axes if not a.own_slice),
        written=next((w for w in ("partial", "once") if w in declared), None),
        loc=tensor.loc,
    )
    if tensor.origin == "argument":
        stage = _extents(tensor, exact=False) if remote and not plan.layout(tensor.name).symmetric else None
        return replace(found, space="argument", slots=slots, stage=stage, reached=remote)
    if tensor.name in wiring.results:
        if remote:
            raise TilelinkError(
                "TL305",
                f"the result `{tensor.name}` would be written by other ranks",
                loc=wiring.loc,
                why="results are fresh tensors, which peers cannot reach",
                hint="schedule its last copy program as a pull (push=False)",
            )
        return replace(found, space="result")
    splits = any(a.split == tensor.name for t in wiring.tensors for a in t.axes)
    # Nobody knows what a program does with a pointer.
    raw = any(p in pointed(s.step.program) for s, p in touching)
    remote = remote or raw
    if not splits and not raw and not any(_in_memory(s, p) for s, p in touching):
        return None
    return replace(found, space="symmetric", slots=slots) if remote else found


def _in_memory(s: StepPlan, param: str) -> bool:
    """Whether the step needs the tensor in memory, rather than in the registers of the worker that makes it."""
    binding = s.step.binding(param)
    if s.library is not None:
        return True  # a function takes tensors, and fills one
    if s.copies:
        return s.into is None or crosses(s, param)
    loads = any(isinstance(op, Load) and op.param == param for op in walk(s.step.program.body))
    forwarded = binding.tensor in s.forwarded and all(v.axis is None or not v.unit for v in binding.view)
    return loads and not forwarded


def _extents(tensor: TensorDecl, exact: bool) -> tuple[Formula, ...]:
    """Elements per stored axis on a rank; a symmetric or workspace instance has whole parts, so that peers agree."""
    return tuple(a.size if a.over is None else a.here if exact else a.part for a in tensor.axes if not a.own_slice)


# ------------------------------------------------------------------------------------------------------ local shards
def with_aliases(plan: Plan) -> tuple[StepPlan, ...]:
    """The steps, with what they read in place: of a gathered tensor that a copy engine brings, a rank's own part is read in the
    argument, and not moved. A plan says it (`InPlace`), and its proof does not rely on it: with or without, the same values
    are read, and nobody waits for more."""
    wiring, steps = plan.wiring, plan.steps
    found: dict[str, list[InPlace]] = {}
    for tensor in (wiring.tensor(c.tensor) for c in plan.channels):
        makers = [s for s in steps if s.step in wiring.producers(tensor.name)]
        within = len(makers) == 1 and makers[0].engine.sm == "within"
        source = brought_along(plan, makers[0].step, tensor) if within else None
        if source is None:
            continue
        read = [(s, b.param) for s in steps if s is not makers[0] for b in s.step.bindings if b.tensor == tensor.name]
        tiles = {(s.path, _tile_of(plan, s, param)) for s, param in read}
        own = {path: InPlace(tensor.name, source.name, var) for path, var in tiles if var is not None}
        # Everyone who reads it can do without its own part, and takes it at one tile; else nobody does.
        for path in own if len(own) == len(tiles) else ():
            found.setdefault(path, []).append(own[path])
    return tuple(replace(s, in_place=tuple(found.get(s.path, ()))) for s in steps)


def brought_along(plan: Plan, step: Step, tensor: TensorDecl) -> TensorDecl | None:
    """The argument that a copy program makes the tensor of, part by part and as it is; None: it is not so."""
    if step.moved_from is None or tensor.name in plan.wiring.results:
        return None
    source = plan.wiring.tensor(step.moved_from)
    if source.origin != "argument" or source.dtype != tensor.dtype or not plan.layout(source.name).contiguous:
        return None
    straight = all(a.axis == b.axis for a, b in step.moved_axes)
    # Along an axis in front of the split one, elements of the part lie closer together than those of the whole.
    outermost = [a.split for a in source.axes if a.split is not None] == ["R"] and source.axes[0].split == "R"
    whole = all(a.split is None for a in tensor.axes)
    slices = any(a.own_slice for a in source.axes)
    return source if straight and outermost and whole and not slices else None


def _tile_of(plan: Plan, s: StepPlan, param: str) -> str | None:
    """The tile by which a step waits for the tensor, and reads it, along its first axis; None: not so, or it crosses parts."""
    program = s.step.program
    if s.copies or not s.engine.computes or s.into is not None or s.fused:
        return None
    loads = [op for op in walk(program.body) if isinstance(op, Load) and op.param == param]
    waits = [op for op in walk(program.body) if isinstance(op, Wait) and op.param == param]
    if s.by_panels:
        named = {viewed(s.step, param, op.index, runs=True)[0][1] for op in (*loads, *waits)}
        return RUN if named == {OfTile(RUN)} and axis_of(s).kind == "cut" else None
    if len(loads) != 1 or len(waits) != 1 or waits[0] not in program.body:
        return None
    at = {entry_on(s.step, param, op.index, 0) for op in (*loads, *waits)}
    entry = at.pop()
    if at or not isinstance(entry, OfTile):
        return None
    var = entry.var
    grid = next((g for g in s.grid if g.var == var), None)
    if grid is not None and grid.kind == "cut":
        return var
    if grid is None or grid.kind != "plain" or grid.tile is None:
        return None
    return var if int(F.evaluate(grid.size, plan.env(0))) % (grid.tile * plan.topology.ranks) == 0 else None
