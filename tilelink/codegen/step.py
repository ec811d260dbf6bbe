"""One step as one function: a persistent loop over its tiles, or, fused, the tile its host has just made."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tilelink.codegen import access, movement, notifying
from tilelink.codegen.access import lane_lines, tile_names
from tilelink.codegen.body import emit_body
from tilelink.codegen.loops import FIRST_PIECE
from tilelink.codegen.naming import read_names
from tilelink.codegen.scope import Scope, TileNames, open_scope
from tilelink.codegen.text import Lines
from tilelink.codegen.watching import Watch
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.partition import GridAxis, holder
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import At, Expr, Load, Loop, Notify, OfTile, Tile, Tiles, Whole, walk
from tilelink.ir.schedule import ACROSS
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along


@dataclass(frozen=True, slots=True)
class Function:
    """An emitted function: `leading` parameters are passed by its caller, `args` are the kernel's."""

    name: str
    leading: tuple[str, ...]
    args: tuple[Arg, ...]
    lines: tuple[tuple[int, str, Loc | None], ...]


def emit_step(plan: Plan, step: StepPlan, watch: Watch) -> list[Function]:
    """The step's function, those fused into it first."""
    scope = open_scope(plan, step, watch)
    functions: list[Function] = []
    outer = scope.lines
    scope.lines = Lines()
    if step.step.program.movement is not None:
        movement.emit_tile(scope)
        bounds = _bounds_of_movement(scope)
    else:
        bounds = _open_tiles(scope)
        emit_body(scope, step.step.program.body)
        for path in step.fused:
            functions.append(_call_fused(scope, plan.step(path)))
    inner, scope.lines = scope.lines, outer
    outer.extend(scope.carry)
    notifying.notify_for_none(scope, outer)
    outer.add(f"for t in {_tiles_range(scope)}:", _tile_loc(step))
    outer.depth = 1
    for name, value in step.order:
        _assign_order(scope, name, value)
    outer.extend(_late(scope, bounds))
    _if_held(scope, outer)
    outer.extend(inner)
    # A notify may end in a branch of its own, inside the SHMEM function.
    branches = (
        step.fused or outer.rows[-1][0] > 1 or any(g.path == step.path and g.action == "notify" for g in plan.signals)
    )
    if branches and _flattens(scope):
        outer.add("blocks.end_of_tile()")
    functions.append(_close(scope, scope.naming.functions[step.path], ("worker", "workers")))
    return functions


def _if_held(scope: Scope, lines: Lines) -> None:
    """Of a domain with an owner map: this rank's tiles only."""
    if not scope.step.own_rows:
        return
    tensor = scope.declared(scope.step.domain)
    for v, g in zip(scope.step.step.binding(scope.step.domain).view, scope.step.grid, strict=True):
        if v.axis is not None and v.axis == tensor.owned:
            moves = scope.step.step.program.movement is not None
            at = movement.begin(g, scope.step.grid) if moves else scope.tiles[g.var or ""].begin
            lines.add(f"if {scope.text(holder(tensor, v.axis, Sym(at)))} == {scope.rank}:")
            lines.depth += 1


def _tile_loc(step: StepPlan) -> Loc:
    """The line that names the domain."""
    return next(op.loc for op in walk(step.step.program.body) if isinstance(op, Tile))


def _total(scope: Scope) -> str:
    return scope.text(scope.step.total)


def _tiles_range(scope: Scope) -> str:
    """The positions that a worker takes; fused with the loop inside a tile, where that is worth it and right."""
    span = f"worker, {_total(scope)}, workers"
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
            scope.lines.add(f"{_unit_name(scope, grid)} = {scope.text(value)}")
            return
    if name == "sorted_t":
        assert isinstance(value, F.Binary)
        scope.arg(Arg(str(value.left), "order", scope.step.path))
    scope.lines.add(f"{name} = {scope.text(value)}")


def _unit_name(scope: Scope, grid: GridAxis) -> str:
    if scope.step.step.program.movement is not None:
        return movement.begin(grid, scope.step.grid)
    return scope.local(grid.var) if grid.var else f"{grid.dim}_at"


def _used_names(step: StepPlan) -> set[str]:
    return read_names(step.step.program.body)


def _open_tiles(scope: Scope) -> list[tuple[int, GridAxis, TileNames | None]]:
    """Declare the domain's tiles; their lines come later, when it is known which of them are used."""
    out: list[tuple[int, GridAxis, TileNames | None]] = []
    for a, g in enumerate(scope.step.grid):
        if g.var is None:
            continue
        if g.kind in ("unit", "own"):
            scope.tiles[g.var] = TileNames(scope.local(g.var) if g.kind == "unit" else scope.rank, "", "", "", g, 1)
            if g.kind == "own":
                scope.replaced[g.var] = scope.rank
            continue
        if g.kind == "table":
            scope.segments[g.var] = scope.names.fresh(f"{g.var}_segment")
        out.append((a, g, tile_names(scope, g.var, g)))
    return out


def _bounds_of_movement(scope: Scope) -> list[tuple[int, GridAxis, TileNames | None]]:
    return [
        (a, g, TileNames(movement.begin(g, scope.step.grid), movement.end(g), "", "", g, 1, {"end"}))
        for a, g in enumerate(scope.step.grid)
        if g.kind not in ("unit", "own") and not movement.whole_axis(g)
    ]


def _late(scope: Scope, bounds: list[tuple[int, GridAxis, TileNames | None]]) -> Lines:
    """Begin, end, lanes and masks of the domain's tiles, as far as the body uses them."""
    lines = Lines()
    read = _used_names(scope.step)
    for a, g, names in bounds:
        assert names is not None
        if g.kind == "table":
            _table_tile(scope, lines, a, g, names)
        else:
            lines.add(f"{names.begin} = {scope.text(g.begin(Sym(f'i{a}')))}")
            if names.used & {"end", "inside"} or _end_used(scope, names):
                lines.add(
                    f"{names.end} = tl.minimum({names.begin} + {scope.text(g.step, 1)}, {scope.text(g.limit(Sym(f'i{a}')))})"
                )
        lane_lines(lines, names)
        if g.var in read:
            # A tile by its number, an axis that is walked singly by its position.
            unit = scope.step.step.binding(scope.step.domain).view[a].unit
            lines.add(f"{scope.local(g.var or '')} = {names.begin if unit else f'i{a}'}")
    return lines


def _end_used(scope: Scope, names: TileNames) -> bool:
    return any(names.end in text for _, text, _ in scope.lines.rows) or names.end in scope.formulas.symbols


def _table_tile(scope: Scope, lines: Lines, a: int, g: GridAxis, names: TileNames) -> None:
    assert g.table is not None and g.var is not None
    table, tile = scope.tensor(g.table), scope.text(g.step, 3)
    segment = scope.segments[g.var]
    if ACROSS in scope.step.order_names:
        piece = scope.names.fresh(f"{g.var}_piece")
        lines.add(f"{segment}, {piece} = blocks.across({table}_pieces, i{a})")
    else:
        before = scope.names.fresh(f"{g.var}_before")
        lines.add(f"{segment} = tl.sum(tl.where({table}_last <= i{a}, 1, 0), 0)")
        lines.add(f"{before} = tl.sum(tl.where({table}_lane < {segment}, {table}_pieces, 0), 0)")
        piece = f"(i{a} - {before})"
    lines.add(f"{names.begin} = tl.load({table} + {segment}) + {piece} * {tile}")
    lines.add(f"{names.end} = tl.minimum({names.begin} + {tile}, tl.load({table} + {segment} + 1))")


def _table_head(scope: Scope) -> Lines:
    """How many tiles each segment of a run-time split has."""
    lines = Lines()
    for g in scope.step.grid:
        if g.kind != "table":
            continue
        assert g.table is not None
        table = scope.tensor(g.table)
        segments = scope.plan.wiring.tensor(g.table).axes[0].size - 1
        lines.add(f"{table}_lane = tl.arange(0, {access.padded(scope, segments)})")
        ends = f"tl.load({table} + {table}_lane + 1, mask={table}_lane < {scope.text(segments)}, other=0)"
        begins = f"tl.load({table} + {table}_lane, mask={table}_lane < {scope.text(segments)}, other=0)"
        pieces = f"tl.cdiv({ends} - {begins}, {scope.text(g.step)})"
        if scope.watch.checks.debug:
            most = scope.text(g.size)
            said = f"offsets `{g.table}`, from 0, sorted, up to {most}"
            report = scope.report("holds", said, _tile_loc(scope.step))
            first = f"(({table}_lane != 0) | ({begins} == 0))"
            fine = f"{first} & ({ends} >= {begins}) & ({ends} <= {most})"
            lines.add(f"{table}_fine = tl.min(({fine}).to(tl.int32), 0)")
            lines.add(f"shmem.check({table}_fine, {report}, -1)")
            # No tile lies in another, nor where there is no room for it.
            pieces = f"tl.where({table}_fine == 1, {pieces}, 0)"
        lines.add(f"{table}_pieces = {pieces}")
        if ACROSS not in scope.step.order_names:
            lines.add(f"{table}_last = tl.cumsum({table}_pieces, 0)")
        lines.add(f"{table}_tiles = tl.sum({table}_pieces, 0)")
    return lines


# ----------------------------------------------------------------------------------------------------------------- fusion
def _call_fused(host: Scope, step: StepPlan) -> Function:
    """Call the fused step's function for the tile that the host has just made; emit that function."""
    passed: list[str] = []
    owner: str | None = None
    for g, (a, v) in zip(step.grid, enumerate(step.step.binding(step.domain).view), strict=True):
        at = step.host_axes[a]
        if at is None:
            continue
        names = host.tiles[host.step.grid[at].var or ""]
        names.used.add("end")
        first = ""
        if (
            v.local
            and host.plan.wiring.tensor(step.step.binding(step.domain).tensor).axes[v.axis or 0].over == step.axis
        ):
            first = f" - {host.text(g.rank * g.part, 2)}"
            owner = host.text(Sym(names.begin) // g.part)
        elif (
            step.own_rows
            and host.plan.wiring.tensor(step.step.binding(step.domain).tensor).axes[v.axis or 0].over == step.axis
        ):
            owner = host.text(Sym(names.begin) // g.part)
        passed += [f"{names.begin}{first}", f"{names.end}{first}"]
    held = _held(host, step)
    function = _fused_function(host.plan, step, held, host.watch)
    # What the function's formulas name has to reach it through the host.
    for arg in function.args:
        host.args.setdefault(arg.name, arg)
    lines, depth = host.lines, host.lines.depth
    if step.own_rows and owner is not None:
        lines.add(f"if {owner} == {host.rank}:", step.step.program.loc)
        lines.depth += 1
    tiles = list(dict.fromkeys(held.values()))
    for k, (values, (begin, end)) in enumerate(_in_pieces(host, step, tiles, passed[-2], passed[-1])):
        tile = ["t"] if "t" in function.leading else []
        first = [str(k == 0)] if any(n.startswith(FIRST_PIECE) for n in function.leading) else []
        given = [*values, *passed[:-2], begin, end, *tile, *first, *[a.name for a in function.args]]
        lines.add(f"{function.name}({', '.join(given)})", step.step.program.loc)
    lines.depth = depth
    return function


def _in_pieces(
    host: Scope, step: StepPlan, tiles: list[str], begin: str, end: str
) -> list[tuple[list[str], tuple[str, str]]]:
    """The tiles that are handed over, and where their columns begin and end: once, or piece by piece."""
    if step.pieces == 1:
        return [(tiles, (begin, end))]
    width = (step.grid[-1].tile or 0) // step.pieces
    parts: list[list[str]] = []
    for tile in tiles:
        names = [tile]
        while len(names) < step.pieces:
            halved: list[str] = []
            for name in names:
                left, right = host.names.fresh(f"{tile}_piece"), host.names.fresh(f"{tile}_piece")
                host.lines.add(f"{left}, {right} = blocks.halves({name})", step.step.program.loc)
                halved += [left, right]
            names = halved
        parts.append(names)
    return [
        (
            [names[k] for names in parts],
            (f"{begin} + {k * width}" if k else begin, f"tl.minimum({begin} + {(k + 1) * width}, {end})"),
        )
        for k in range(step.pieces)
    ]


def _held(host: Scope, step: StepPlan) -> dict[str, str]:
    """Tensors of a fused step -> the host's name of the tile that stands for them."""
    movement = step.step.program.movement
    tensors = step.forwarded if movement is None else (step.step.binding(movement.source).tensor,)
    return {t: host.forwarded[_origin(host.plan, t, host.forwarded)] for t in tensors}


def _origin(plan: Plan, tensor: str, stored: dict[str, str]) -> str:
    """What the host stores and movements make `tensor` of."""
    while tensor not in stored:
        step = plan.wiring.producers(tensor)[0]
        assert step.program.movement is not None
        tensor = step.binding(step.program.movement.source).tensor
    return tensor


def _fused_function(plan: Plan, step: StepPlan, held: dict[str, str], watch: Watch) -> Function:
    scope = open_scope(plan, step, watch, frozenset(held.values()))
    leading = list(dict.fromkeys(held.values()))
    outer, scope.lines = scope.lines, Lines()
    tiles: list[TileNames] = []
    if step.step.program.movement is not None:
        tiles = _emit_fused_movement(scope, leading[0])
        leading += [n for t in tiles for n in (t.begin, t.end)]
    else:
        for a, g in enumerate(step.grid):
            if g.kind == "own" and g.var is not None:
                scope.replaced[g.var] = scope.rank
                scope.tiles[g.var] = TileNames(scope.rank, "", "", "", g, 1)
            elif step.host_axes[a] is not None:
                last = a == len(step.grid) - 1
                piece = replace(g, tile=(g.tile or 0) // step.pieces) if last and step.pieces > 1 else g
                names = tile_names(scope, g.var or f"axis{a}", piece)
                tiles.append(names)
                leading += [names.begin, names.end]
        scope.forwarded |= held
        emit_body(scope, step.step.program.body)
    inner, scope.lines = scope.lines, outer
    if watch.sites and any(re.search(r"watch_at, \d+, t\b", text) for _, text, _ in inner.rows):
        leading.append("t")  # the host's tile, for reports
    if any(text == f"if {FIRST_PIECE}:" for _, text, _ in inner.rows):
        leading.append(f"{FIRST_PIECE}: tl.constexpr")
    for names in tiles:
        lane_lines(scope.lines, names)
    scope.lines.extend(inner)
    return _close(scope, scope.naming.functions[step.path], tuple(leading))


def _emit_fused_movement(scope: Scope, value: str) -> list[TileNames]:
    """Push the host's tile from registers to whoever holds it, and tell them."""
    step = scope.step
    program = step.step.program
    assert program.movement is not None
    target = program.movement.destination
    tensor = scope.plan.wiring.tensor(step.step.binding(target).tensor)
    tiles: list[TileNames] = []
    index: list[At | OfTile | Whole] = []
    for k, g in enumerate(step.grid):
        if g.kind == "own":
            scope.tiles[str(k)] = TileNames(scope.rank, "", "", "", g, 1)
            index.append(At(Expr(scope.rank), ring=(scope.rank, 0)))
            continue
        names = tile_names(scope, g.dim if not g.dim.startswith("_") else f"axis{g.dim}", g)
        scope.tiles[str(k)] = names
        tiles.append(names)
        index.append(OfTile(str(k)))
    notify = next(op for op in walk(program.body) if isinstance(op, Notify))
    owner = movement_owner(scope, target, tiles)
    _push_block(scope, tensor.name, target, tuple(index), value, owner, notify)
    return tiles


def movement_owner(scope: Scope, target: str, tiles: list[TileNames]) -> F.Formula | None:
    tensor = scope.declared(target)
    for k, v in enumerate(scope.step.step.binding(target).view):
        if v.axis is not None and tensor.names_holder(v):
            return holder(tensor, v.axis, Sym(scope.tiles[str(k)].begin))
    return None


def _push_block(
    scope: Scope,
    tensor_name: str,
    target: str,
    index: tuple[At | OfTile | Whole, ...],
    value: str,
    owner: F.Formula | None,
    notify: Notify,
) -> None:
    tensor = scope.plan.wiring.tensor(tensor_name)
    view = scope.step.step.binding(target).view
    signal = scope.plan.signal(scope.step.path, notify)
    lines, ctx = scope.lines, scope.context(tensor_name)
    loc = scope.step.step.program.loc
    pe = scope.names.fresh("owner")
    if owner is None:
        turn = scope.names.fresh("turn")
        ranks = scope.ranks
        lines.add(f"for {turn} in range({ranks}):", loc)
        lines.depth += 1
        lines.add(f"{pe} = ({scope.rank} + {ranks} - {turn}) % {ranks}")
    else:
        lines.add(f"{pe} = {scope.text(owner)}", loc)
    if scope.step.skip_own:
        lines.add(f"if {pe} != {scope.rank}:")
        lines.depth += 1
    there = scope.names.fresh(f"{tensor_name}_there")
    lines.add(f"{there} = shmem.ptr({scope.tensor(tensor_name)}, {pe}, {ctx})")
    pieces, blocks = access.terms(scope, tensor, view, index, Sym(pe))
    where, mask = access.address(scope, there, pieces, blocks)
    lines.add(f"tl.store({where}, {value}{f', mask={mask}' if mask else ''})")
    if signal.action == "notify":
        notifying.notify(scope, lines, notify, replace(signal, to="owner"), pe)
    lines.depth = 0


# ---------------------------------------------------------------------------------------------------------------- closing
def _close(scope: Scope, name: str, leading: tuple[str, ...]) -> Function:
    """The function with its definitions at the head and every kernel argument it needs."""
    step = scope.step
    head = Lines()
    table = _table_head(scope)
    definitions = scope.formulas.definitions()
    head.rows += [(0, f"{n} = {text}", None) for n, text in definitions]
    head.extend(table)
    for tile in scope.wholes.values():
        if tile.used:
            head.add(f"{tile.at} = tl.arange(0, {tile.extent})")
        if "inside" in tile.used:
            head.add(f"{tile.inside} = {tile.at} < {tile.end}")
    for const, value in step.step.constants:
        if not isinstance(value, float):
            head.add(f"{scope.local(const)}: tl.constexpr = {value!r}")
    rows = tuple(head.rows + scope.lines.rows)
    return Function(name, leading, arguments(scope, rows), rows)


def arguments(scope: Scope, rows: tuple[tuple[int, str, Loc | None], ...]) -> tuple[Arg, ...]:
    words = set(re.findall(r"[A-Za-z_]\w*", "\n".join(text for _, text, _ in rows)))
    # Sizes that a fused function needs are among the host's own.
    args = [a for a in scope.args.values() if a.name in words and a.kind not in ("size", "constant")]
    named = {n: scope.naming.sizes[n] for n in scope.plan.wiring.sizes}
    sizes = [Arg(m, "size", formula=Sym(n)) for n, m in named.items() if m in words]
    axes = dict.fromkeys((RANK_AXIS, *scope.plan.axes))
    rank = [Arg(s.name, "size", "rank", formula=s) for s in map(rank_along, axes) if s.name in words]
    size = scope.plan.topology.size
    ranks = [Arg(s.name, "constant", value=size(a)) for a in axes if (s := ranks_along(a)).name in words]
    order = {
        "tensor": 0,
        "stage": 0,
        "descriptor": 1,
        "words": 2,
        "due": 2,
        "bells": 2,
        "counts": 2,
        "state": 3,
        "watch": 3,
        "context": 4,
    }
    args.sort(key=lambda a: order.get(a.kind, 5))
    return (*args, *sizes, *rank, *ranks)


__all__ = ["Function", "Tile", "emit_step"]
