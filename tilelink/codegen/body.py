"""The body of a tile program, op by op: loops and branches, the masks of a loop's tiles, and loops over the flags of what a loop
waits for."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from tilelink.codegen import access, memory, ops, signals
from tilelink.codegen.names import bound_in
from tilelink.codegen.scope import TRITON_DTYPES, Scope, TileNames
from tilelink.codegen.text import Lines, atom
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir import program as P
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import AT, Await, Walk, formulas
from tilelink.ir.lowered import If as LoweredIf
from tilelink.ir.lowered import walk as lowered_ops
from tilelink.ir.partition import GridAxis
from tilelink.ir.program import Bounds, Expr, If, Load, Loop, Notify, Tiles, Wait, walk
from tilelink.ir.program import Op as Statement
from tilelink.ir.shape import ITEM_BYTES, accumulator

FIRST_SUBTILE = "first_subtile"
"""Parameter of a fused function that is called for a tile in subtiles: whether this is the first of them."""
UNROLLED = 8
"""Ranks up to which a loop over them is unrolled."""
UNDER_WAY = 256
"""Bytes that a thread may have under way in an unrolled loop: a quarter of its registers."""


def emit_body(scope: Scope, body: tuple[Statement, ...]) -> None:
    for op in body:
        scope.loc = op.loc
        match op:
            case Tiles():
                _tiles(scope, op)
            case Loop():
                _loop(scope, op)
            case If():
                _branch(scope, op)
            case Bounds():
                _bounds(scope, op)
            case Load():
                memory.load(scope, op)
            case P.Store():
                memory.store(scope, op)
            case Notify():
                signals.notify(scope, op)
            case Wait():
                signals.wait(scope, op)
            case P.Holder():
                scope.lines.add(f"{scope.local(op.name)} = {scope.text(scope.part.holder(op))}", op.loc)
            case P.Let():
                targets = ", ".join(scope.local(name) for name in op.target)
                scope.lines.add((f"{targets} = " if targets else "") + scope.expression(op.value), op.loc)
            case P.Check():
                _check(scope, op)
            case P.Raw():
                _raw(scope, op)
            case P.Move():
                raise AssertionError(f"a copy program is emitted as a whole: {scope.step.path}, {op.loc}")
            case P.Tile():
                pass


def _bounds(scope: Scope, op: Bounds) -> None:
    """Nothing is emitted but of a mask: the name stands for what is known already."""
    if op.what == "mask":
        return _mask(scope, op)
    scope.replaced[op.name] = _bound(scope, op)
    scope.inside.update([op.name] if op.what in ("begin", "segment") else [])


def _bound(scope: Scope, op: Bounds) -> str:
    tensor = scope.declared(op.param)
    view = scope.step.step.binding(op.param).view
    if op.what == "shape":
        # Of a tile's block, elements along an axis, which the program may have no name for.
        shape: list[str] = []
        for g, v in zip(scope.step.grid, view, strict=True):
            if g.var in scope.tiles and not v.unit and not g.unit:
                shape.append(str(scope.tiles[g.var].extent))
            elif not v.unit and not g.unit:
                assert v.of is not None
                shape.append(str(g.tile or access.padded(scope, v.of.size)))
        return "[" + ", ".join(shape) + "]"
    if op.what == "acc_dtype":
        return TRITON_DTYPES[accumulator(tensor.dtype)]
    if op.what == "size":
        return atom(scope.text(view[op.axis or 0].extent(scope.step.axis)))
    if op.what == "range" and op.var is None:
        along = view[op.axis or 0]
        return access.whole(scope, along.dim, along.extent(scope.step.axis)).at
    assert op.var is not None
    tile = scope.tiles[op.var]
    return {"segment": tile.segment, "range": tile.at, "begin": tile.begin, "end": tile.end}[op.what]


def _check(scope: Scope, op: P.Check) -> None:
    condition = scope.expression(op.condition)
    if scope.checks.debug:
        report = scope.report("holds", op.text or f"`{op.condition.text}`", op.loc)
        scope.lines.add(f"shmem.check({condition}, {report}, t)", op.loc)
    else:
        scope.lines.add(f"tl.device_assert({condition}, {op.text!r})", op.loc)


def _raw(scope: Scope, op: P.Raw) -> None:
    """Raw pointers: what the program says goes into the text as it is."""
    args = [scope.expression(a) for a in op.args]
    if op.what == "pointer":
        text = scope.tensor(scope.declared(op.param or "").name)
    elif op.what == "rank":
        text = scope.rank
    elif op.what == "effect":
        text = args[0]
    else:
        context = [scope.context()] if op.what in ("symm_at", "notify") else []
        text = f"shmem.{op.what}({', '.join([*args, *context])})"
    scope.lines.add(text if op.name is None else f"{scope.local(op.name)} = {text}", op.loc)


# ----------------------------------------------------------------------------------------------------------------- loops
def _tiles(scope: Scope, op: Tiles) -> None:
    view = scope.step.step.binding(op.param).view[op.axis]
    grid = scope.step.loop(op)
    low, high = _range(scope, op, grid)
    if view.unit:
        _slices(scope, op, grid, low, high)
        return
    if op.limited:
        grid = grid.free
    names = access.tile_names(scope, op.var, grid)
    whole, depth = _whole_tiles(scope, op, grid, low, high), scope.lines.depth
    # A wait whose flag depends on the loop's tile goes to an outer loop over flags.
    waiting = [o for o in op.body if isinstance(o, Wait) and scope.part.of(o) and scope.part.walk(op.var, o)]

    def emitted() -> Lines:
        with scope.apart() as inner:
            emit_body(scope, tuple(o for o in op.body if o not in waiting))
        return inner

    def opened() -> tuple[str, str]:
        return _open_flags(scope, op, waiting, grid, low, high) if waiting else (low, high)

    if whole is None:
        body = emitted()
        first, last = opened()
        _walked(scope, op, names, body, high, f"for {names.begin} in range({first}, {last}, {scope.text(grid.step)}):")
    else:
        _split(scope, op, names, whole, emitted, opened, high)
    scope.lines.depth = depth


def _walked(scope: Scope, op: Tiles, names: TileNames, body: Lines, high: str, head: str, *begin: str) -> None:
    """One loop over tiles, `begin`: what says where they begin, if the loop's head does not. None, if it would do nothing."""
    if not body.rows:
        return
    grid, lines = names.grid, scope.lines
    with lines.block(head, op.loc):
        for line in begin:
            lines.add(line)
        scope.offer(names.end, f"tl.minimum({names.begin} + {scope.text(grid.step, F.SUMMAND)}, {high})")
        access.lane_lines(scope, names)
        lines.extend(body)


def _split(
    scope: Scope, op: Tiles, names: TileNames, whole: Whole, emitted: Callable[[], Lines], opened: Callable[[], tuple[str, str]],
    high: str,
) -> None:  # fmt: skip
    """A loop over tiles that need no masks, then one over the others: those before and those after."""
    step, others = scope.text(names.grid.step), emitted()
    scope.tiles[op.var] = plain = replace(names, whole=True)
    bare = emitted()
    first, last = opened()
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
    turn = scope.names.fresh(f"{op.var}_other")
    place = f"{names.begin} = tl.where({turn} < {begin}, {turn}, {turn} + ({end} - {begin}))"
    head = f"for {turn} in range({first}, {last} - ({end} - {begin}), {step}):"
    _walked(scope, op, names, others, high, head, place)


def _slices(scope: Scope, op: Tiles, grid: GridAxis, low: str, high: str) -> None:
    """A loop over single positions. It first waits for all of them; over all ranks it is then unrolled as far as registers
    allow, so that all loads are under way together: fused, the host's next tile stands still meanwhile.
    """
    var = scope.local(op.var)
    body, word = op.body, "range"
    waiting = tuple(o for o in body if isinstance(o, Wait))
    if waiting == body[: len(waiting)] and not any(isinstance(o, (Notify, Loop, Tiles, If)) for o in walk(op.body)):
        every = (low, high) == ("0", scope.ranks)
        if any(scope.part.of(o) for o in waiting):
            # Where all subtiles of the host's tile wait for the same words, those of the first subtile are enough.
            asked = {
                n for o in waiting for w in lowered_ops(scope.part.of(o)) for f in formulas(w) for n in F.symbols(f)
            }
            cut = scope.step.grid[-1].var
            once = scope.step.subtiles > 1 and not asked & {f"{cut}.begin", f"{cut}.end"}
            with scope.lines.block(f"if {FIRST_SUBTILE}:", op.loc) if once else nullcontext():
                if not every or not _wait_together(scope, op, grid, waiting):
                    scope.tiles[op.var] = TileNames(var, f"{var} + 1", grid, 1)
                    _nested(scope, f"for {var} in range({low}, {high}):", op.loc, waiting)
        body = body[len(waiting) :]
        word = "tl.static_range" if every and _fits(scope, op) else word
    scope.tiles[op.var] = TileNames(var, f"{var} + 1", grid, 1)
    _nested(scope, f"for {var} in {word}({low}, {high}):", op.loc, body)


def _wait_together(scope: Scope, op: Tiles, grid: GridAxis, waiting: tuple[Wait, ...]) -> bool:
    """Wait for the flags of all ranks at once, one lane each; False, and nothing emitted, where that has no flags."""
    each = scope.names.fresh(f"{op.var}_each")
    tiles = {**scope.tiles, op.var: TileNames(each, f"{each} + 1", grid, 1)}
    apart = replace(scope, lines=Lines(), tiles=tiles, replaced={**scope.replaced, op.var: each})
    done = all(signals.await_each(apart, o, each) for o in waiting)
    if done:
        lanes = access.power_of_two(scope.lowered.topology.size(scope.step.axis))
        scope.lines.add(f"{each} = tl.arange(0, {lanes})", op.loc)
        scope.lines.extend(apart.lines)
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


def _range(scope: Scope, op: Tiles, grid: GridAxis) -> tuple[str, str]:
    """First and last position of the loop, each a name or a number: inside the axis, whatever the program says."""
    low, high = map(scope.text, grid.span)
    if op.start is not None:
        start = scope.expression(op.start)
        low = start if low == "0" and op.start.text in scope.inside else f"tl.maximum({low}, {start})"
        low = access.from_data(op.start, low, most=scope.text(grid.size))
    if op.stop is not None and op.stop.text != "None":
        high = access.from_data(op.stop, f"tl.minimum({high}, {scope.expression(op.stop)})")
    if op.part is not None:
        length, base = (high, "") if low == "0" else (f"tl.maximum({high} - ({low}), 0)", f"{low} + ")
        piece = scope.named(f"{op.var}_piece", f"tl.cdiv({length}, {scope.expression(op.part[1])})")
        low = scope.named(f"{op.var}_start", f"{base}({scope.expression(op.part[0])}) * {piece}")
        high = f"tl.minimum({low} + {piece}, {high})"
    low, high = (
        text if text.isidentifier() or text.isdigit() else scope.named(f"{op.var}_{end}", text)
        for end, text in (("start", low), ("stop", high))
    )
    return low, high


def _nested(scope: Scope, head: str, loc: Loc | None, body: tuple[Statement, ...]) -> None:
    with scope.lines.block(head, loc):
        before = len(scope.lines.rows)
        emit_body(scope, body)
        if len(scope.lines.rows) == before:
            scope.lines.add("pass")


def _loop(scope: Scope, op: Loop) -> None:
    known = dict(scope.replaced)
    if op.unrolled:
        # Sizes have to be known when the kernel is compiled.
        for size in (o for o in walk(scope.body) if isinstance(o, Bounds) and o.what == "size"):
            if size.name in op.header.names and size.axis is not None:
                v = scope.step.step.binding(size.param).view[size.axis]
                value = F.evaluate(v.extent(scope.step.axis), scope.lowered.env(0))
                known[size.name] = str(value)
    _nested(scope, f"{replace(scope, replaced=known).expression(op.header)}:", op.loc, op.body)


def _branch(scope: Scope, op: If) -> None:
    _nested(scope, f"if {scope.expression(op.test)}:", op.loc, op.body)
    if op.orelse:
        _nested(scope, "else:", None, op.orelse)


# ----------------------------------------------------------------------------------------------------------------- masks
@dataclass(frozen=True, slots=True)
class Whole:
    """Where whole tiles of a loop begin (None: with the first tile) and stop: positions at which tiles begin, by name.

    `rest`: whether at most one tile is left, that in which the loop ends.
    """

    start: str | None
    stop: str
    rest: bool = False


def _mask(scope: Scope, op: Bounds) -> None:
    """Assign the mask: of rows by positions."""
    assert op.var is not None
    tile = scope.tiles[op.var]
    start, stop = (_limit(scope, op, what) for what in ("start", "stop"))
    rows = [text for text, vector in (start, stop) if vector and text is not None]
    if tile.whole:
        # Limits of a loop with whole tiles have names.
        count = f"({' + '.join(rows)}).shape[0]" if len(rows) > 1 else f"{rows[0]}.shape[0]" if rows else "1"
        text = f"tl.full([{count}, {tile.extent}], True, tl.int1)"
    else:
        found = [f"{tile.inside}[None, :]"]
        for (limit, vector), sign in ((start, ">="), (stop, "<")):
            if limit is not None:
                side = f"{limit if limit.isidentifier() else f'({limit})'}[:, None]" if vector else limit
                found.append(f"({tile.at}[None, :] {sign} {side})")
        text = " & ".join(found)
    scope.lines.add(f"{scope.local(op.name)} = {text}", op.loc)


def _whole_tiles(scope: Scope, op: Tiles, grid: GridAxis, low: str, high: str) -> Whole | None:
    """Where the whole tiles are of a loop from `low` to `high` that makes masks; None: one loop does for all tiles, as where one
    that is a whole axis has more lanes than elements.

    Limits have names from here on, by which `_mask` finds them. A limit that changes from tile to tile is no limit of the
    loop; and what notifies stays in the order of its tiles.
    """
    masks = [o for o in walk(op.body) if isinstance(o, Bounds) and o.what == "mask" and o.var == op.var]
    if not masks or grid.tile is None or any(isinstance(o, Notify) for o in walk(op.body)):
        return None
    inner = bound_in(op.body) | {op.var}
    if any(inner & set(e.names) for m in masks for e in (m.start, m.stop) if e is not None):
        return None
    least, most = [high], [low]
    for mask in masks:
        for what, found, reduced in (("start", most, "tl.max"), ("stop", least, "tl.min")):
            limit, vector = _limit(scope, mask, what)
            if limit is not None:
                limit = access.from_data(getattr(mask, what), limit, most=high)
                name = scope.named(f"{mask.name}_{what}", limit) if vector else limit
                scope.limits[mask.name, what] = name
                found.append(f"{reduced}({name}, 0)" if vector else name)
    step = scope.text(grid.step, F.DIVISOR)
    stop = scope.named(f"{op.var}_whole_stop", _aligned(least, low, step, "tl.minimum", "//"))
    if most == [low]:
        return Whole(None, stop, rest=least == [high])
    return Whole(scope.named(f"{op.var}_whole_start", _aligned(most, low, step, "tl.maximum", "cdiv")), stop)


def _aligned(limits: list[str], low: str, step: str, word: str, divide: str) -> str:
    """The last (`//`) or first (`cdiv`) begin of a tile that the limits allow, counted from `low`."""
    text = limits[0]
    for limit in limits[1:]:
        text = f"{word}({text}, {limit})"
    away = f"tl.maximum({text}{f' - {low}' if low != '0' else ''}, 0)"
    tiles = f"{away} // {step}" if divide == "//" else f"tl.cdiv({away}, {step})"
    return f"{tiles} * {step}" if low == "0" else f"{low} + {tiles} * {step}"


def _limit(scope: Scope, op: Bounds, what: str) -> tuple[str | None, bool]:
    """The text of a limit, and whether it is a vector. A choice between a vector and a position is made one."""
    expr: Expr | None = getattr(op, what)
    if expr is None:
        return None, False
    known = scope.limits.get((op.name, what))
    if known is not None:
        return known, expr.vector
    text = scope.expression(expr)
    if not expr.vector:
        return atom(text), False
    return f"tl.zeros([1], tl.int32) + ({text})", True


# ------------------------------------------------------------------------------------------------------------ flag loops
def _open_flags(scope: Scope, op: Tiles, waiting: list[Wait], grid: GridAxis, low: str, high: str) -> tuple[str, str]:
    """Runs: the loop becomes one over the flags of the first wait: await one, then walk the tiles that it completes.

    A tile belongs to the run of the last flag that it touches. Flags are awaited in order, so all of them are complete.
    Gives the positions from which and up to which the run's tiles begin. A worker that has awaited all of the flags for
    an earlier tile makes one run of them.
    """
    lines, fresh, least, most = scope.lines, scope.names.fresh, _symbol(low), _symbol(high)
    walks = [w for w in (scope.part.walk(op.var, wait) for wait in waiting) if w is not None]
    walk = walks[0]
    run, begin, end = fresh("run"), fresh("run_begin"), fresh("run_end")
    lo, hi = (F.substitute(edge, {"flag": Sym(run)}) for edge in (walk.begin, walk.end))
    start = scope.text(walk.first if low == "0" else _index(walk, least))
    stop, until = scope.text(_index(walk, most - 1)), scope.text(F.minimum(hi, most))
    new: str | None = None
    if scope.step.into is None and all(replace(w, wait=walk.wait) == walk and w.alone for w in walks):
        # From here on the loop's flags count as awaited: it awaits what is new to the worker.
        first, last = scope.named(f"{op.var}_first_flag", start), scope.named(f"{op.var}_last_flag", stop)
        known = signals.remembered(scope, scope.declared(waiting[0].param).name)
        new = scope.named(f"{op.var}_new", f"({first} < {known[0]}) | ({last} > {known[1]})")
        for line in signals.joined(scope, first, last, *known):
            lines.add(line)
        flags, until = f"{first}, tl.where({new}, {last}, {first}) + 1", f"tl.where({new}, {until}, {high})"
    else:
        flags = f"{start}, {scope.text(_index(walk, most - 1) + 1)}"
    lines.add(f"for {run} in range({flags}):", waiting[0].loc)
    lines.depth += 1
    lines.add(f"{begin} = {scope.text(lo if low == '0' else F.maximum(lo, least))}")
    lines.add(f"{end} = {until}")
    with lines.block(f"if {new}:") if new is not None else nullcontext():
        _await_run(scope, op, waiting, walk, TileNames(begin, end, grid.free, 1), run)
    # Where the tile of the loop begins that holds the run's first position, and the one behind its last.
    borders = (scope.text(least + (Sym(at) - least) // grid.step * grid.step) for at in (begin, end))
    first, last = fresh(f"{op.var}_first"), fresh(f"{op.var}_last")
    lines.add(f"{first} = {next(borders)}")
    lines.add(f"{last} = tl.where({end} < {high}, {next(borders)}, {high})")
    return first, last


def _await_run(scope: Scope, op: Tiles, waiting: list[Wait], walk: Walk, span: TileNames, run: str) -> None:
    """Every wait of the loop, for the positions of flag `run` of the first."""
    inside, first = replace(scope, tiles={**scope.tiles, op.var: span}), signals.awaited(scope, waiting[0])
    for wait in waiting:
        with inside.keeping_names():
            body = ops.body_of(inside, wait)
            if signals.awaited(scope, wait) == first and walk.alone and not isinstance(body[0], LoweredIf):
                body = (Await(signals.awaited(scope, wait), Sym(run), loc=wait.loc),)
            signals.await_all(inside, wait, body)
        signals.fence(scope, wait)


def _index(walk: Walk, position: F.Like) -> Formula:
    return F.substitute(walk.index, {AT: position})


def _symbol(text: str) -> Formula:
    return F.of(int(text)) if text.isdigit() else Sym(text)
