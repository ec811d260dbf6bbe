"""One step as one function: a persistent loop over its tiles, or, fused, the tile its host has just made."""

from __future__ import annotations

from tilelink.codegen import access, copies, deferred_epilogue, segments, signals
from tilelink.codegen.body import emit_body
from tilelink.codegen.epilogue import bounds_passed, call_fused, fused_function, held_of
from tilelink.codegen.function import Function, close
from tilelink.codegen.loops import FIRST_PIECE
from tilelink.codegen.names import read_names
from tilelink.codegen.scope import File, Scope, TileNames, open_scope
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.lowered import Await, Part, Signal
from tilelink.ir.lowered import walk as lowered_ops
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import StepPlan, order_of
from tilelink.ir.program import Load, Loop, Tiles, walk


def emit_step(file: File, step: StepPlan) -> list[Function]:
    """The step's function, those fused into it first."""
    plan, scope = file.plan, open_scope(file, step)
    functions: list[Function] = []
    outer = scope.lines
    scope.lines = Lines()
    tiles = _open_tiles(scope)
    if scope.part.copies:
        copies.emit_tile(scope)
    else:
        emit_body(scope, step.step.program.body)
        for fused in map(plan.step, step.fused):
            if fused.behind:
                deferred_epilogue.say_made(scope, fused)
            else:
                functions.append(call_fused(scope, fused))
    inner, scope.lines = scope.lines, outer
    outer.extend(scope.carry)
    signals.notify_for_none(scope)
    outer.add(f"for t in {_tiles_range(scope)}:", scope.tile_loc)
    outer.depth = 1
    _order(scope)
    outer.extend(_late(scope, tiles))
    scope.open_if(scope.part.tests)
    outer.extend(inner)
    # A notify may end in a branch of its own, inside the SHMEM function.
    branches = step.fused or outer.rows[-1][0] > 1 or _notifies(scope.part)
    if branches and _flattens(scope):
        outer.add("blocks.end_of_tile()")
    leading = ("worker", "workers", *(["epoch"] if file.lowered.by_epoch else []))
    functions.append(close(scope, scope.naming.functions[step.path], leading))
    return functions


def emit_behind(file: File, step: StepPlan) -> tuple[Function, Function]:
    """A fused step behind its host's tiles: the function that takes tickets, and what it calls for each."""
    scope = open_scope(file, file.plan.step(step.executor))
    tiles = _open_tiles(scope)
    ticket = deferred_epilogue.names_of_ticket(scope)
    outer, scope.lines = scope.lines, Lines()
    deferred_epilogue.take(scope, step, ticket)
    passed = [end for _, *ends in bounds_passed(scope, step) for end in ends]
    held = held_of(scope, step)
    does = fused_function(file, step, held)
    for arg in does.args:
        scope.args.setdefault(arg.name, arg)
    tile = ["t"] if "t" in does.leading else []
    word = deferred_epilogue.word_awaited(scope, step) if FIRST_PIECE in does.leading else None
    first = [f"{scope.text(word)} != {ticket.waited}"] if word is not None else ["True"] * (FIRST_PIECE in does.leading)
    given = [*dict.fromkeys(held.values()), *passed, *tile, *first, *[a.name for a in does.args]]
    scope.lines.add(f"{does.name}({', '.join(given)})", step.step.program.loc)
    inner, scope.lines = scope.lines, outer
    deferred_epilogue.open_tickets(scope, step, ticket, word)
    _order(scope)
    outer.extend(_late(scope, tiles))
    outer.extend(inner)
    deferred_epilogue.close_tickets(scope, step, ticket, word)
    return close(scope, scope.naming.drivers[step.path], ("workers",)), does


def _order(scope: Scope) -> None:
    """`i0 = …`: the indices of the turn's tile, as far as they tell tiles apart."""
    step = scope.step
    if step.order:
        scope.lines.say(f"the tile of this turn, in order {' '.join(step.order_names)}")
    asked = {n for _, begin, _ in scope.part.tiles for n in F.symbols(begin)}
    asked |= {n for _, value in step.order for n in F.symbols(value)}
    for name, value in step.order:
        if name == "sorted_t":
            scope.arg(Arg(scope.naming.given[order_of(step.path)], "order", step.path))
        if name in asked:
            scope.lines.add(f"{scope.text(Sym(name))} = {scope.text(value)}")


def _tiles_range(scope: Scope) -> str:
    """The positions that a worker takes; fused with the loop inside a tile, where that is worth it and right."""
    span = f"worker, {scope.text(scope.step.total)}, workers"
    return f"tl.range({span}, flatten=True)" if _flattens(scope) else f"range({span})"


def _flattens(scope: Scope) -> bool:
    """Whether the loads of the next tile may go out before this one is stored and signalled.

    With descriptor loads only, where it was measured. What waits before its loop and notifies after it may not: others
    may need this tile's signal before they raise the word that the next tile waits for.
    """
    body = scope.step.step.program.body
    loops = [op for op in body if isinstance(op, (Tiles, Loop))]
    if len(loops) != 1:
        return False
    # One load by pointers, and none of a flattened loop's would be ahead of its use.
    read = {scope.declared(op.param).name for op in walk(loops[0].body) if isinstance(op, Load)}
    if not read or not read <= scope.async_tensors:
        return False
    waited = [statement for statement, ops in scope.part.said if any(isinstance(o, Await) for o in lowered_ops(ops))]
    if any(statement in walk(loops[0].body) for statement in waited):
        return False
    notifies = any(_notifies(scope.lowered.part(path)) for path in (scope.step.path, *scope.step.fused))
    return not (notifies and any(statement in body for statement in waited))


def _notifies(part: Part) -> bool:
    return any(isinstance(o, Signal) for ops in (part.body, *(ops for _, ops in part.said)) for o in lowered_ops(ops))


def _open_tiles(scope: Scope) -> dict[str, TileNames]:
    """Declare the domain's tiles, by variable; their lines come later, when it is known which of them are used. Those of a copy
    program are called as its axes are."""
    for (var, begin, end), g in zip(scope.part.tiles, _grids(scope), strict=True):
        fixed = _index(begin) is None
        label = access.label(g.dim) if scope.part.copies else var
        if g.unit:
            name = scope.names.fresh(f"{label}_begin") if scope.part.copies else scope.local(var)
            scope.tiles[var] = TileNames(scope.text(begin) if fixed else name, "", "", "", g, 1)
            if fixed:
                scope.replaced[var] = scope.text(begin)
            else:
                scope.known[begin] = Sym(name)
            continue
        names = scope.tiles[var] = access.tile_names(scope, label, g)
        if fixed:
            names.begin, names.end = scope.text(begin), scope.text(end)
        if g.table is not None:
            scope.segments[var] = scope.names.fresh(f"{label}_segment")
    return dict(scope.tiles)


def _grids(scope: Scope) -> list[GridAxis]:
    """Of the domain's tiles."""
    return [g for g in scope.step.grid if g.var is not None or scope.part.copies]


def _index(begin: F.Formula) -> str | None:
    """The index of a tile, by where it begins; None: it is always there."""
    return next((n for n in sorted(F.symbols(begin)) if n[0] == "i" and n[1:].isdigit()), None)


def _late(scope: Scope, tiles: dict[str, TileNames]) -> Lines:
    """Begin, end, lanes and masks of the domain's tiles, as far as the body uses them."""
    lines, read = Lines(), read_names(scope.step.step.program.body)
    kept, scope.tiles = scope.tiles, tiles
    for var, begin, end in scope.part.tiles:
        names, index = tiles[var], _index(begin)
        if names.grid.table is not None and index is not None:
            segments.tile(scope, lines, index, names, var)
        elif index is not None and not names.grid.unit:
            lines.add(f"{names.begin} = {scope.text(begin)}")
            if names.used & {"end", "inside"} or _end_used(scope, names):
                lines.add(f"{names.end} = {scope.text(end)}")
        access.lane_lines(lines, names)
        if var in read and not names.grid.unit:
            # A tile by its number, an axis that is walked singly by its position.
            at = next(a for a, g in enumerate(scope.step.grid) if g.var == var)
            unit = scope.step.step.binding(scope.step.domain).view[at].unit
            lines.add(f"{scope.local(var)} = {names.begin if unit or index is None else index}")
    scope.tiles = kept
    return lines


def _end_used(scope: Scope, names: TileNames) -> bool:
    return any(names.end in text for _, text, _ in scope.lines.rows) or names.end in scope.formulas.symbols
