"""Deferred epilogues: behind all tiles of the mainloop, from memory, each by the next worker that is free.

The tiles of the local shard come last in the mainloop's order. Some workers have nothing to do while others make the last
tiles; and an epilogue that waits for other ranks would hold up a worker that has another tile to make. So each worker that is
through draws work indices from a counter, in the mainloop's order, until there are none.
"""

from __future__ import annotations

from dataclasses import replace

from tilelink.codegen import access, waits
from tilelink.codegen.domain import open_tiles, order_lines, tile_lines
from tilelink.codegen.epilogue import bounds_passed, fused_function, held_of
from tilelink.codegen.function import Function, close
from tilelink.codegen.loops import FIRST_SUBTILE
from tilelink.codegen.scope import File, Scope, TileNames, open_scope
from tilelink.codegen.text import atom
from tilelink.codegen.waits import Flag
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.lowered import Await, For, formulas
from tilelink.ir.lowered import walk as lowered_ops
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Store, Wait, walk
from tilelink.ir.wiring import indexed


def signal_made(mainloop: Scope, step: StepPlan) -> None:
    """The mainloop step has stored its tile `t`: if it is of the local shard, whoever draws its work index may read it."""
    lines, depth = mainloop.lines, mainloop.lines.depth
    mainloop.open_if(mainloop.lowered.part(step.path).tests, step.step.program.loc)
    if mainloop.stored_async:
        lines.add("shmem.async_store_quiet()")
    lines.add(f"shmem.local_set({' + '.join(_flag(mainloop, step))}, {_call(mainloop)})")
    lines.depth = depth


def emit_deferred(file: File, step: StepPlan) -> tuple[Function, Function]:
    """The function by which workers draw work indices, and what it calls for each."""
    scope, loc = open_scope(file, file.plan.step(step.executor)), step.step.program.loc
    tiles = open_tiles(scope)
    taken, following, subtile, waited = (scope.names.fresh(n) for n in ("taken", "following", "subtile", "waited"))
    with scope.apart() as inner:
        _load_tile(scope, step, subtile)
        passed = [end for _, *ends in bounds_passed(scope, step) for end in ends]
        held = held_of(scope, step)
        does = fused_function(file, step, held)
        for arg in does.args:
            scope.args.setdefault(arg.name, arg)
        flag = _flag_awaited(scope, step) if FIRST_SUBTILE in does.leading else None
        first = [f"{scope.text(flag)} != {waited}"] if flag is not None else ["True"] * (FIRST_SUBTILE in does.leading)
        tile = ["t"] if "t" in does.leading else []
        given = [*dict.fromkeys(held.values()), *passed, *tile, *first, *[a.name for a in does.args]]
        scope.lines.add(f"{does.name}({', '.join(given)})", loc)
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
    outer.add(f"while {taken} < {count}:")
    outer.depth = 1
    outer.add(f"{following} = {draw}")
    turn = taken if step.subtiles == 1 else f"{taken} // {step.subtiles}"
    outer.add(f"t = {scope.text(_first(scope, step), F.SUMMAND)} + {turn}")
    if step.subtiles > 1:
        outer.add(f"{subtile} = {taken} % {step.subtiles}")
    order_lines(scope)
    outer.extend(tile_lines(scope, tiles))
    outer.extend(inner)
    if flag is not None:
        outer.add(f"{waited} = {scope.text(flag)}")
    outer.add(f"{taken} = {following}")
    outer.depth = 0
    # Each worker has drawn one too many; whoever has drawn the last one puts the counter back.
    outer.say("the last work index of all: the next call begins with the first again")
    with outer.block(f"if {taken} == {count} + workers - 1:"):
        outer.add(f"tl.store({counter}, tl.cast(0, tl.int64))")
    return close(scope, scope.naming.drivers[step.path], ("workers",)), does


def _load_tile(scope: Scope, step: StepPlan, subtile: str) -> None:
    """The mainloop's tile, or the subtile of it, which is the scope's tile from here on, from memory."""
    lines, loc = scope.lines, step.step.program.loc
    pointer, index = _flag(scope, step)
    waits.wait_until(scope, Flag(pointer, index, "made", step.path, remote=False), _call(scope), loc)
    columns = _columns(scope, step, subtile) if step.subtiles > 1 else None
    loads = [_load(scope, op) for op in _stores(scope, step)]
    if columns is not None:
        access.lane_lines(lines, columns)
    for held, load in loads:
        lines.add(f"{held} = {load}", loc)


def _columns(scope: Scope, step: StepPlan, subtile: str) -> TileNames:
    """Those of a subtile, in place of the mainloop's."""
    lines, loc, grid = scope.lines, step.step.program.loc, scope.step.grid[scope.step.columns]
    width = (grid.tile or 0) // step.subtiles
    whole = scope.tiles[grid.var or ""]
    whole.used.add("end")
    columns = access.tile_names(scope, grid.var or "", replace(grid, tile=width))
    lines.add(f"{columns.begin} = {whole.begin} + {subtile} * {width}", loc)
    lines.add(f"{columns.end} = tl.minimum({columns.begin} + {width}, {whole.end})", loc)
    return columns


def _load(scope: Scope, op: Store) -> tuple[str, str]:
    """What the host has stored, by name, and the load that brings it back."""
    tensor, found = scope.declared(op.param), access.Accessed.of(scope.part.of(op))
    where, mask = access.address(
        scope, scope.tensor(tensor.name), tensor, indexed(scope.step.step, op.param, op.index), found
    )
    held = scope.forwarded[tensor.name] = scope.names.fresh(f"{tensor.name}_tile")
    return held, f"tl.load({where}{f', mask={mask}, other=0' if mask else ''})"


def _stores(scope: Scope, step: StepPlan) -> list[Store]:
    """The host's stores of what the step takes, one of each tensor."""
    body = walk(scope.step.step.program.body)
    stored = {scope.declared(op.param).name: op for op in body if isinstance(op, Store) and op.to == "own"}
    taken = dict.fromkeys(scope.plan.wiring.moved_from(tensor, stored) for tensor in step.forwarded)
    return [stored[name] for name in taken]


def _flag_awaited(scope: Scope, step: StepPlan) -> Formula | None:
    """The flag that the step waits for, of any rank, by its tile: a worker that has waited for it with its last tile need not
    again. None: it waits for more than one."""
    part = scope.lowered.part(step.path)
    found = [o for s, body in part.said if isinstance(s, Wait) for o in lowered_ops(body) if isinstance(o, For | Await)]
    if len(found) != 1 or not isinstance(found[0], Await):
        return None
    (flag,) = formulas(found[0])
    at: dict[str, F.Like] = {}
    for var, begin, end in bounds_passed(scope, step):
        at |= {f"{var}.begin": Sym(atom(begin)), f"{var}.end": Sym(atom(end))}
    return F.substitute(flag, {n: at.get(n, F.of(0)) for n in F.symbols(flag) if "." in n})


def _first(scope: Scope, step: StepPlan) -> Formula:
    """The first tile of the local shard: they are the last ones in the mainloop's order."""
    return scope.lowered.loop(step.executor).total - scope.lowered.loop(step.path).total


def _flag(scope: Scope, step: StepPlan) -> tuple[str, str]:
    """That of the mainloop's tile `t`, as a pointer and an index: the call in which it was made."""
    made = scope.arg(Arg(f"{scope.naming.functions[step.path]}_made", "made", step.path))
    return made, scope.text(Sym("t") - _first(scope, step), F.FACTOR)


def _call(scope: Scope) -> str:
    """The number of this call. A kernel of its own has begun it: a stream beside this kernel moves the host's tiles."""
    return f"tl.load({scope.epoch()})"
