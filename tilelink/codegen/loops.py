"""Loops and branches of a program; a loop that waits for its tiles goes over the words outside and the tiles inside."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilelink.codegen import access, masks, ordering, waiting
from tilelink.codegen.access import expression
from tilelink.codegen.naming import read_names
from tilelink.codegen.ordering import read_by_tma
from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.channel import ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import GridAxis
from tilelink.ir.program import Bounds, If, Load, Loop, Notify, OfTile, Op, Tiles, Wait, walk
from tilelink.ir.shape import ITEM_BYTES
from tilelink.ir.wiring import entries

Emit: TypeAlias = Callable[[Scope, tuple[Op, ...]], None]
"""Emits ops one after the other: what stands in a loop may be any of them."""

FIRST_PIECE = "first_piece"
"""Parameter of a fused function that is called for a tile in pieces: whether this is the first of them."""
UNROLLED = 8
"""Ranks up to which a loop over them is unrolled."""
UNDER_WAY = 256
"""Bytes that a thread may have under way in an unrolled loop: a quarter of its registers."""


def tiles(scope: Scope, op: Tiles, emit: Emit) -> None:
    view = scope.step.step.binding(op.param).view[op.axis]
    grid = scope.step.loop(view.dim)
    low, high = _range(scope, op, grid)
    if view.unit:
        _slices(scope, op, grid, low, high, emit)
        return
    if op.start is not None or op.stop is not None or op.part is not None:
        grid = replace(grid, kind="free")
    names = access.tile_names(scope, op.var, grid)
    whole = masks.split(scope, op, grid, low, high)
    waits = [o for o in op.body if isinstance(o, Wait) and _in_runs(scope, op, o)]
    rest, depth = tuple(o for o in op.body if o not in waits), scope.lines.depth
    if whole is None:
        body = _emitted(scope, rest, emit)
        first, last = _runs(scope, op, waits, grid, low, high) if waits else (low, high)
        _walked(scope, op, names, body, high, f"for {names.begin} in range({first}, {last}, {scope.text(grid.step)}):")
    else:
        _split(scope, op, names, whole, waits, rest, (low, high), emit)
    scope.lines.depth = depth


def _emitted(scope: Scope, body: tuple[Op, ...], emit: Emit) -> Lines:
    outer, scope.lines = scope.lines, Lines()
    emit(scope, body)
    inner, scope.lines = scope.lines, outer
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
        lines.add(f"{names.end} = tl.minimum({names.begin} + {scope.text(grid.step, 1)}, {high})")
    access.lane_lines(lines, names)
    if op.var in read_names(op.body):
        lines.add(f"{scope.local(op.var)} = {names.begin} // {scope.text(grid.step, 3)}")
    lines.extend(body)
    lines.depth = depth


def _split(
    scope: Scope, op: Tiles, names: TileNames, whole: masks.Whole, waits: list[Wait], rest: tuple[Op, ...],
    limits: tuple[str, str], emit: Emit,
) -> None:  # fmt: skip
    """A loop over tiles that need no masks, then one over the others: those before and those after."""
    low, high = limits
    step, fresh = scope.text(names.grid.step), scope.names.fresh
    others = _emitted(scope, rest, emit)
    scope.tiles[op.var] = plain = masks.whole_tile(names)
    bare = _emitted(scope, rest, emit)
    first, last = _runs(scope, op, waits, names.grid, low, high) if waits else (low, high)
    scope.loc, begin = op.loc, first
    if whole.start is not None:
        begin = scope.named(f"{op.var}_from", f"tl.minimum(tl.maximum({first}, {whole.start}), {last})")
    end = scope.named(f"{op.var}_to", f"tl.maximum({begin}, tl.minimum({last}, {whole.stop}))")
    _walked(scope, op, plain, bare, high, f"for {names.begin} in range({begin}, {end}, {step}):")
    scope.tiles[op.var] = names
    if whole.start is None:
        _walked(scope, op, names, others, high, f"for {names.begin} in range({end}, {last}, {step}):")
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
    waits = tuple(o for o in body if isinstance(o, Wait))
    if waits == body[: len(waits)] and not any(isinstance(o, (Notify, Loop, Tiles, If)) for o in walk(op.body)):
        every = (low, high) == ("0", scope.ranks)
        if any(scope.plan.signal(scope.step.path, o).action != "elided" for o in waits):
            depth = scope.lines.depth
            if scope.step.pieces > 1 and all(_same_for_pieces(scope, o) for o in waits):
                scope.lines.add(f"if {FIRST_PIECE}:", op.loc)
                scope.lines.depth += 1
            if not every or not _wait_together(scope, op, grid, waits):
                scope.tiles[op.var] = TileNames(var, f"{var} + 1", "", "", grid, 1)
                scope.lines.add(f"for {var} in range({low}, {high}):", op.loc)
                _nested(scope, waits, emit)
            scope.lines.depth = depth
        body = body[len(waits) :]
        word = "tl.static_range" if every and _fits(scope, op) else word
    scope.tiles[op.var] = TileNames(var, f"{var} + 1", "", "", grid, 1)
    scope.lines.add(f"for {var} in {word}({low}, {high}):", op.loc)
    _nested(scope, body, emit)


def _wait_together(scope: Scope, op: Tiles, grid: GridAxis, waits: tuple[Wait, ...]) -> bool:
    """Wait for the words of all ranks at once, one lane each; False, and nothing emitted, where that has no words."""
    each = scope.names.fresh(f"{op.var}_each")
    scope.tiles[op.var] = TileNames(each, f"{each} + 1", "", "", grid, 1)
    outer, scope.lines, replaced = scope.lines, Lines(), dict(scope.replaced)
    scope.replaced[op.var] = each
    done = all(ordering.wait_each(scope, o, each) for o in waits)
    inner, scope.lines, scope.replaced = scope.lines, outer, replaced
    if done:
        lanes = 1 << (scope.plan.topology.size(scope.step.axis) - 1).bit_length()
        outer.add(f"{each} = tl.arange(0, {lanes})", op.loc)
        outer.extend(inner)
    return done


def _fits(scope: Scope, op: Tiles) -> bool:
    """Whether what the loop loads for all ranks has room in registers; taken in pieces, it has."""
    if scope.plan.topology.ranks > UNROLLED:
        return False
    loads = [scope.declared(o.param) for o in op.body if isinstance(o, Load)]
    widest = max((ITEM_BYTES[t.dtype] for t in loads), default=0)
    tile = math.prod(g.tile or access.padded(scope, g.step) for g in scope.step.grid if g.kind not in ("unit", "own"))
    room = UNDER_WAY * 32 * scope.step.warps
    return scope.step.pieces > 1 or len(loads) * widest * tile * scope.plan.topology.ranks <= room


def _same_for_pieces(scope: Scope, op: Wait) -> bool:
    """Whether all pieces of the host's tile wait for the same words: those of the first piece are enough."""
    channel = scope.plan.signal(scope.step.path, op).channel
    told_apart = {a.axis for a in scope.plan.channel(channel).axes} if channel is not None else set[int | None]()
    cut = scope.step.grid[-1].var
    found = zip(scope.step.step.binding(op.param).view, entries(scope.step.step, op.param, op.index), strict=True)
    return not any(isinstance(e, OfTile) and e.var == cut and v.axis in told_apart for v, e in found)


def _range(scope: Scope, op: Tiles, grid: GridAxis) -> tuple[str, str]:
    """First and last position of the loop, each a name or a number: inside the axis, whatever the program says."""
    low, high = "0", scope.text(grid.size)
    if grid.kind == "mine":
        low = scope.text(grid.rank * grid.part)
        high = scope.text(F.minimum(grid.rank * grid.part + grid.part, grid.size))
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


def _in_runs(scope: Scope, loop: Tiles, op: Wait) -> bool:
    """Whether the wait's word depends on the loop's tile: it goes to an outer loop over words."""
    return scope.plan.signal(scope.step.path, op).action == "await" and _axis_of_loop(scope, loop, op) is not None


def _axis_of_loop(scope: Scope, loop: Tiles, op: Wait) -> tuple[ChannelAxis, bool] | None:
    """The channel's axis that the loop walks, and whether the loop counts from the part's own begin."""
    name = scope.plan.signal(scope.step.path, op).channel
    view = scope.step.step.binding(op.param).view
    for v, e in zip(view, entries(scope.step.step, op.param, op.index), strict=True):
        if isinstance(e, OfTile) and e.var == loop.var and name is not None:
            return next(((a, v.local) for a in scope.plan.channel(name).axes if a.axis == v.axis), None)
    return None


def _runs(scope: Scope, op: Tiles, waits: list[Wait], grid: GridAxis, low: str, high: str) -> tuple[str, str]:
    """Open an outer loop over the words of the first wait: await one, then walk the tiles that it completes.

    A tile belongs to the run of the last word that it touches. Words are awaited in order, so all of them are complete.
    Gives the positions from which and up to which the run's tiles begin. A worker that has awaited all of the words for
    an earlier tile makes one run of them.
    """
    lines, fresh = scope.lines, scope.names.fresh
    found = _axis_of_loop(scope, op, waits[0])
    assert found is not None
    axis, local = found
    run, begin, end = fresh("run"), fresh("run_begin"), fresh("run_end")
    shift: F.Like = axis.rank * axis.part if local else 0
    lo, hi = (edge - shift for edge in axis.interval(Sym(run)))
    start = "0" if low == "0" else scope.text(axis.index(Sym(low)))
    stop = scope.text(axis.index(_symbol(high) - 1))
    until = scope.text(F.minimum(hi, _symbol(high)))
    known = _awaited_before(scope, op, waits, start, stop) if _alike(scope, op, waits) else None
    if known is None:
        lines.add(f"for {run} in range({start}, {scope.text(axis.index(_symbol(high) - 1) + 1)}):", waits[0].loc)
    else:
        lines.add(
            f"for {run} in range({known.first}, tl.where({known.new}, {known.last}, {known.first}) + 1):", waits[0].loc
        )
        until = f"tl.where({known.new}, {until}, {high})"
    lines.depth += 1
    lines.add(f"{begin} = {scope.text(lo if low == '0' else F.maximum(lo, _symbol(low)))}")
    lines.add(f"{end} = {until}")
    depth = lines.depth
    if known is not None:
        lines.add(f"if {known.new}:")
        lines.depth += 1
    _await_run(scope, op, waits, axis, TileNames(begin, end, "", "", replace(grid, kind="free"), 1), run)
    lines.depth = depth
    first, last = fresh(f"{op.var}_first"), fresh(f"{op.var}_last")
    lines.add(f"{first} = {scope.text(_begin_of(Sym(begin), _symbol(low), grid))}")
    lines.add(f"{last} = tl.where({end} < {high}, {scope.text(_begin_of(Sym(end), _symbol(low), grid))}, {high})")
    return first, last


@dataclass(frozen=True, slots=True)
class Awaited:
    """Names: the first and the last word of a loop, and whether some of them are `new` to the worker."""

    first: str
    last: str
    new: str


def _alike(scope: Scope, op: Tiles, waits: list[Wait]) -> bool:
    """Whether all waits are for words of the loop's axis alone, cut alike: who has awaited those of one has those of all."""
    if scope.step.engine != "workers":
        return False
    channels = [scope.plan.channel(scope.plan.signal(scope.step.path, w).channel or "") for w in waits]
    found = [_axis_of_loop(scope, op, w) for w in waits]
    return all(len(c.axes) == 1 and f == found[0] for c, f in zip(channels, found, strict=True))


def _awaited_before(scope: Scope, op: Tiles, waits: list[Wait], start: str, stop: str) -> Awaited:
    """Whether this worker's earlier tiles have awaited the loop's words; from here on they count as awaited: the loop that
    follows awaits what is new."""
    first, last = scope.named(f"{op.var}_first_word", start), scope.named(f"{op.var}_last_word", stop)
    low, high = waiting.remembered(scope, scope.declared(waits[0].param).name)
    new = scope.named(f"{op.var}_new", f"({first} < {low}) | ({last} > {high})")
    for line in waiting.joined(scope, first, last, low, high):
        scope.lines.add(line)
    return Awaited(first, last, new)


def _await_run(scope: Scope, op: Tiles, waits: list[Wait], axis: ChannelAxis, span: TileNames, run: str) -> None:
    """Every wait of the loop, for the positions of one word of the first."""
    # Asked of the loop's own tiles, not of the run that takes their place.
    fenced = [read_by_tma(scope, wait) for wait in waits]
    kept, scope.tiles[op.var] = scope.tiles[op.var], span
    first = scope.plan.signal(scope.step.path, waits[0]).channel
    for wait, fence in zip(waits, fenced, strict=True):
        signal = scope.plan.signal(scope.step.path, wait)
        known = {axis.axis: Sym(run)} if signal.channel == first else {}
        waiting.await_signal(scope, scope.lines, wait, signal, None, known)
        if fence:
            scope.lines.add("shmem.async_load_fence()")
    scope.tiles[op.var] = kept


def _begin_of(position: Formula, low: Formula, grid: GridAxis) -> Formula:
    """Where the tile of a loop from `low` on that holds `position` begins."""
    return low + (position - low) // grid.step * grid.step


def _symbol(text: str) -> Formula:
    return F.of(int(text)) if text.isdigit() else Sym(text)


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
            size = scope.step.ranks if v.axis is None else access.visible(scope, scope.declared(op.param), v)
            found[op.name] = str(F.evaluate(size, scope.plan.env(0)))
    return found


def branch(scope: Scope, op: If, emit: Emit) -> None:
    scope.lines.add(f"if {expression(scope, op.test)}:", op.loc)
    _nested(scope, op.body, emit)
    if op.orelse:
        scope.lines.add("else:")
        _nested(scope, op.orelse, emit)
