"""TMA accesses: which loads and stores go through a descriptor, and where in it."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.codegen import access
from tilelink.codegen.access import padded
from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import atom
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.partition import extent
from tilelink.ir.program import At, Bounds, IndexEntry, Load, OfTile, Store, Tiles, Whole, has_dot, walk
from tilelink.ir.shape import ITEM_BYTES
from tilelink.ir.wiring import TensorDecl, ViewAxis


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
    found, index = access.Accessed.of(scope.part.of(op)), scope.indexed(op)
    stored = access.stored(tensor, index)
    kinds = [type(e) for _, e in stored]
    if len(index) == len(kinds) and kinds == [At] * (len(kinds) - 2) + [OfTile, OfTile]:
        return _tile_of_two(scope, tensor, stored, found)
    if sorted(k.__name__ for k in kinds[:-1]) == ["At"] * (len(kinds) - 2) + ["OfTile"] and kinds[-1] is Whole:
        return _rows_at(scope, tensor, stored, found)
    return None


def _tile_of_two(scope: Scope, tensor: TensorDecl, stored: access.Entries, found: access.Accessed) -> Tma | None:
    tiles = [scope.tiles[e.var] for _, e in stored if isinstance(e, OfTile)]
    before = len(stored) - 2
    ragged = [a for a, t in enumerate(tiles, before) if not _ends_with_tensor(scope, t)]
    if ragged and (len(ragged) > 1 or not _of_equal_parts(scope, tiles[ragged[0] - before])):
        return None
    transposed = _row_major(scope, tensor, before + 1)
    if transposed is None:
        return None
    order = (*range(before), *((before + 1, before) if transposed else (before, before + 1)))
    two = tuple(tiles[a - before].extent for a in order[before:])
    block = (*(1 for _ in range(before)), *two)
    if not _fits(scope, tensor, order, block):
        return None
    coordinates = [_coordinate(scope, tensor, stored[a], found) for a in order]
    if not ragged:
        name = _descriptor(scope, tensor, order, block)
        return Tma(name, f"[{', '.join(coordinates)}]", transposed, two if before else None)
    at, grid = order.index(ragged[0]), tiles[ragged[0] - before].grid
    if at == len(order) - 1 or len(block) == 5:
        return None
    part, position = scope.text(grid.part), atom(coordinates[at])
    coordinates[at] = f"{position} % {part}"
    order, block = (ragged[0], *(a + 1 if a >= ragged[0] else a for a in order)), (1, *block)
    name = _descriptor(scope, tensor, order, block, (ragged[0], int(F.evaluate(grid.part, scope.lowered.env(0)))))
    return Tma(name, f"[{', '.join([f'{position} // {part}', *coordinates])}]", transposed, two, block)


def _rows_at(scope: Scope, tensor: TensorDecl, stored: access.Entries, found: access.Accessed) -> Tma | None:
    block: list[int] = []
    for v, e in stored:
        if isinstance(e, OfTile):
            if not scope.tiles[e.var].whole:
                return None
            block.append(scope.tiles[e.var].extent)
        elif isinstance(e, Whole):
            assert v.axis is not None
            if tensor.axes[v.axis].over is not None:
                return None
            block.append(padded(scope, tensor.axes[v.axis].size))
        else:
            block.append(1)
    coordinates = [_coordinate(scope, tensor, entry, found) for entry in stored]
    order = tuple(range(len(block)))
    if _row_major(scope, tensor, len(block) - 1) is not False or not _fits(scope, tensor, order, tuple(block)):
        return None
    shape = tuple(n for n, (_, e) in zip(block, stored, strict=True) if not isinstance(e, At))
    return Tma(_descriptor(scope, tensor, order, tuple(block)), f"[{', '.join(coordinates)}]", False, shape)


def _fits(scope: Scope, tensor: TensorDecl, order: tuple[int, ...], block: tuple[int, ...]) -> bool:
    """Whether a descriptor takes such a block: TMA's own limits, 16-byte rows on every rank, and nothing empty (a descriptor
    has no empty axis)."""
    buffer, item = scope.plan.buffer(tensor.name), ITEM_BYTES[tensor.dtype]
    if block[-1] * item < 16 or max(block) > 256 or len(block) > 5:
        return False
    for rank in (0, scope.lowered.topology.ranks - 1):
        extents = [int(F.evaluate(e, scope.lowered.env(rank))) for e in buffer.extents]
        if min(extents) < 1 or (extents[order[-1]] * item % 16 and buffer.space != "argument"):
            return False
    return buffer.space != "argument" or scope.plan.layout(tensor.name).aligned


def _descriptor(
    scope: Scope, tensor: TensorDecl, order: tuple[int, ...], block: tuple[int, ...], parts: tuple[int, int] | None = None
) -> str:  # fmt: skip
    name = f"{tensor.name}_{'x'.join(map(str, block))}"
    return scope.arg(Arg(name, "descriptor", tensor.name, block=block, axes=order, parts=parts))


def _coordinate(scope: Scope, tensor: TensorDecl, entry: tuple[ViewAxis, IndexEntry], found: access.Accessed) -> str:
    """Where the access begins along an axis of the memory. What lies outside the axis stays there."""
    (v, e), known = entry, dict(scope.known)
    place = scope.places.get(tensor.name)
    if isinstance(e, OfTile) and place is not None and place.axis == v.axis:
        return f"{scope.tiles[e.var].begin} - {place.first}"
    if isinstance(e, At):
        at = access.named(scope, e)
        if not e.expr.positional and any(at in F.parts(t) for t in found.tests):
            most = scope.text(extent(tensor, v, scope.step.axis))
            scope.known[at] = Sym(access.from_data(e.expr, f"tl.maximum({scope.expression(e.expr)}, -1)", most))
    text, scope.known = scope.text(found.first(tensor, v)), known
    return text


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
        index = scope.indexed(op)
        unnamed = [e.var for _, e in index if isinstance(e, OfTile) and e.var not in scope.tiles]
        for var in unnamed:
            scope.tiles[var] = _of_loop(scope, var, always)
        known = dict(scope.args)
        found = tma(scope, tensor, op)
        descriptor = scope.args[found.name] if found is not None else None
        scope.args = known
        for var in unnamed:
            del scope.tiles[var]
        if descriptor is not None:
            return descriptor
    return None


def _of_loop(scope: Scope, var: str, always: bool) -> TileNames:
    """A tile of a loop that is yet to be emitted. Where its masks are left out of whole tiles, other tiles have theirs."""
    op = next(op for op in walk(scope.body) if isinstance(op, Tiles) and op.var == var)
    grid = scope.step.loop(op)
    masked = any(isinstance(o, Bounds) and o.what == "mask" and o.var == var for o in walk(op.body))
    whole, extent = masked and not always, grid.tile or padded(scope, grid.step)
    return TileNames("", "", grid.free if masked or op.limited else grid, extent, whole=whole)
