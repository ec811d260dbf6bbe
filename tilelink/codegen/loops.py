"""Loops and branches of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from tilelink.codegen import access, flag_loops, masks, ops, waits
from tilelink.codegen.access import expression
from tilelink.codegen.names import read_names
from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.lowered import formulas
from tilelink.ir.lowered import walk as lowered_ops
from tilelink.ir.partition import GridAxis, extent
from tilelink.ir.program import Bounds, If, Load, Loop, Notify, Op, Tiles, Wait, walk
from tilelink.ir.shape import ITEM_BYTES

Emit: TypeAlias = Callable[[Scope, tuple[Op, ...]], None]
"""Emits ops one after the other: what stands in a loop may be any of them."""

FIRST_SUBTILE = "first_subtile"
"""Parameter of a fused function that is called for a tile in subtiles: whether this is the first of them."""
UNROLLED = 8
"""Ranks up to which a loop over them is unrolled."""
UNDER_WAY = 256
"""Bytes that a thread may have under way in an unrolled loop: a quarter of its registers."""


def tiles(scope: Scope, op: Tiles, emit: Emit) -> None:
    view = scope.step.step.binding(op.param).view[op.axis]
    grid = scope.step.loop(op)
    low, high = _range(scope, op, grid)
    if view.unit:
        _slices(scope, op, grid, low, high, emit)
        return
    if op.limited:
        grid = grid.free
    names = access.tile_names(scope, op.var, grid)
    whole = masks.split(scope, op, grid, low, high)
    waiting = [o for o in op.body if isinstance(o, Wait) and flag_loops.follows_loop(scope, op, o)]
    rest, depth = tuple(o for o in op.body if o not in waiting), scope.lines.depth
    if whole is None:
        body = _emitted(scope, rest, emit)
        first, last = flag_loops.open_flags(scope, op, waiting, grid, low, high) if waiting else (low, high)
        _walked(scope, op, names, body, high, f"for {names.begin} in range({first}, {last}, {scope.text(grid.step)}):")
    else:
        _split(scope, op, names, whole, waiting, rest, (low, high), emit)
    scope.lines.depth = depth


def _emitted(scope: Scope, body: tuple[Op, ...], emit: Emit) -> Lines:
    with scope.apart() as inner:
        emit(scope, body)
    return inner


def _walked(scope: Scope, op: Tiles, names: TileNames, body: Lines, high: str, head: str, *begin: str) -> None:
    """One loop over tiles, `begin`: what says where they begin, if the loop's head does not. None, if it would do nothing."""
    if not body.rows:
        return
    grid, lines, depth = names.grid, scope.lines, scope.lines.depth
    lines.add(head, op.loc)
    lines.depth += 1
    for line in begin:
        lines.add(line)
    if "end" in names.used or "inside" in names.used:
        lines.add(f"{names.end} = tl.minimum({names.begin} + {scope.text(grid.step, F.SUMMAND)}, {high})")
    access.lane_lines(lines, names)
    if op.var in read_names(op.body):
        lines.add(f"{scope.local(op.var)} = {names.begin} // {scope.text(grid.step, F.DIVISOR)}")
    lines.extend(body)
    lines.depth = depth


def _split(
    scope: Scope, op: Tiles, names: TileNames, whole: masks.Whole, waiting: list[Wait], rest: tuple[Op, ...],
    limits: tuple[str, str], emit: Emit,
) -> None:  # fmt: skip
    """A loop over tiles that need no masks, then one over the others: those before and those after."""
    low, high = limits
    step, fresh = scope.text(names.grid.step), scope.names.fresh
    others = _emitted(scope, rest, emit)
    scope.tiles[op.var] = plain = masks.whole_tile(names)
    bare = _emitted(scope, rest, emit)
    first, last = flag_loops.open_flags(scope, op, waiting, names.grid, low, high) if waiting else (low, high)
    scope.loc, begin = op.loc, first
    if whole.start is not None:
        begin = scope.named(f"{op.var}_from", f"tl.minimum(tl.maximum({first}, {whole.start}), {last})")
    end = scope.named(f"{op.var}_to", f"tl.maximum({begin}, tl.minimum({last}, {whole.stop}))")
    _walked(scope, op, plain, bare, high, f"for {names.begin} in range({begin}, {end}, {step}):")
    scope.tiles[op.var] = names
    if whole.start is None:
        # Nothing is under way before a loop of one tile, and mostly of none.
        span = f"tl.range({end}, {last}, {step}, num_stages=1)" if whole.rest else f"range({end}, {last}, {step})"
        _walked(scope, op, names, others, high, f"for {names.begin} in {span}:")
        return
    turn = fresh(f"{op.var}_other")
    place = f"{names.begin} = tl.where({turn} < {begin}, {turn}, {turn} + ({end} - {begin}))"
    head = f"for {turn} in range({first}, {last} - ({end} - {begin}), {step}):"
    _walked(scope, op, names, others, high, head, place)


def _slices(scope: Scope, op: Tiles, grid: GridAxis, low: str, high: str, emit: Emit) -> None:
    """A loop over single positions. It first waits for all of them; over all ranks it is then unrolled as far as registers
    allow, so that all loads are under way together: fused, the host's next tile stands still meanwhile.
    """
    var = scope.local(op.var)
    body, word = op.body, "range"
    waiting = tuple(o for o in body if isinstance(o, Wait))
    if waiting == body[: len(waiting)] and not any(isinstance(o, (Notify, Loop, Tiles, If)) for o in walk(op.body)):
        every = (low, high) == ("0", scope.ranks)
        if any(ops.printed(scope, o) for o in waiting):
            depth = scope.lines.depth
            if scope.step.subtiles > 1 and all(_same_for_subtiles(scope, o) for o in waiting):
                scope.lines.add(f"if {FIRST_SUBTILE}:", op.loc)
                scope.lines.depth += 1
            if not every or not _wait_together(scope, op, grid, waiting):
                scope.tiles[op.var] = TileNames(var, f"{var} + 1", "", "", grid, 1)
                scope.lines.add(f"for {var} in range({low}, {high}):", op.loc)
                _nested(scope, waiting, emit)
            scope.lines.depth = depth
        body = body[len(waiting) :]
        word = "tl.static_range" if every and _fits(scope, op) else word
    scope.tiles[op.var] = TileNames(var, f"{var} + 1", "", "", grid, 1)
    scope.lines.add(f"for {var} in {word}({low}, {high}):", op.loc)
    _nested(scope, body, emit)


def _wait_together(scope: Scope, op: Tiles, grid: GridAxis, waiting: tuple[Wait, ...]) -> bool:
    """Wait for the flags of all ranks at once, one lane each; False, and nothing emitted, where that has no flags."""
    each = scope.names.fresh(f"{op.var}_each")
    scope.tiles[op.var] = TileNames(each, f"{each} + 1", "", "", grid, 1)
    replaced = dict(scope.replaced)
    with scope.apart() as inner:
        scope.replaced[op.var] = each
        done = all(waits.await_each(scope, o, each) for o in waiting)
    outer, scope.replaced = scope.lines, replaced
    if done:
        lanes = access.power_of_two(scope.lowered.topology.size(scope.step.axis))
        outer.add(f"{each} = tl.arange(0, {lanes})", op.loc)
        outer.extend(inner)
    return done


def _fits(scope: Scope, op: Tiles) -> bool:
    """Whether what the loop loads for all ranks has room in registers; taken in subtiles, it has."""
    if scope.lowered.topology.ranks > UNROLLED:
        return False
    loads = [scope.declared(o.param) for o in op.body if isinstance(o, Load)]
    widest = max((ITEM_BYTES[t.dtype] for t in loads), default=0)
    tile = math.prod(g.tile or access.padded(scope, g.step) for g in scope.step.grid if not g.unit)
    room = UNDER_WAY * 32 * scope.step.options.num_warps
    return scope.step.subtiles > 1 or len(loads) * widest * tile * scope.lowered.topology.ranks <= room


def _same_for_subtiles(scope: Scope, op: Wait) -> bool:
    """Whether all subtiles of the host's tile wait for the same words: those of the first subtile are enough."""
    cut = scope.step.grid[-1].var
    used = {n for o in lowered_ops(scope.part.of(op)) for f in formulas(o) for n in F.symbols(f)}
    return not used & {f"{cut}.begin", f"{cut}.end"}


def _range(scope: Scope, op: Tiles, grid: GridAxis) -> tuple[str, str]:
    """First and last position of the loop, each a name or a number: inside the axis, whatever the program says."""
    low, high = map(scope.text, grid.span)
    if op.start is not None:
        start = expression(scope, op.start)
        low = start if low == "0" and op.start.text in scope.inside else f"tl.maximum({low}, {start})"
        low = access.from_data(op.start, low, most=scope.text(grid.size))
    if op.stop is not None and op.stop.text != "None":
        high = access.from_data(op.stop, f"tl.minimum({high}, {expression(scope, op.stop)})")
    if op.part is not None:
        length, base = (high, "") if low == "0" else (f"tl.maximum({high} - ({low}), 0)", f"{low} + ")
        piece = scope.named(f"{op.var}_piece", f"tl.cdiv({length}, {expression(scope, op.part[1])})")
        low = scope.named(f"{op.var}_start", f"{base}({expression(scope, op.part[0])}) * {piece}")
        high = f"tl.minimum({low} + {piece}, {high})"
    return _atomic(scope, f"{op.var}_start", low), _atomic(scope, f"{op.var}_stop", high)


def _atomic(scope: Scope, wish: str, text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else scope.named(wish, text)


def _nested(scope: Scope, body: tuple[Op, ...], emit: Emit) -> None:
    scope.lines.depth += 1
    before = len(scope.lines.rows)
    emit(scope, body)
    if len(scope.lines.rows) == before:
        scope.lines.add("pass")
    scope.lines.depth -= 1


def loop(scope: Scope, op: Loop, emit: Emit) -> None:
    kept = dict(scope.replaced)
    if "tl.static_range(" in op.header.text:
        scope.replaced |= _constant_sizes(scope, op.header.names)
    head = expression(scope, op.header)
    scope.replaced = kept
    scope.lines.add(f"{head}:", op.loc)
    _nested(scope, op.body, emit)


def _constant_sizes(scope: Scope, names: tuple[str, ...]) -> dict[str, str]:
    """Sizes that have to be known when the kernel is compiled."""
    sizes = (op for op in walk(scope.step.step.program.body) if isinstance(op, Bounds) and op.what == "size")
    found: dict[str, str] = {}
    for op in sizes:
        if op.name in names and op.axis is not None:
            v = scope.step.step.binding(op.param).view[op.axis]
            size = extent(scope.declared(op.param), v, scope.step.axis)
            found[op.name] = str(F.evaluate(size, scope.lowered.env(0)))
    return found


def branch(scope: Scope, op: If, emit: Emit) -> None:
    scope.lines.add(f"if {expression(scope, op.test)}:", op.loc)
    _nested(scope, op.body, emit)
    if op.orelse:
        scope.lines.add("else:")
        _nested(scope, op.orelse, emit)
