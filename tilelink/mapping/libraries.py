"""Programs whose tiles a library function computes: which can be, and what they read where a function takes them.

A stream waits for what a tile reads, calls the function on views of it, and says that the tile is there. The program keeps
its meaning: its waits, loads, stores and notifies say what is read and written, and the proof goes by them.

A function by panels takes a tile in runs of the one axis that the program walks and that the tile does not have. It takes
all positions of axes that the program walks one at a time, and so does the program as the plan has it (`called`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilelink.ir import formula as F
from tilelink.ir import program as P
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Index, IndexEntry, is_raw, rewritten, tile_names, walk
from tilelink.ir.schedule import Library
from tilelink.ir.wiring import Entries, Step, entries, indexed

RUN = ""
"""Stands for the tile of the loop where an index names it, as the variable of an axis of the domain for that axis."""


# --------------------------------------------------------------------------------------------------------- what can be so
def unsuitable(step: Step, placement: Library) -> str | None:
    """Why a library function cannot compute the step's tiles from views of its tensors; None: it can."""
    if step.program.copy_program is not None:
        return "it only moves: there is nothing to compute"
    if is_raw(step.program):
        return "it takes pointers, and nobody knows what lies behind them"
    return next(_against(called(step, runs=placement.runs), placement), None)


def _against(step: Step, placement: Library) -> Iterator[str]:
    program, view = step.program, step.binding(step.program.domain).view
    if [p.name for p in program.params if p.role == "out"] != [program.domain]:
        yield "a library function makes one tensor, tile by tile, and this program is not made so"
    for b in step.bindings:
        axes = [v.of for v in b.view if v.of is not None]
        if not all(v.stored for v in b.view) or any(a.owner for a in axes):
            yield f"`{b.param}` is a slice that the rank's number chooses, and the function gets plain views"
        if any(a.split != a.over for a in axes):
            yield f"`{b.param}` is split at run time, and views are cut before"
    yield from (f"it walks `{v.dim}` one at a time" for v in view if v.unit)
    if placement.runs:
        yield from _of_runs(step)
    for op in walk(program.body) if not placement.runs else ():
        if isinstance(op, (P.If, P.Loop)):
            yield "it branches or loops, and a function takes each tile whole"
        if isinstance(op, P.Tiles) and op.limited:
            yield "it walks a part of an axis, and the function gets all of it"
    loops = _loops(program)
    for op in walk(program.body):
        if isinstance(op, (P.Load, P.Store, P.Wait, P.Notify)) and not all(
            isinstance(e, (P.Whole, P.OfTile)) or (isinstance(e, P.At) and e.expr.text in loops)
            for e in entries(step, op.param, op.index)
        ):
            yield f"it takes `{op.param}` at places that a view does not have"
        if isinstance(op, (P.Wait, P.Notify)) and op.peer is not None:
            yield "it names its peers"
        if isinstance(op, P.Load) and program.param(op.param).role == "out":
            yield f"it reads `{op.param}`, which it writes"
    stores = [op for op in walk(program.body) if isinstance(op, P.Store)]
    names = tile_names(program)
    whole = all(
        isinstance(e, P.OfTile) and e.var == n if n is not None else isinstance(e, P.Whole)
        for s in stores
        for e, n in zip(entries(step, s.param, s.index), names, strict=False)
    )
    if len(stores) != 1 or stores[0] not in program.body or stores[0].mask or stores[0].to != "own" or not whole:
        yield "it does not store each tile once, as a whole and at home"
    told = [op for op in walk(program.body) if isinstance(op, P.Notify)]
    if any(op not in program.body or op.param != program.domain for op in told):
        yield "it notifies more than the tile that it has stored"
    for p in program.params:
        loads = [op for op in walk(program.body) if isinstance(op, P.Load) and op.param == p.name]
        if len({viewed(step, op.param, op.index, runs=placement.runs) for op in loads}) > 1:
            yield f"it reads `{p.name}` at two tiles, and the function gets one view of it"
    dims = {v.dim for v, n in zip(view, (*names, *view), strict=False) if n is not None}
    if placement.runs:
        dims.add(walked(step))
    known = {v.dim for b in step.bindings for v in b.view}
    for loose in (dim for dim, _ in placement.tile if dim not in dims and dim in known):
        if any(v.dim == loose for v in view):
            yield f"the program stores all of `{loose}` with each tile"
        yield (
            f"the function gets all of `{loose}`, which is no axis of what it makes, unless it says how to merge what parts "
            "give (tilelink.by_panels)"
        )


def _of_runs(step: Step) -> Iterator[str]:
    """Positions have to say which runs there are."""
    program = step.program
    dims = {v.dim for v in step.binding(program.domain).view}
    walks = [op for op in walk(program.body) if isinstance(op, P.Tiles)]
    along = {step.binding(op.param).view[op.axis].dim for op in walks}
    if len(along) != 1 or along & dims or any(isinstance(o, P.Tiles) for op in walks for o in walk(op.body)):
        yield (
            "runs are of one axis that the program walks and its tiles do not have, and it walks no such axis or more"
        )
    for op in walks:
        view = step.binding(op.param).view[op.axis]
        if view.local or view.over:
            yield f"this rank has a part of `{op.param}` only"
    touching = (P.Load, P.Store, P.Wait, P.Notify, P.Tiles)
    # The names whose values are known for each tile.
    known, own = {*step.compiled, "RANKS"}, {n for n in tile_names(program) if n is not None}
    for op in walk(program.body):
        if isinstance(op, P.Loop) and op.target is not None:
            known.add(op.target)
        if isinstance(op, P.Bounds) and (op.what == "size" or (op.what in ("begin", "end") and op.var in own)):
            known.add(op.name)
    for op in walk(program.body):
        if isinstance(op, P.If) and any(isinstance(o, touching) for o in walk((*op.body, *op.orelse))):
            yield "it branches, and a function takes each run whole"
        if isinstance(op, P.Loop) and turns(op, step) is None and any(isinstance(o, touching) for o in walk(op.body)):
            yield f"nobody knows how often it loops (`{op.header}`), and so which runs there are"
        if isinstance(op, P.Tiles):
            bounds = [e for e in (op.start, op.stop, *(op.part or ())) if e is not None]
            free = next((e for e in bounds if e.formula is None or not F.symbols(e.formula) <= known), None)
            if free is not None or op.part is not None:
                said = f"`{free}` is known to the device only" if free is not None else "it walks a share of the axis"
                yield f"{said}, and so which runs there are"


def _loops(program: P.TileProgram) -> frozenset[str]:
    return frozenset(op.var for op in walk(program.body) if isinstance(op, P.Tiles))


def viewed(step: Step, param: str, index: Index | None, *, runs: bool) -> Entries:
    """What a function gets along each axis: a tile of the domain, or all. `runs`: tile `RUN` where the index names one of the
    axis that the program walks, which else the function gets all of."""
    loops, walked = _loops(step.program), P.OfTile(RUN) if runs else P.Whole()
    tiles = ((v, e if isinstance(e, P.OfTile) else P.Whole()) for v, e in indexed(step, param, index))
    return tuple((v, walked if isinstance(e, P.OfTile) and e.var in loops else e) for v, e in tiles)


def called(step: Step, *, runs: bool) -> Step:
    """The step as a function takes it: its stream says once of each tile that it is there, whatever part of it, or all of
    which it is a part, the program announces. `runs`: as one by panels does."""
    step = _by_runs(step) if runs else step
    body, stores = step.program.body, [op for op in walk(step.program.body) if isinstance(op, P.Store)]
    told = [op for op in body if isinstance(op, P.Notify) and op.param == step.program.domain]
    if len(stores) != 1 or not told:
        return step
    there = replace(told[-1], index=stores[0].index)
    body = tuple(there if op is told[-1] else op for op in body if op not in told[:-1])
    return replace(step, program=replace(step.program, body=body))


# ------------------------------------------------------------------------------------------------------------ run by run
def _by_runs(step: Step) -> Step:
    """Axes that the program walks one at a time are whole, and so is what it reads at positions that come of those, such as the
    keys that a group of heads shares."""
    program = step.program
    view = step.binding(program.domain).view
    names = {n for n, v in zip(tile_names(program), view, strict=False) if n is not None and v.unit}
    walks = [op for op in walk(program.body) if isinstance(op, P.Tiles)]
    singly = names | {op.var for op in walks if step.binding(op.param).view[op.axis].unit}

    def wide(entry: IndexEntry) -> IndexEntry:
        if not isinstance(entry, P.At):
            return entry
        if entry.expr.text in singly:
            return P.OfTile(entry.expr.text)
        return P.Whole() if entry.expr.formula is not None and F.symbols(entry.expr.formula) & names else entry

    def widened(op: P.Op) -> P.Op:
        if isinstance(op, (P.Load, P.Store, P.Wait, P.Notify)) and op.index is not None:
            return replace(op, index=tuple(wide(e) for e in op.index))
        return op

    bindings = tuple(replace(b, view=tuple(replace(v, unit=False) for v in b.view)) for b in step.bindings)
    return replace(step, program=replace(program, body=rewritten(program.body, widened)), bindings=bindings)


def turns(op: P.Loop, step: Step) -> int | None:
    """How often a loop over a range of a known length goes round."""
    found = op.turns
    return (
        int(F.evaluate(found, step.compiled))
        if found is not None and F.symbols(found) <= step.compiled.keys()
        else None
    )


def walk_of(step: Step) -> P.Tiles:
    """The loop over what the runs are of."""
    return next(op for op in walk(step.program.body) if isinstance(op, P.Tiles))


def axis_of(step: StepPlan) -> GridAxis:
    """The partition of the axis that runs are of."""
    return step.loop(walk_of(step.step))


def walked(step: Step) -> str:
    """The dimension of the runs."""
    op = walk_of(step)
    return step.binding(op.param).view[op.axis].dim
