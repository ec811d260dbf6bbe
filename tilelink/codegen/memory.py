"""What loads and stores of a program become: pointers, descriptors, or what the host of a fused step has in registers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tilelink.codegen import access, ops
from tilelink.codegen.access import padded
from tilelink.codegen.names import expressions
from tilelink.codegen.scope import TRITON_DTYPES, Scope, TileNames
from tilelink.codegen.text import atom
from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.program import At, Bounds, Load, OfTile, Store, TileProgram, Tiles, Whole, has_dot, walk
from tilelink.ir.shape import ITEM_BYTES
from tilelink.ir.wiring import TensorDecl

LANEWISE = frozenset(
    f"tl.{name}"
    for name in (
        "abs", "cast", "exp", "exp2", "fma", "full", "log", "log2", "maximum", "minimum", "rsqrt", "sigmoid", "sqrt", "trans",
        "where", "zeros",
    )
)  # fmt: skip
"""Functions whose lanes do not see one another, so that nothing of a lane past an edge reaches one that is stored."""
_CALLED = re.compile(r"([\w.]+)\s*\(")


def load(scope: Scope, op: Load) -> None:
    tensor = scope.declared(op.param)
    held = scope.forwarded.get(tensor.name)
    name = scope.local(op.name)
    if held is None:
        _load_memory(scope, op, tensor, name)
        return
    # Past the tensor's edges a load gives `other`, whatever the host has there.
    inside = None if lanewise(scope.step.step.program) else access.inside_of(scope, op)
    if inside is not None:
        held = f"tl.where({inside}, {held}, {_other(scope, op, tensor)}).to({TRITON_DTYPES[tensor.dtype]})"
    slices = [e for v, e in scope.indexed(op) if v.unit]
    if scope.plan.buffer_or_none(tensor.name) is None or not slices:
        scope.lines.add(f"{name} = {held}", op.loc)
        return
    at = next(e for e in slices if isinstance(e, At))
    slice_at = scope.expression(at.expr)
    # No branch: the loads of an unrolled loop are to go out together.
    _load_memory(scope, op, tensor, name, f"{slice_at} != {scope.rank}")
    scope.lines.add(f"{name} = tl.where({slice_at} == {scope.rank}, {held}, {name})", op.loc)


def _load_memory(scope: Scope, op: Load, tensor: TensorDecl, name: str, only_if: str | None = None) -> None:
    plain = op.other is None or op.other.text in ("0", "0.0")
    place = scope.places.get(tensor.name)
    found = tma(scope, tensor, op) if plain and only_if is None else None
    if found is not None and (place is None or place.tma):
        name_of = found.name if place is None else place.name
        shape = "" if found.shape is None else f".reshape({', '.join(map(str, found.shape))})"
        text = f"{name_of}.load({found.coordinates}){shape}"
        scope.async_tensors.add(tensor.name)
        scope.lines.add(f"{name} = " + (f"tl.trans({text})" if found.transposed else text), op.loc)
        return
    start = scope.tensor(tensor.name) if place is None else place.name
    pointer, mask = access.address_of(scope, start, op)
    if only_if is not None:
        mask = f"{mask} & ({only_if})" if mask else only_if
    other = _other(scope, op, tensor)
    if scope.is_ll(tensor.name):
        given = f"{pointer}, epoch, {mask}, {TRITON_DTYPES[tensor.dtype]}"
        scope.lines.add(f"{name} = {words_awaited(scope, 'll_load', given, tensor, op.loc)}", op.loc)
        return
    tail = f", mask={mask}, other={other}" if mask else ""
    scope.lines.add(f"{name} = tl.load({pointer}{tail})", op.loc)


def _other(scope: Scope, op: Load, tensor: TensorDecl) -> str:
    """What a load gives past the edges."""
    # Triton turns no integer into fp8.
    nothing = "0.0" if tensor.dtype.startswith("f8") else "0"
    return scope.expression(op.other) if op.other is not None else nothing


def store(scope: Scope, op: Store) -> None:
    tensor = scope.declared(op.param)
    value = scope.expression(op.value)
    fused = [scope.plan.step(p) for p in scope.step.fused] if op.to == "own" else []
    if any(s.forwarded or any(b.tensor == tensor.name for b in s.step.bindings) for s in fused):
        name = scope.forwarded[tensor.name] = scope.names.fresh(f"{tensor.name}_tile")
        scope.lines.add(f"{name} = tl.cast({value}, {TRITON_DTYPES[tensor.dtype]})", op.loc)
        value = name
    if scope.plan.buffer_or_none(tensor.name) is None:
        return
    if op.to != "own":
        _store_holders(scope, op, tensor, value)
        return
    found = tma(scope, tensor, op) if op.mask is None else None
    if found is not None and not found.transposed and (found.shape is None or found.block):
        value = f"tl.cast({value}, {TRITON_DTYPES[tensor.dtype]})"
        value = f"{value}.reshape({', '.join(map(str, found.block))})" if found.block else value
        scope.lines.add(f"{found.name}.store({found.coordinates}, {value})", op.loc)
        scope.stored_async = True
        return
    _store_at(scope, op, value, scope.tensor(tensor.name))


def _store_at(scope: Scope, op: Store, value: str, pointer: str) -> None:
    where, mask = access.address_of(scope, pointer, op)
    masks = [m for m in (mask, scope.expression(op.mask) if op.mask is not None else None) if m]
    tail = ", mask=" + " & ".join(f"({m})" if len(masks) > 1 else m for m in masks) if masks else ""
    scope.lines.add(f"tl.store({where}, {value}{tail})", op.loc)


def _store_holders(scope: Scope, op: Store, tensor: TensorDecl, value: str) -> None:
    """Of a vector of positions on a split axis each rank takes those that it has."""
    if scope.is_ll(tensor.name):
        if not _is_tile(scope, op):
            value = f"tl.broadcast_to({value}, {[tile.extent for tile in access.tiles_of(scope, op)]})"
        say_words(scope)
        pack = f"shmem.ll_pack({value}, epoch, {TRITON_DTYPES[tensor.dtype]})"
        value = scope.named(f"{tensor.name}_pack", pack)
    body = scope.part.of(op)
    there = scope.names.fresh(f"{tensor.name}_there")
    with scope.keeping_names(), ops.turns(scope, body[-1], op.loc):
        pe = ops.name(scope, "owner", access.accessed(body)[0].rank, op.loc)
        scope.lines.add(f"{there} = shmem.ptr({scope.tensor(tensor.name)}, {pe}, {scope.context(tensor.name)})", op.loc)
        _store_at(scope, op, value, there)


def lanewise(program: TileProgram) -> bool:
    """Whether all that the program computes of a block it computes lane by lane."""
    texts = [e.text for op in walk(program.body) for e in expressions(op)]
    called = {name for text in texts for name in _CALLED.findall(text)}
    return "@" not in "".join(texts) and all(name in LANEWISE or name.endswith(".to") for name in called)


# -------------------------------------------------------------------------------------- tensors that come by the LL protocol
def say_words(scope: Scope) -> None:
    scope.lines.say("4 bytes of data a word, and the number of the call: whoever reads it waits for that")


def words_awaited(scope: Scope, function: str, given: str, tensor: TensorDecl, loc: Loc | None) -> str:
    """The call of a device function that reads words, and waits for them; with a time limit where the plan is emitted so."""
    if not scope.checks.watchdog:
        return f"shmem.{function}({given})"
    report = scope.report("words", tensor.name, loc)
    return f"shmem.{function}_within({given}, {scope.tensor(tensor.name)}, {report}, t)"


def _is_tile(scope: Scope, op: Store) -> bool:
    """Whether the value is known to be a block of the tile's shape: the name of a load of this tile."""
    binding = [o for o in walk(scope.body) if isinstance(o, Load) and o.name == op.value.text]
    if len(binding) != 1 or binding[0].index != op.index:
        return False
    # Axes of other lengths may go by the same index.
    there, here = ([tile.extent for tile in access.tiles_of(scope, o)] for o in (binding[0], op))
    return there == here


# ------------------------------------------------------------------------------------------------------ TMA: descriptors
@dataclass(frozen=True, slots=True)
class Tma:
    """A descriptor access: parameter name, coordinates, and whether the block arrives transposed; `shape`: what the
    block is to be made of, which has an axis for each position; `block`: what a block is to be stored as, if it differs."""

    name: str
    coordinates: str
    transposed: bool
    shape: tuple[int, ...] | None = None
    block: tuple[int, ...] = ()


def tma(scope: Scope, tensor: TensorDecl, op: Load | Store) -> Tma | None:
    """The access as a TMA access, where that is possible; else None and pointers are used.

    It takes a program of matmul kind, 16-byte alignment, and tiles that end only where the tensor does (a descriptor fills
    with zeros past the tensor's edge, not past a tile's) or where ranks' parts do, if these are all of one length
    (then the descriptor's tensor has an axis of parts), and either a 2-D tile, at one position along each axis before
    the last two, or, in a loop over whole tiles, some rows, whole in their last axis, at one position along each other axis.
    (Elsewhere Triton would take such rows into registers.)
    """
    device = scope.plan.topology.device
    if device.amd or device.capability < 90 or not has_dot(scope.step.step.program) or scope.is_ll(tensor.name):
        return None
    index, stored = scope.indexed(op), access.stored(scope.indexed(op))
    kinds, before = [type(e) for _, e in stored], len(stored) - 2
    two = len(index) == len(kinds) and kinds == [At] * before + [OfTile, OfTile]
    rows = kinds[-1:] == [Whole] and sorted(k.__name__ for k in kinds[:-1]) == ["At"] * before + ["OfTile"]
    if not two and not rows:
        return None
    tiles = {a: scope.tiles[e.var] for a, (_, e) in enumerate(stored) if isinstance(e, OfTile)}
    ragged = [a for a, tile in tiles.items() if not _ends_with_tensor(scope, tile)]
    transposed, whole = _row_major(scope, tensor, before + 1), tensor.axes[stored[-1][0].axis or 0]
    lengths = [tiles[a].extent if a in tiles else 1 for a in range(before + 2)]
    if rows:
        if transposed is not False or whole.over is not None or not all(tile.whole for tile in tiles.values()):
            return None
        lengths[-1] = padded(scope, whole.size)
    elif transposed is None or (ragged and (len(ragged) > 1 or not _of_equal_parts(scope, tiles[ragged[0]]))):
        return None
    order = (*range(before), before + 1, before) if transposed else tuple(range(before + 2))
    block = tuple(lengths[a] for a in order)
    if not _fits(scope, tensor, order, block):
        return None
    coordinates = [_coordinate(scope, tensor, op, a) for a in order]
    taken = tuple(lengths[a] for a in order if kinds[a] is not At)
    if not ragged:
        shape = taken if rows or before else None
        return Tma(_descriptor(scope, tensor, order, block), f"[{', '.join(coordinates)}]", transposed, shape)
    at, grid = order.index(ragged[0]), tiles[ragged[0]].grid
    if at == len(order) - 1 or len(block) == 5:
        return None
    part, position = scope.text(grid.part), atom(coordinates[at])
    coordinates[at] = f"{position} % {part}"
    order, block = (ragged[0], *(a + 1 if a >= ragged[0] else a for a in order)), (1, *block)
    name = _descriptor(scope, tensor, order, block, (ragged[0], int(F.evaluate(grid.part, scope.lowered.env(0)))))
    return Tma(name, f"[{', '.join([f'{position} // {part}', *coordinates])}]", transposed, taken, block)


def _fits(scope: Scope, tensor: TensorDecl, order: tuple[int, ...], block: tuple[int, ...]) -> bool:
    """Whether a descriptor takes such a block: TMA's own limits, 16-byte rows on every rank, and nothing empty (a descriptor
    has no empty axis)."""
    buffer, item = scope.plan.buffer(tensor.name), ITEM_BYTES[tensor.dtype]
    if block[-1] * item < 16 or max(block) > 256 or len(block) > 5:
        return False
    extents = [scope.on_ranks(e) for e in buffer.extents]
    if any(min(sizes) < 1 for sizes in extents):
        return False
    if buffer.space == "argument":
        return scope.plan.layout(tensor.name).aligned
    return all(size * item % 16 == 0 for size in extents[order[-1]])


def _descriptor(
    scope: Scope, tensor: TensorDecl, order: tuple[int, ...], block: tuple[int, ...], parts: tuple[int, int] | None = None
) -> str:  # fmt: skip
    name = f"{tensor.name}_{'x'.join(map(str, block))}"
    return scope.arg(Arg(name, "descriptor", tensor.name, block=block, axes=order, parts=parts))


def _coordinate(scope: Scope, tensor: TensorDecl, op: Load | Store, axis: int) -> str:
    """Where the access begins along an axis of the memory. What lies outside the axis stays there."""
    v, e = access.stored(scope.indexed(op))[axis]
    (found, tests), place = access.accessed(scope.part.of(op)), scope.places.get(tensor.name)
    if isinstance(e, OfTile) and place is not None and v.axis == 0:
        return f"{scope.tiles[e.var].begin} - {place.first}"
    with scope.keeping_names():
        if isinstance(e, At):
            at = access.named(scope, e)
            if not e.expr.positional and any(at in F.parts(t) for t in tests):
                most = scope.text(v.extent(scope.step.axis))
                scope.known[at] = Sym(access.from_data(e.expr, f"tl.maximum({scope.expression(e.expr)}, -1)", most))
        return scope.text(found.box[axis][0])


def _ends_with_tensor(scope: Scope, tile: TileNames) -> bool:
    grid = tile.grid
    if grid.ends == "axis" or tile.whole:
        return True
    length = int(F.evaluate(grid.part, scope.lowered.env(0)))
    return grid.ends == "part" and grid.tile is not None and length % grid.tile == 0


def _of_equal_parts(scope: Scope, tile: TileNames) -> bool:
    """Whether the tile ends where its part does, and all parts are of one length."""
    size, part = (int(F.evaluate(f, scope.lowered.env(0))) for f in (tile.grid.size, tile.grid.part))
    cut = tile.grid.ends == "part" and tile.grid.span[0] == F.of(0)
    return cut and tile.grid.tile is not None and size == part * scope.lowered.topology.size(tile.grid.over)


def _row_major(scope: Scope, tensor: TensorDecl, last: int) -> bool | None:
    """False: the last axis, `last`, has unit stride; True: the one before it has; None: neither."""
    if scope.plan.buffer(tensor.name).space != "argument":
        return False
    unit = scope.plan.layout(tensor.name).unit_axis
    return {last: False, last - 1: True}.get(unit) if unit is not None else None


def could_be_tma(scope: Scope, tensor: TensorDecl, param: str, *, always: bool = False) -> Arg | None:
    """The descriptor through which a load of a parameter will go, if it is bound to the tensor and any does; `always`: in every
    loop that it is emitted in.

    Tiles of loops that are yet to be emitted are not named: their partitions are all that counts.
    """
    for op in (o for o in walk(scope.body) if isinstance(o, Load) and o.param == param):
        unnamed = {e.var for _, e in scope.indexed(op) if isinstance(e, OfTile)} - scope.tiles.keys()
        tiles = {**scope.tiles, **{var: _of_loop(scope, var, always) for var in unnamed}}
        trial = replace(scope, tiles=tiles, args={})
        found = tma(trial, tensor, op)
        if found is not None:
            return trial.args[found.name]
    return None


def _of_loop(scope: Scope, var: str, always: bool) -> TileNames:
    """A tile of a loop that is yet to be emitted. Where its masks are left out of whole tiles, other tiles have theirs."""
    op = next(op for op in walk(scope.body) if isinstance(op, Tiles) and op.var == var)
    grid = scope.step.loop(op)
    masked = any(isinstance(o, Bounds) and o.what == "mask" and o.var == var for o in walk(op.body))
    whole, extent = masked and not always, grid.tile or padded(scope, grid.step)
    return TileNames("", "", grid.free if masked or op.limited else grid, extent, whole=whole)
