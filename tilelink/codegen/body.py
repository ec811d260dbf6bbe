"""The body of a tile program, op by op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilelink.codegen import access, signalling
from tilelink.codegen.access import expression
from tilelink.codegen.scope import TRITON_DTYPES, Place, Scope, TileNames
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.channel import ChannelAxis
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.partition import RANK, GridAxis, holder, part
from tilelink.ir.plan import InPlace
from tilelink.ir.program import (
    At,
    Bounds,
    Check,
    Holder,
    If,
    Let,
    Load,
    Loop,
    Move,
    Notify,
    OfTile,
    Op,
    Raw,
    Store,
    Tile,
    Tiles,
    Wait,
    walk,
)
from tilelink.ir.wiring import TensorDecl, entries


def emit_body(scope: Scope, body: tuple[Op, ...]) -> None:
    for op in body:
        scope.loc = op.loc
        _EMIT[type(op)](scope, op)


def tile_names(scope: Scope, var: str, grid: GridAxis) -> TileNames:
    extent = grid.tile if grid.tile is not None else access.padded(scope, grid.step)
    fresh = scope.names.fresh
    names = TileNames(fresh(f"{var}_begin"), fresh(f"{var}_end"), fresh(f"{var}_at"), fresh(f"{var}_in"), grid, extent)
    scope.tiles[var] = names
    return names


def lane_lines(lines: Lines, tile: TileNames) -> None:
    """The lanes and the mask of a tile, where something used them."""
    if "at" in tile.used:
        start = f"{tile.begin} + " if tile.begin != "0" else ""
        lines.add(f"{tile.at} = {start}tl.arange(0, {tile.extent})")
    if "inside" in tile.used:
        lines.add(f"{tile.inside} = {tile.at} < {tile.end}")


def _nothing(scope: Scope, op: Tile) -> None:
    del scope, op


def _tensor(scope: Scope, param: str) -> TensorDecl:
    return scope.plan.wiring.tensor(scope.step.step.binding(param).tensor)


# ------------------------------------------------------------------------------------------------------------------ loops
def _tiles(scope: Scope, op: Tiles) -> None:
    view = scope.step.step.binding(op.param).view[op.axis]
    grid = scope.step.loop(view.dim)
    low, high = _range(scope, op, grid)
    if view.unit:
        _slices(scope, op, grid, low, high)
        return
    if op.start is not None or op.stop is not None or op.part is not None:
        grid = replace(grid, kind="free")
    names = tile_names(scope, op.var, grid)
    outer, depth = scope.lines, scope.lines.depth
    waits = [o for o in op.body if isinstance(o, Wait) and _in_runs(scope, op, o)]
    scope.lines = Lines()
    emit_body(scope, tuple(o for o in op.body if o not in waits))
    inner, scope.lines = scope.lines, outer
    first, last = _runs(scope, op, waits, grid, low, high) if waits else (low, high)
    outer.add(f"for {names.begin} in range({first}, {last}, {scope.text(grid.step)}):", op.loc)
    outer.depth += 1
    if "end" in names.used or "inside" in names.used:
        outer.add(f"{names.end} = tl.minimum({names.begin} + {scope.text(grid.step, 1)}, {high})")
    lane_lines(outer, names)
    if op.var in read_names(op.body):
        outer.add(f"{scope.local(op.var)} = {names.begin} // {scope.text(grid.step, 3)}")
    outer.extend(inner)
    outer.depth = depth


def _slices(scope: Scope, op: Tiles, grid: GridAxis, low: str, high: str) -> None:
    """A loop over single positions. Fused, it first waits for all of them; in pieces, which leave registers for it, it is
    then unrolled, so that all loads are under way together: the host's next tile stands still meanwhile.
    """
    var = scope.local(op.var)
    scope.tiles[op.var] = TileNames(var, f"{var} + 1", "", "", grid, 1)
    body, word = op.body, "range"
    if scope.step.into is not None and not any(isinstance(o, (Notify, Loop, Tiles, If)) for o in walk(op.body)):
        waits = tuple(o for o in body if isinstance(o, Wait))
        if any(scope.plan.signal(scope.step.path, o).action != "elided" for o in waits):
            depth = scope.lines.depth
            if scope.step.pieces > 1 and all(_same_for_pieces(scope, o) for o in waits):
                scope.lines.add(f"if {FIRST_PIECE}:", op.loc)
                scope.lines.depth += 1
            scope.lines.add(f"for {var} in range({low}, {high}):", op.loc)
            _nested(scope, waits)
            scope.lines.depth = depth
        body = tuple(o for o in body if o not in waits)
        small = scope.step.pieces > 1 and scope.plan.topology.ranks <= UNROLLED
        word = "tl.static_range" if small and (low, high) == ("0", "RANKS") else word
    scope.lines.add(f"for {var} in {word}({low}, {high}):", op.loc)
    _nested(scope, body)


def _same_for_pieces(scope: Scope, op: Wait) -> bool:
    """Whether all pieces of the host's tile wait for the same words: those of the first piece are enough."""
    channel = scope.plan.signal(scope.step.path, op).channel
    told_apart = {a.axis for a in scope.plan.channel(channel).axes} if channel is not None else set[int | None]()
    cut = scope.step.grid[-1].var
    found = zip(scope.step.step.binding(op.param).view, entries(scope.step.step, op.param, op.index), strict=True)
    return not any(isinstance(e, OfTile) and e.var == cut and v.axis in told_apart for v, e in found)


FIRST_PIECE = "first_piece"
"""Parameter of a fused function that is called for a tile in pieces: whether this is the first of them."""
UNROLLED = 8
"""Ranks up to which a fused loop over them is unrolled."""


def _range(scope: Scope, op: Tiles, grid: GridAxis) -> tuple[str, str]:
    """First and last position of the loop, each a name or a number."""
    low, high = "0", scope.text(grid.size)
    if grid.kind == "mine":
        low = scope.text(RANK * grid.part)
        high = scope.text(F.minimum(RANK * grid.part + grid.part, grid.size))
    if op.start is not None:
        start = expression(scope, op.start)
        low = start if low == "0" else f"tl.maximum({low}, {start})"
    if op.stop is not None and op.stop.text != "None":
        high = f"tl.minimum({high}, {expression(scope, op.stop)})"
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
    Gives the positions from which and up to which the run's tiles begin.
    """
    lines, fresh = scope.lines, scope.names.fresh
    found = _axis_of_loop(scope, op, waits[0])
    assert found is not None
    axis, local = found
    run, begin, end = fresh("run"), fresh("run_begin"), fresh("run_end")
    shift: F.Like = RANK * axis.part if local else 0
    lo, hi = (edge - shift for edge in axis.interval(Sym(run)))
    start = "0" if low == "0" else scope.text(axis.index(Sym(low)))
    lines.add(f"for {run} in range({start}, {scope.text(axis.index(_symbol(high) - 1) + 1)}):", waits[0].loc)
    lines.depth += 1
    lines.add(f"{begin} = {scope.text(lo if low == '0' else F.maximum(lo, _symbol(low)))}")
    lines.add(f"{end} = {scope.text(F.minimum(hi, _symbol(high)))}")
    _await_run(scope, op, waits, axis, TileNames(begin, end, "", "", replace(grid, kind="free"), 1), run)
    first, last = fresh(f"{op.var}_first"), fresh(f"{op.var}_last")
    lines.add(f"{first} = {scope.text(_begin_of(Sym(begin), _symbol(low), grid))}")
    lines.add(f"{last} = tl.where({end} < {high}, {scope.text(_begin_of(Sym(end), _symbol(low), grid))}, {high})")
    return first, last


def _await_run(scope: Scope, op: Tiles, waits: list[Wait], axis: ChannelAxis, span: TileNames, run: str) -> None:
    """Every wait of the loop, for the positions of one word of the first."""
    # Asked of the loop's own tiles, not of the run that takes their place.
    fenced = [_read_by_tma(scope, wait) for wait in waits]
    kept, scope.tiles[op.var] = scope.tiles[op.var], span
    first = scope.plan.signal(scope.step.path, waits[0]).channel
    for wait, fence in zip(waits, fenced, strict=True):
        signal = scope.plan.signal(scope.step.path, wait)
        known = {axis.axis: Sym(run)} if signal.channel == first else {}
        signalling.await_signal(scope, scope.lines, wait, signal, None, known)
        if fence:
            scope.lines.add("shmem.async_load_fence()")
    scope.tiles[op.var] = kept


def _begin_of(position: Formula, low: Formula, grid: GridAxis) -> Formula:
    """Where the tile of a loop from `low` on that holds `position` begins."""
    return low + (position - low) // grid.step * grid.step


def _symbol(text: str) -> Formula:
    return F.of(int(text)) if text.isdigit() else Sym(text)


def _nested(scope: Scope, body: tuple[Op, ...]) -> None:
    scope.lines.depth += 1
    before = len(scope.lines.rows)
    emit_body(scope, body)
    if len(scope.lines.rows) == before:
        scope.lines.add("pass")
    scope.lines.depth -= 1


def _loop(scope: Scope, op: Loop) -> None:
    kept = dict(scope.replaced)
    if "tl.static_range(" in op.header.text:
        scope.replaced |= _constant_sizes(scope, op.header.names)
    head = expression(scope, op.header)
    scope.replaced = kept
    scope.lines.add(f"{head}:", op.loc)
    _nested(scope, op.body)


def _constant_sizes(scope: Scope, names: tuple[str, ...]) -> dict[str, str]:
    """Sizes that have to be known when the kernel is compiled."""
    sizes = (op for op in walk(scope.step.step.program.body) if isinstance(op, Bounds) and op.what == "size")
    found: dict[str, str] = {}
    for op in sizes:
        if op.name in names and op.axis is not None:
            v = scope.step.step.binding(op.param).view[op.axis]
            size = Sym("RANKS") if v.axis is None else access.visible(scope, _tensor(scope, op.param), v)
            found[op.name] = str(F.evaluate(size, scope.plan.env(0)))
    return found


def _if(scope: Scope, op: If) -> None:
    scope.lines.add(f"if {expression(scope, op.test)}:", op.loc)
    _nested(scope, op.body)
    if op.orelse:
        scope.lines.add("else:")
        _nested(scope, op.orelse)


def read_names(body: tuple[Op, ...]) -> set[str]:
    out: set[str] = set()
    for op in walk(body):
        for name in ("value", "test", "header", "mask", "other", "stop", "start", "condition"):
            expr = getattr(op, name, None)
            if expr is not None:
                out |= set(expr.names)
        out |= {n for e in getattr(op, "args", ()) for n in e.names}
        for e in getattr(op, "index", None) or ():
            if not isinstance(e, OfTile) and hasattr(e, "expr"):
                out |= set(e.expr.names)
    return out


# ----------------------------------------------------------------------------------------------------------------- values
def _bounds(scope: Scope, op: Bounds) -> None:
    """Nothing is emitted where the name never changes: it stands for what is known already."""
    if any(isinstance(o, Let) and op.name in o.target for o in walk(scope.step.step.program.body)):
        return scope.lines.add(f"{scope.local(op.name)} = {_bound(scope, op)}", op.loc)
    scope.replaced[op.name] = _bound(scope, op)
    scope.inside.update([op.name] if op.what in ("begin", "segment") else [])


def _bound(scope: Scope, op: Bounds) -> str:
    tensor = _tensor(scope, op.param)
    view = scope.step.step.binding(op.param).view
    if op.what == "shape":
        named = [g.var for g, v in zip(scope.step.grid, view, strict=True) if not v.unit and not _is_unit(g)]
        shape = [str(scope.tiles[var].extent) for var in named if var in scope.tiles]
        wholes = [v for g, v in zip(scope.step.grid, view, strict=True) if g.var is None and v.axis is not None]
        shape += [str(access.padded(scope, tensor.axes[v.axis].size)) for v in wholes if v.axis is not None]
        return "[" + ", ".join(shape) + "]"
    if op.what == "size":
        assert op.axis is not None
        v = view[op.axis]
        return _atom(scope.text(Sym("RANKS") if v.axis is None else access.visible(scope, tensor, v)))
    if op.what == "range" and op.var is None:
        v = view[op.axis or 0]
        assert v.axis is not None
        return access.lanes(access.whole(scope, v.dim, access.visible(scope, tensor, v)))
    assert op.var is not None
    if op.what == "segment":
        return scope.segments[op.var]
    tile = scope.tiles[op.var]
    if op.what == "range":
        return access.lanes(tile)
    if op.what == "end":
        tile.used.add("end")
    return tile.begin if op.what == "begin" else tile.end


def _is_unit(grid: GridAxis) -> bool:
    return grid.kind in ("unit", "own")


def _atom(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _holder(scope: Scope, op: Holder) -> None:
    tensor, name = _tensor(scope, op.param), scope.local(op.name)
    view = scope.step.step.binding(op.param).view
    for v, e in zip(view, entries(scope.step.step, op.param, op.index), strict=True):
        if not tensor.names_holder(v) or not isinstance(e, (OfTile, At)):
            continue
        assert v.axis is not None
        at = Sym(scope.tiles[e.var].begin) if isinstance(e, OfTile) else signalling.position(scope, e)
        scope.lines.add(f"{name} = {scope.text(holder(tensor, v.axis, at))}", op.loc)
        return
    scope.uses_rank = True
    scope.lines.add(f"{name} = rank", op.loc)


def _let(scope: Scope, op: Let) -> None:
    targets = ", ".join(scope.local(name) for name in op.target)
    scope.lines.add(f"{targets} = {expression(scope, op.value)}", op.loc)


def _check(scope: Scope, op: Check) -> None:
    condition = expression(scope, op.condition)
    if scope.watch.checks.debug:
        report = scope.report("holds", op.text or f"`{op.condition.text}`", op.loc)
        scope.lines.add(f"shmem.check({condition}, {report}, t)", op.loc)
    else:
        scope.lines.add(f"tl.device_assert({condition}, {op.text!r})", op.loc)


def _load(scope: Scope, op: Load) -> None:
    tensor = _tensor(scope, op.param)
    held = scope.forwarded.get(tensor.name)
    index = access.index_of(scope, op)
    name = scope.local(op.name)
    if held is None:
        _load_memory(scope, op, tensor, name)
        return
    slices = [e for v, e in zip(scope.step.step.binding(op.param).view, index, strict=True) if v.dim == "R" or v.unit]
    if scope.plan.buffer_or_none(tensor.name) is None or not slices:
        scope.lines.add(f"{name} = {held}", op.loc)
        return
    at = next(e for e in slices if isinstance(e, At))
    slice_at = expression(scope, at.expr)
    # No branch: the loads of an unrolled loop are to go out together.
    _load_memory(scope, op, tensor, name, f"{slice_at} != rank")
    scope.lines.add(f"{name} = tl.where({slice_at} == rank, {held}, {name})", op.loc)


def _load_memory(scope: Scope, op: Load, tensor: TensorDecl, name: str, only_if: str | None = None) -> None:
    index = access.index_of(scope, op)
    plain = op.other is None or op.other.text in ("0", "0.0")
    place = scope.places.get(tensor.name)
    found = access.tma(scope, tensor, op.param, index) if plain and only_if is None else None
    if found is not None and (place is None or place.tma):
        name_of = found.name if place is None else place.name
        text = f"{name_of}.load({found.coordinates})"
        scope.async_tensors.add(tensor.name)
        scope.lines.add(f"{name} = " + (f"tl.trans({text})" if found.transposed else text), op.loc)
        return
    view = scope.step.step.binding(op.param).view
    pieces, blocks = access.terms(scope, tensor, view, index, RANK)
    start = scope.tensor(tensor.name) if place is None else place.name
    pointer, mask = access.address(scope, start, pieces, blocks)
    if only_if is not None:
        mask = f"{mask} & ({only_if})" if mask else only_if
    # Triton turns no integer into fp8.
    nothing = "0.0" if tensor.dtype.startswith("f8") else "0"
    other = expression(scope, op.other) if op.other is not None else nothing
    tail = f", mask={mask}, other={other}" if mask else ""
    scope.lines.add(f"{name} = tl.load({pointer}{tail})", op.loc)


def _store(scope: Scope, op: Store) -> None:
    tensor = _tensor(scope, op.param)
    value = expression(scope, op.value)
    if scope.step.fused and op.to == "own" and _is_forwarded(scope, tensor):
        name = scope.names.fresh(f"{tensor.name}_tile")
        dtype = TRITON_DTYPES[tensor.dtype]
        scope.lines.add(f"{name} = tl.cast({value}, {dtype})", op.loc)
        scope.forwarded[tensor.name] = name
        value = name
    if scope.plan.buffer_or_none(tensor.name) is None:
        return
    if op.to == "own":
        _store_own(scope, op, tensor, value)
    else:
        _store_holders(scope, op, tensor, value)


def _is_forwarded(scope: Scope, tensor: TensorDecl) -> bool:
    steps = [scope.plan.step(p) for p in scope.step.fused]
    return any(b.tensor == tensor.name for s in steps for b in s.step.bindings) or any(s.forwarded for s in steps)


def _store_own(scope: Scope, op: Store, tensor: TensorDecl, value: str) -> None:
    index = access.index_of(scope, op)
    found = access.tma(scope, tensor, op.param, index) if op.mask is None else None
    if found is not None and not found.transposed:
        scope.lines.add(
            f"{found.name}.store({found.coordinates}, tl.cast({value}, {TRITON_DTYPES[tensor.dtype]}))", op.loc
        )
        scope.stored_async = True
        return
    _store_at(scope, op, tensor, value, scope.tensor(tensor.name), RANK)


def _store_at(scope: Scope, op: Store, tensor: TensorDecl, value: str, pointer: str, holder: F.Like) -> None:
    view = scope.step.step.binding(op.param).view
    pieces, blocks = access.terms(scope, tensor, view, access.index_of(scope, op), holder)
    where, mask = access.address(scope, pointer, pieces, blocks)
    masks = [m for m in (mask, expression(scope, op.mask) if op.mask is not None else None) if m]
    tail = ", mask=" + " & ".join(f"({m})" if len(masks) > 1 else m for m in masks) if masks else ""
    scope.lines.add(f"tl.store({where}, {value}{tail})", op.loc)


def holder_of(scope: Scope, tensor: TensorDecl, param: str, op: Store | Notify) -> Formula | None:
    """The one rank that holds the index in `tensor`; None: every rank does."""
    view = scope.step.step.binding(param).view
    for v, e in zip(view, entries(scope.step.step, param, op.index), strict=True):
        if not tensor.names_holder(v) or not isinstance(e, (OfTile, At)):
            continue
        assert v.axis is not None
        at = Sym(scope.tiles[e.var].begin) if isinstance(e, OfTile) else signalling.position(scope, e)
        return holder(tensor, v.axis, at)
    return None


def _store_holders(scope: Scope, op: Store, tensor: TensorDecl, value: str) -> None:
    owner = holder_of(scope, tensor, op.param, op)
    there = scope.names.fresh(f"{tensor.name}_there")
    ctx = scope.context(tensor.name)
    if owner is None:
        pe = scope.names.fresh("pe")
        scope.lines.add(f"for {pe} in range(RANKS):", op.loc)
        scope.formulas.symbols.add("RANKS")
        scope.lines.depth += 1
        scope.lines.add(f"{there} = shmem.ptr({scope.tensor(tensor.name)}, (rank + {pe}) % RANKS, {ctx})")
        scope.uses_rank = True
        _store_at(scope, op, tensor, value, there, RANK)
        scope.lines.depth -= 1
        return
    name = _named(scope, owner)
    scope.lines.add(f"{there} = shmem.ptr({scope.tensor(tensor.name)}, {name}, {ctx})", op.loc)
    _store_at(scope, op, tensor, value, there, Sym(name))


def _named(scope: Scope, owner: Formula) -> str:
    text = scope.text(owner)
    return text if text.isidentifier() else scope.named("owner", text)


# ---------------------------------------------------------------------------------------------------------------- signals
def _wait(scope: Scope, op: Wait) -> None:
    signal = scope.plan.signal(scope.step.path, op)
    if signal.action == "elided":
        return
    tensor = _tensor(scope, op.param)
    if tensor.name in scope.forwarded:
        view = scope.step.step.binding(op.param).view
        at = next(
            (
                e
                for v, e in zip(view, entries(scope.step.step, op.param, op.index), strict=True)
                if isinstance(e, At) and v.unit
            ),
            None,
        )
        assert at is not None
        scope.lines.add(f"if {expression(scope, at.expr)} != rank:")
        scope.uses_rank = True
        scope.lines.depth += 1
        signalling.await_signal(scope, scope.lines, op, signal, None)
        scope.lines.depth -= 1
        return
    fence = ("shmem.async_load_fence()",) if _read_by_tma(scope, op) else ()
    own = next((i for i in scope.step.in_place if i.tensor == tensor.name), None)
    if own is not None:
        _await_others(scope, op, own, fence)
        return
    if signal.action == "await" and scope.step.engine == "workers" and op in scope.step.step.program.body:
        signalling.await_once(scope, scope.lines, op, signal, fence)
        return
    signalling.await_signal(scope, scope.lines, op, signal, None)
    for line in fence:
        scope.lines.add(line)


def _await_others(scope: Scope, op: Wait, own: InPlace, fence: tuple[str, ...]) -> None:
    """Wait for the tile unless this rank has brought it along, and say where it lies."""
    lines, wiring = scope.lines, scope.plan.wiring
    tensors = [wiring.tensor(name) for name in (own.tensor, own.source)]
    size = tensors[0].axes[own.axis].size
    holder = scope.text(Sym(scope.tiles[own.var].begin) // part(size), 1)
    away = scope.named(f"{own.tensor}_away", f"{holder} != rank")
    scope.uses_rank = True
    signalling.await_once(scope, lines, op, scope.plan.signal(scope.step.path, op), fence, only_if=away)
    loads = [o for o in walk(scope.step.step.program.body) if isinstance(o, Load) and o.param == op.param]
    found = [access.could_be_tma(scope, t, op.param, loads) for t in tensors]
    names = [
        scope.arg(f) if f is not None and all(found) else scope.tensor(t.name)
        for f, t in zip(found, tensors, strict=True)
    ]
    place, first = scope.names.fresh(f"{own.tensor}_place"), scope.names.fresh(f"{own.tensor}_first")
    for test, name, begin in ((f"if {away}:", names[0], "0"), ("else:", names[1], scope.text(RANK * part(size)))):
        lines.add(test, op.loc)
        lines.add(f"    {place} = {name}")
        lines.add(f"    {first} = {begin}")
    scope.places[own.tensor] = Place(place, first, own.axis, all(found))


def _read_by_tma(scope: Scope, op: Wait) -> bool:
    """Whether the program reads the awaited tensor through a descriptor (generic writes, asynchronous reads)."""
    loads = [o for o in walk(scope.step.step.program.body) if isinstance(o, Load) and o.param == op.param]
    return access.could_be_tma(scope, _tensor(scope, op.param), op.param, loads) is not None


def _notify(scope: Scope, op: Notify) -> None:
    signal = scope.plan.signal(scope.step.path, op)
    if signal.action == "elided":
        return
    tensor = _tensor(scope, op.param)
    owner = None
    if signal.to == "owner":
        found = holder_of(scope, tensor, op.param, op)
        owner = _named(scope, found if found is not None else _waiter(scope, op))
    signalling.notify(scope, scope.lines, op, signal, owner)


def _waiter(scope: Scope, op: Notify) -> Formula:
    """Of a tensor that others pull: the rank whose part of the destination the tile belongs to."""
    channel = scope.plan.channel_of(scope.step.step.binding(op.param).tensor)
    assert channel is not None
    axis = next(a for a in channel.axes if a.kind == "part")
    view = scope.step.step.binding(op.param).view
    entry = next(
        e for v, e in zip(view, entries(scope.step.step, op.param, op.index), strict=True) if v.axis == axis.axis
    )
    assert isinstance(entry, OfTile)
    return Sym(scope.tiles[entry.var].begin) // axis.part


def _move(scope: Scope, op: Move) -> None:
    raise AssertionError(f"a movement is emitted as a whole: {scope.step.path}, {op.loc}")


def _raw(scope: Scope, op: Raw) -> None:
    """The escape hatch, word for word."""
    args = [expression(scope, a) for a in op.args]
    if op.what == "pointer":
        text = scope.tensor(_tensor(scope, op.param or "").name)
    elif op.what == "rank":
        text, scope.uses_rank = "rank", True
    elif op.what == "num_ranks":
        text = "RANKS"
        scope.formulas.symbols.add("RANKS")
    elif op.what == "effect":
        text = args[0]
    else:
        context = [scope.arg(Arg("ctx", "context", ""))] if op.what in ("symm_at", "notify") else []
        text = f"shmem.{op.what}({', '.join([*args, *context])})"
    scope.lines.add(text if op.name is None else f"{scope.local(op.name)} = {text}", op.loc)


_EMIT: dict[type, Callable[[Scope, Any], None]] = {
    Tile: _nothing,
    Tiles: _tiles,
    Loop: _loop,
    If: _if,
    Bounds: _bounds,
    Holder: _holder,
    Load: _load,
    Store: _store,
    Move: _move,
    Notify: _notify,
    Wait: _wait,
    Let: _let,
    Check: _check,
    Raw: _raw,
}
