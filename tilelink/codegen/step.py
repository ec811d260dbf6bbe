"""One step as one function: a persistent loop over its tiles, or, fused, the tile its host has just made."""

from __future__ import annotations

from tilelink.codegen import behind, copies, signals, tables
from tilelink.codegen.access import lane_lines, tile_names
from tilelink.codegen.body import emit_body
from tilelink.codegen.functions import Function, close
from tilelink.codegen.fusion import bounds_passed, call_fused, fused_function, held_of
from tilelink.codegen.loops import FIRST_PIECE
from tilelink.codegen.naming import read_names
from tilelink.codegen.scope import File, Scope, TileNames, open_scope
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import StepPlan, order_of
from tilelink.ir.program import Load, Loop, Tiles, walk


def emit_step(file: File, step: StepPlan) -> list[Function]:
    """The step's function, those fused into it first."""
    plan, scope = file.plan, open_scope(file, step)
    functions: list[Function] = []
    outer = scope.lines
    scope.lines = Lines()
    if step.step.program.movement is not None:
        bounds = copies.open_tiles(scope)
        copies.emit_tile(scope)
    else:
        bounds = _open_tiles(scope)
        emit_body(scope, step.step.program.body)
        for fused in map(plan.step, step.fused):
            if fused.behind:
                behind.say_made(scope, fused)
            else:
                functions.append(call_fused(scope, fused))
    inner, scope.lines = scope.lines, outer
    outer.extend(scope.carry)
    signals.notify_for_none(scope)
    outer.add(f"for t in {_tiles_range(scope)}:", scope.tile_loc)
    outer.depth = 1
    _say_order(scope)
    for name, value in step.order:
        _assign_order(scope, name, value)
    outer.extend(_late(scope, bounds))
    _if_taken(scope, outer)
    outer.extend(inner)
    # A notify may end in a branch of its own, inside the SHMEM function.
    branches = (
        step.fused or outer.rows[-1][0] > 1 or any(g.path == step.path and g.action == "notify" for g in plan.signals)
    )
    if branches and _flattens(scope):
        outer.add("blocks.end_of_tile()")
    leading = ("worker", "workers", *(["epoch"] if plan.brief else []))
    functions.append(close(scope, scope.naming.functions[step.path], leading))
    return functions


def emit_behind(file: File, step: StepPlan) -> tuple[Function, Function]:
    """A fused step behind its host's tiles: the function that takes tickets, and what it calls for each."""
    scope = open_scope(file, file.plan.step(step.executor))
    bounds = _open_tiles(scope)
    ticket = behind.names_of_ticket(scope)
    outer, scope.lines = scope.lines, Lines()
    behind.take(scope, step, ticket)
    passed, _ = bounds_passed(scope, step)
    held = held_of(scope, step)
    does = fused_function(file, step, held)
    for arg in does.args:
        scope.args.setdefault(arg.name, arg)
    tile = ["t"] if "t" in does.leading else []
    word = behind.word_awaited(scope, step) if FIRST_PIECE in does.leading else None
    first = [f"{scope.text(word)} != {ticket.waited}"] if word is not None else ["True"] * (FIRST_PIECE in does.leading)
    given = [*dict.fromkeys(held.values()), *passed, *tile, *first, *[a.name for a in does.args]]
    scope.lines.add(f"{does.name}({', '.join(given)})", step.step.program.loc)
    inner, scope.lines = scope.lines, outer
    behind.open_tickets(scope, step, ticket, word)
    _say_order(scope)
    for name, value in scope.step.order:
        _assign_order(scope, name, value)
    outer.extend(_late(scope, bounds))
    outer.extend(inner)
    behind.close_tickets(scope, step, ticket, word)
    return close(scope, scope.naming.drivers[step.path], ("workers",)), does


def _say_order(scope: Scope) -> None:
    if scope.step.order:
        scope.lines.say(f"the tile of this turn, in order {' '.join(scope.step.order_names)}")


def _if_taken(scope: Scope, lines: Lines) -> None:
    """Of a domain with an owner map: this rank's tiles only."""
    for test in scope.part.tests:
        lines.add(f"if {scope.text(test)}:")
        lines.depth += 1


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
    signals = [g for p in (scope.step.path, *scope.step.fused) for g in scope.plan.signals if g.path == p]
    waits = any(g.action in ("await", "ready") and g.op in body for g in signals)
    runs = any(g.action in ("await", "ready") and g.op in walk(loops[0].body) for g in signals)
    return not runs and not (waits and any(g.action == "notify" for g in signals))


def _assign_order(scope: Scope, name: str, value: F.Formula) -> None:
    """`i0 = …`: the tile's index per axis; axes with one coordinate need none."""
    if name[0] == "i" and name[1:].isdigit():
        grid = scope.step.grid[int(name[1:])]
        if grid.kind == "own" or (grid.kind == "plain" and grid.tile is None):
            return
        if grid.kind == "unit":
            scope.lines.add(f"{_unit_name(scope, int(name[1:]), grid)} = {scope.text(value)}")
            return
    if name == "sorted_t":
        scope.arg(Arg(scope.naming.given[order_of(scope.step.path)], "order", scope.step.path))
    scope.lines.add(f"{name} = {scope.text(value)}")


def _unit_name(scope: Scope, a: int, grid: GridAxis) -> str:
    if scope.step.step.program.movement is not None:
        return scope.tiles[str(a)].begin
    return scope.local(grid.var) if grid.var else f"{grid.dim}_at"


def _open_tiles(scope: Scope) -> list[tuple[int, GridAxis, TileNames]]:
    """Declare the domain's tiles; their lines come later, when it is known which of them are used."""
    out: list[tuple[int, GridAxis, TileNames]] = []
    for a, g in enumerate(scope.step.grid):
        if g.var is None:
            continue
        if g.unit:
            scope.tiles[g.var] = TileNames(scope.local(g.var) if g.kind == "unit" else scope.rank, "", "", "", g, 1)
            if g.kind == "own":
                scope.replaced[g.var] = scope.rank
            continue
        if g.kind == "table":
            scope.segments[g.var] = scope.names.fresh(f"{g.var}_segment")
        out.append((a, g, tile_names(scope, g.var, g)))
    return out


def _late(scope: Scope, bounds: list[tuple[int, GridAxis, TileNames]]) -> Lines:
    """Begin, end, lanes and masks of the domain's tiles, as far as the body uses them."""
    lines = Lines()
    read = read_names(scope.step.step.program.body)
    for a, g, names in bounds:
        if g.var is None and (g.unit or not names.used):
            continue  # of a copy program
        if g.kind == "table":
            tables.tile(scope, lines, a, g, names)
        else:
            lines.add(f"{names.begin} = {scope.text(g.begin(Sym(f'i{a}')))}")
            if names.used & {"end", "inside"} or _end_used(scope, names):
                limit = scope.text(g.limit(Sym(f"i{a}")))
                lines.add(f"{names.end} = tl.minimum({names.begin} + {scope.text(g.step, F.SUMMAND)}, {limit})")
        lane_lines(lines, names)
        if g.var in read:
            # A tile by its number, an axis that is walked singly by its position.
            unit = scope.step.step.binding(scope.step.domain).view[a].unit
            lines.add(f"{scope.local(g.var or '')} = {names.begin if unit else f'i{a}'}")
    return lines


def _end_used(scope: Scope, names: TileNames) -> bool:
    return any(names.end in text for _, text, _ in scope.lines.rows) or names.end in scope.formulas.symbols
