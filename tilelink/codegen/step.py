"""A step's function: the loop over its tiles. Steps that are fused into it are functions that it calls for the tile that it has
just made, which it hands over in registers.

Deferred epilogues come behind all tiles of the mainloop, from memory, each by the next worker that is free. The tiles of the
local shard come last in the mainloop's order. Some workers have nothing to do while others make the last tiles; and an epilogue
that waits for other ranks would hold up a worker that has another tile to make. So each worker that is through draws work
indices from a counter, in the mainloop's order, until there are none.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tilelink.codegen import access, copies, signals
from tilelink.codegen.body import FIRST_SUBTILE, emit_body
from tilelink.codegen.function import Function, close, open_tiles, tile_lines
from tilelink.codegen.scope import File, Scope, TileNames, open_scope
from tilelink.codegen.text import atom, words
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.lowered import Await, For, Part, Signal, formulas
from tilelink.ir.lowered import walk as lowered_walk
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Load, Loop, Store, Tiles, Wait, walk


def emit_step(file: File, step: StepPlan) -> list[Function]:
    """The step's function, those fused into it first."""
    scope, functions = open_scope(file, step), list[Function]()
    with scope.apart() as inner:
        tiles = open_tiles(scope)
        if scope.step.copies:
            copies.emit_tile(scope)
        else:
            emit_body(scope, scope.body)
            for fused in map(file.plan.step, step.fused):
                if fused.deferred:
                    _signal_made(scope, fused)
                else:
                    functions.append(_call_fused(scope, fused))
    outer = scope.lines
    outer.extend(scope.carry)
    signals.notify_for_none(scope)
    # The positions that a worker takes; fused with the loop inside a tile, where that is worth it and right.
    flattens, span = _flattens(scope), f"worker, {scope.text(scope.step.total)}, workers"
    outer.add(f"for t in {f'tl.range({span}, flatten=True)' if flattens else f'range({span})'}:", scope.tile_loc)
    outer.depth = 1
    tile_lines(scope, tiles)
    with scope.under(scope.part.tests):
        outer.extend(inner)
        # A notify may end in a branch of its own, inside the SHMEM function.
        branches = step.fused or outer.rows[-1][0] > 1 or _notifies(scope.part)
        if branches and flattens:
            outer.add("blocks.end_of_tile()")
    leading = ("worker", "workers", *(["epoch"] if file.lowered.by_epoch else []))
    functions.append(close(scope, scope.naming.functions[step.path], leading))
    return functions


def _flattens(scope: Scope) -> bool:
    """Whether the loads of the next tile may go out before this one is stored and signalled.

    With descriptor loads only, where it was measured. What waits before its loop and notifies after it may not: others
    may need this tile's signal before they signal the flag that the next tile waits for.
    """
    body = scope.body
    loops = [op for op in body if isinstance(op, (Tiles, Loop))]
    if len(loops) != 1:
        return False
    # One load by pointers, and none of a flattened loop's would be ahead of its use.
    read = {scope.declared(op.param).name for op in walk(loops[0].body) if isinstance(op, Load)}
    if not read or not read <= scope.async_tensors:
        return False
    waited = [statement for statement, ops in scope.part.said if any(isinstance(o, Await) for o in lowered_walk(ops))]
    if any(statement in walk(loops[0].body) for statement in waited):
        return False
    notifies = any(_notifies(scope.lowered.part(path)) for path in (scope.step.path, *scope.step.fused))
    return not (notifies and any(statement in body for statement in waited))


def _notifies(part: Part) -> bool:
    return any(isinstance(o, Signal) for ops in (part.body, *(ops for _, ops in part.said)) for o in lowered_walk(ops))


def _call_fused(host: Scope, step: StepPlan) -> Function:
    """Call the fused step's function for the tile that the host has just made; emit that function."""
    function, tiles, passed = _fused_function(host, step)
    with host.under(host.lowered.part(step.path).tests, step.step.program.loc):
        for k, given in enumerate(_in_subtiles(host, step, tiles, passed)):
            host.lines.add(function.call(*given, **{FIRST_SUBTILE: str(k == 0)}), step.step.program.loc)
    return function


def _bounds_passed(host: Scope, step: StepPlan) -> dict[str, tuple[str, str]]:
    """Begin and end of the host's tile, as the fused step counts and by its variables; of others it is this rank's coordinate."""
    tiles = host.lowered.part(step.path).tiles
    passed = [(var, begin, end) for var, begin, end in tiles if any("." in name for name in F.symbols(begin))]
    return {var: (host.text(begin), host.text(end)) for var, begin, end in passed}


def _in_subtiles(host: Scope, step: StepPlan, tiles: list[str], passed: list[str]) -> list[list[str]]:
    """What is handed over, tiles and where they begin and end, their columns last: once, or subtile by subtile."""
    if step.subtiles == 1:
        return [[*tiles, *passed]]
    width = (step.grid[-1].tile or 0) // step.subtiles
    *others, begin, end = passed
    parts: list[list[str]] = []
    for tile in tiles:
        names = [tile]
        while len(names) < step.subtiles:
            halved: list[str] = []
            for name in names:
                left, right = host.names.fresh(f"{tile}_subtile"), host.names.fresh(f"{tile}_subtile")
                host.lines.add(f"{left}, {right} = blocks.halves({name})", step.step.program.loc)
                halved += [left, right]
            names = halved
        parts.append(names)
    return [
        [
            *(names[k] for names in parts),
            *others,
            f"{begin} + {k * width}" if k else begin,
            f"tl.minimum({begin} + {(k + 1) * width}, {end})",
        ]
        for k in range(step.subtiles)
    ]


def _held_of(host: Scope, step: StepPlan) -> dict[str, str]:
    """Tensors of a fused step -> the host's name of the tile that stands for them."""
    moved = step.step.moved_from
    tensors = step.forwarded if moved is None else (moved,)
    return {t: host.forwarded[host.plan.wiring.moved_from(t, host.forwarded)] for t in tensors}


def _fused_function(host: Scope, step: StepPlan) -> tuple[Function, list[str], list[str]]:
    """A fused step's function, and what the host passes to it: tiles, by name, and where they begin and end."""
    passed, held = _bounds_passed(host, step), _held_of(host, step)
    handed, tiles = list(dict.fromkeys(held.values())), list[TileNames]()
    scope, leading = open_scope(host, step, frozenset(handed)), [*handed]
    with scope.apart() as inner:
        grids = {g.var or f"axis{a}": g for a, g in enumerate(step.grid)}
        for var, _, _ in scope.part.tiles:
            g = grids[var]
            if var in passed:
                if g is step.grid[-1] and step.subtiles > 1:
                    g = replace(g, tile=(g.tile or 0) // step.subtiles)
                tiles.append(access.tile_names(scope, var, g))
            else:
                scope.replaced[var] = scope.rank
                scope.tiles[var] = TileNames(scope.rank, "", g, 1)
        if step.copies:
            copies.emit_tile(scope, leading[0])
        else:
            scope.forwarded |= held
            emit_body(scope, scope.body)
    named = words(inner.rows)
    leading += [name for tile in tiles for name in (tile.begin, tile.end)]
    if host.sites and any(re.search(r"watch_at, \d+, t\b", text) for _, text, _ in inner.rows):
        leading.append("t")  # the host's tile, for reports
    if host.lowered.by_epoch and "epoch" in named:
        leading.append("epoch")
    if FIRST_SUBTILE in named:
        leading.append(FIRST_SUBTILE if step.deferred else f"{FIRST_SUBTILE}: tl.constexpr")
    for names in tiles:
        access.lane_lines(scope, names)
    scope.lines.extend(inner)
    function = close(scope, scope.naming.functions[step.path], tuple(leading))
    # What the function's formulas name has to reach it through the host.
    for arg in function.args:
        host.args.setdefault(arg.name, arg)
    return function, handed, [end for ends in passed.values() for end in ends]


def _signal_made(mainloop: Scope, step: StepPlan) -> None:
    """The mainloop step has stored its tile `t`: if it is of the local shard, whoever draws its work index may read it."""
    with mainloop.under(mainloop.lowered.part(step.path).tests, step.step.program.loc):
        if mainloop.stored_async:
            mainloop.lines.add("shmem.async_store_quiet()")
        mainloop.lines.add(f"shmem.local_set({' + '.join(_flag(mainloop, step))}, {signals.call_number(mainloop)})")


def emit_deferred(file: File, step: StepPlan) -> tuple[Function, Function]:
    """What workers call for each work index, and the function by which they draw them."""
    scope, loc = open_scope(file, file.plan.step(step.executor)), step.step.program.loc
    tiles = open_tiles(scope)
    taken, following, subtile, waited = (scope.names.fresh(n) for n in ("taken", "following", "subtile", "waited"))
    with scope.apart() as inner:
        _load_tile(scope, step, subtile)
        does, held, passed = _fused_function(scope, step)
        flag = _flag_awaited(scope, step) if FIRST_SUBTILE in does.leading else None
        first = "True" if flag is None else f"{scope.text(flag)} != {waited}"
        scope.lines.add(does.call(*held, *passed, **{FIRST_SUBTILE: first}), loc)
    outer = scope.lines
    counter = scope.arg(Arg(f"{scope.naming.functions[step.path]}_work_indices", "work_indices", step.path))
    total = scope.lowered.loop(step.path).total
    count, draw = scope.text(total * step.subtiles), f"shmem.local_add({counter}, 1).to(tl.int32)"
    outer.say(
        f"whoever is free takes the next {'tile' if step.subtiles == 1 else 'subtile'} of "
        f"`{step.path}`, drawing a work index each"
    )
    outer.add(f"{taken} = {draw}")
    if flag is not None:
        outer.add(f"{waited} = -1")
    with outer.block(f"while {taken} < {count}:"):
        outer.add(f"{following} = {draw}")
        turn = taken if step.subtiles == 1 else f"{taken} // {step.subtiles}"
        outer.add(f"t = {scope.text(_first(scope, step), F.SUMMAND)} + {turn}")
        if step.subtiles > 1:
            outer.add(f"{subtile} = {taken} % {step.subtiles}")
        tile_lines(scope, tiles)
        outer.extend(inner)
        if flag is not None:
            outer.add(f"{waited} = {scope.text(flag)}")
        outer.add(f"{taken} = {following}")
    # Each worker has drawn one too many; whoever has drawn the last one puts the counter back.
    outer.say("the last work index of all: the next call begins with the first again")
    with outer.block(f"if {taken} == {count} + workers - 1:"):
        outer.add(f"tl.store({counter}, tl.cast(0, tl.int64))")
    return does, close(scope, scope.naming.drivers[step.path], ("workers",))


def _load_tile(scope: Scope, step: StepPlan, subtile: str) -> None:
    """The mainloop's tile, or the subtile of it, which is the scope's tile from here on, from memory."""
    lines, loc = scope.lines, step.step.program.loc
    signals.wait_until(scope, _flag(scope, step), signals.call_number(scope), "made", step.path, loc, remote=False)
    if step.subtiles > 1:
        grid = scope.step.grid[scope.step.columns]
        width, whole = (grid.tile or 0) // step.subtiles, scope.tiles[grid.var or ""]
        columns = access.tile_names(scope, grid.var or "", replace(grid, tile=width))
        lines.add(f"{columns.begin} = {whole.begin} + {subtile} * {width}", loc)
        lines.add(f"{columns.end} = tl.minimum({columns.begin} + {width}, {whole.end})", loc)
        access.lane_lines(scope, columns)
    own = (op for op in walk(scope.body) if isinstance(op, Store) and op.to == "own")
    stored = {scope.declared(op.param).name: op for op in own}
    for name in dict.fromkeys(scope.plan.wiring.moved_from(tensor, stored) for tensor in step.forwarded):
        where, mask = access.address_of(scope, scope.tensor(name), stored[name])
        held = scope.forwarded[name] = scope.names.fresh(f"{name}_tile")
        lines.add(f"{held} = tl.load({where}{f', mask={mask}, other=0' if mask else ''})", loc)


def _flag_awaited(scope: Scope, step: StepPlan) -> Formula | None:
    """The flag that the step waits for, of any rank, by its tile: a worker that has waited for it with its last tile need not
    again. None: it waits for more than one."""
    part = scope.lowered.part(step.path)
    found = [
        o for s, body in part.said if isinstance(s, Wait) for o in lowered_walk(body) if isinstance(o, For | Await)
    ]
    if len(found) != 1 or not isinstance(found[0], Await):
        return None
    (flag,) = formulas(found[0])
    at: dict[str, F.Like] = {}
    for var, (begin, end) in _bounds_passed(scope, step).items():
        at |= {f"{var}.begin": Sym(atom(begin)), f"{var}.end": Sym(atom(end))}
    return F.substitute(flag, {n: at.get(n, F.of(0)) for n in F.symbols(flag) if "." in n})


def _first(scope: Scope, step: StepPlan) -> Formula:
    """The first tile of the local shard: they are the last ones in the mainloop's order."""
    return scope.lowered.loop(step.executor).total - scope.lowered.loop(step.path).total


def _flag(scope: Scope, step: StepPlan) -> tuple[str, str]:
    """That of the mainloop's tile `t`, as a pointer and an index: the call in which it was made."""
    made = scope.arg(Arg(f"{scope.naming.functions[step.path]}_made", "made", step.path))
    return made, scope.text(Sym("t") - _first(scope, step), F.FACTOR)
