"""Where an index lies: its lanes, its holder, addresses and masks of pointer accesses, coordinates of TMA accesses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import atom
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import If, Op, Read, Write, walk
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import LL_DATA
from tilelink.ir.program import At, Expr, Gather, IndexEntry, Load, OfTile, Store, Whole
from tilelink.ir.shape import ITEM_BYTES
from tilelink.ir.wiring import TensorDecl, ViewAxis

Entries: TypeAlias = "Sequence[tuple[ViewAxis, IndexEntry]]"
Memory: TypeAlias = "tuple[tuple[Formula, ...], int]"
"""Its extents, and how many elements a position of its last axis has."""


def tile_names(scope: Scope, var: str, grid: GridAxis) -> TileNames:
    """Declare a tile of the program's variable `var`; those of a copy program are called as their axes are."""
    name = label(grid.dim) if scope.step.copies else var
    begin, end = scope.names.fresh(f"{name}_begin"), scope.names.fresh(f"{name}_end")
    length = grid.tile if grid.tile is not None else padded(scope, grid.step)
    names = scope.tiles[var] = _with_lanes(scope, name, TileNames(begin, end, grid, length))
    return names


def whole(scope: Scope, dim: str, size: Formula) -> TileNames:
    """The lanes of a whole axis, or of all that a rank has of it: a block padded to a power of two."""
    if (dim, size) not in scope.wholes:
        lengths = scope.on_ranks(size)
        length = power_of_two(max(lengths))
        tile = TileNames("0", scope.text(size), GridAxis(dim, "plain", size, None), length, whole=lengths == {length})
        scope.wholes[dim, size] = _with_lanes(scope, label(dim), tile)
    return scope.wholes[dim, size]


def _with_lanes(scope: Scope, name: str, tile: TileNames) -> TileNames:
    tile.at, tile.inside, tile.pairs, tile.pairs_inside = (
        scope.names.fresh(f"{name}_{what}") for what in ("at", "in", "pair", "pair_in")
    )
    return tile


def label(dim: str) -> str:
    """An axis's name as part of others; `e+1` is a size too."""
    return re.sub(r"\W+", "_", dim if not dim.startswith("_") else "axis" + dim)


def padded(scope: Scope, size: Formula) -> int:
    """The power of two that holds `size` on every rank."""
    return power_of_two(max(scope.on_ranks(size)))


def power_of_two(n: int) -> int:
    """The lanes of a block that has room for `n` values."""
    return 1 << (n - 1).bit_length()


def mask_of(tile: TileNames) -> str | None:
    """Its mask, where some of its lanes may be no positions."""
    return None if tile.whole else tile.inside


def lane_lines(scope: Scope, tile: TileNames) -> None:
    """The lanes and the masks of a tile."""
    at_zero, half = tile.begin == "0", tile.extent // 2
    scope.offer(tile.at, f"{'' if at_zero else f'{tile.begin} + '}tl.arange(0, {tile.extent})")
    scope.offer(tile.inside, f"{tile.at} < {tile.end}")
    start = "" if at_zero else f"tl.multiple_of({tile.begin} // 2, {half}) + "
    scope.offer(tile.pairs, f"{start}tl.arange(0, {half})")
    scope.offer(tile.pairs_inside, f"{tile.pairs} < {tile.pairs_end}")


def accessed(body: tuple[Op, ...]) -> tuple[Read | Write, list[Formula]]:
    """What a load or store touches, and where its positions have to be tested."""
    tests = [test for op in walk(body) if isinstance(op, If) for test in F.conjuncts(op.test or F.of(1))]
    return next(op for op in walk(body) if isinstance(op, Read | Write)), tests


def address_of(scope: Scope, pointer: str, op: Load | Store) -> tuple[str, str | None]:
    """Of what a statement loads or stores, in the memory at a pointer (`address`)."""
    return address(scope, pointer, scope.declared(op.param), scope.indexed(op), scope.part.of(op))


def address(
    scope: Scope, pointer: str, tensor: TensorDecl, index: Entries, body: tuple[Op, ...]
) -> tuple[str, str | None]:
    """(pointer expression, mask expression or None). Products are 64 bits wide: offsets may pass 2**31."""
    found, (op, tests), block = stored(index), accessed(body), _block(index)
    parts, masks = [pointer], list[str]()
    with scope.keeping_names():
        extents, each = extents_and_elements(scope, tensor.name)
        words = len(found) - 1 if each > 1 else None  # the axis that has a lane for each of them
        strides = [scope.stride(tensor.name, axis, extents) for axis in range(len(extents))]
        terms = [
            _words(scope, v, e, extents[k]) if k == words else _term(scope, tensor, v, e, op.box[k][0], tests)
            for k, (v, e) in enumerate(found)
        ]
        for (v, e), (position, mask), stride in zip(found, terms, strides, strict=True):
            key = Gather if isinstance(e, Gather) else v
            side = _expand(block.index(key), len(block)) if key in block else ""
            if stride == F.of(1):
                parts.append(f"{position}{side}")
            else:
                parts.append(f"tl.cast({position}, tl.int64){side} * {scope.text(stride, F.FACTOR)}")
            if mask is not None:
                masks.append(f"{_bracketed(mask)}{side}" if side else mask)
    if F.of(0) in tests:
        masks = ["False"]  # a position that no such axis has
    if len(masks) > 1:
        masks = [_bracketed(m) if "&" in m or "<" in m else m for m in masks]
    return " + ".join(parts), " & ".join(masks) or None


def _block(index: Entries) -> list[ViewAxis | type[Gather]]:
    """What the axes of a block are of: all vectors of positions make one."""
    kept = [v for v, e in stored(index) if not isinstance(e, At)]
    made = [
        (v, isinstance(e, Gather))
        for v, e in index
        if v in kept or isinstance(e, Gather) or (v.axis is None and isinstance(e, OfTile))
    ]
    return list(dict.fromkeys(Gather if gathered else v for v, gathered in made))


def stored(index: Entries) -> Entries:
    """The entries of the axes that are in memory: of all of them, in their order there."""
    return [(v, e) for v, e in index if v.stored]


def _words(scope: Scope, v: ViewAxis, e: IndexEntry, words: Formula) -> tuple[str, str | None]:
    """The last axis of a memory that has so many words. Such a tile begins at a multiple of its length."""
    assert isinstance(e, (OfTile, Whole))
    tile = _tile(scope, v, e)
    tile.pairs_end = scope.text(words)
    return tile.pairs, tile.pairs_inside


def _term(
    scope: Scope, tensor: TensorDecl, v: ViewAxis, e: IndexEntry, first: Formula, tests: list[Formula]
) -> tuple[str, str | None]:
    """Of an axis of memory: its position, or a vector of them, and its mask. `first`: where it begins."""
    if isinstance(e, (OfTile, Whole)):
        tile, place = _tile(scope, v, e), scope.places.get(tensor.name)
        if place is not None and v.axis == 0:
            return f"({tile.at} - {place.first})", mask_of(tile)
        begin = scope.here(first)
        moved = tile.begin in F.symbols(begin)
        where = F.substitute(begin, {tile.begin: Sym(tile.at)}) if moved else begin + Sym(tile.at)
        return scope.text(where, F.FACTOR), mask_of(tile)
    at = named(scope, e)
    tests = [t for t in tests if at in F.parts(t)]
    if tests:
        _name_position(scope, tensor, v, e, at)
    mask = " & ".join(scope.text(t, F.DIVISOR * (len(tests) > 1)) for t in tests) or None
    return scope.text(first, F.FACTOR), mask


def named(scope: Scope, e: At | Gather) -> Formula:
    """What the lowered plan calls a position; as text it is what the program says."""
    at = F.substitute(e.expr.named, {"RANKS": scope.step.ranks})
    if isinstance(at, F.Binary):
        scope.known.setdefault(at, Sym(atom(scope.expression(e.expr))))
    return at


def _name_position(scope: Scope, tensor: TensorDecl, v: ViewAxis, e: At | Gather, at: Formula) -> None:
    text = scope.text(at)
    if not (text.isidentifier() or text.isdigit()):
        text = scope.named(f"{tensor.name}_index", scope.expression(e.expr))
        scope.known[at] = Sym(text)
    # What is made of positions alone may well lie past an edge: rows before the first, a tile's last lanes.
    if scope.checks.debug and not e.expr.positional:
        report = scope.report("below", f"the index `{e.expr.text}` of `{tensor.name}`", scope.loc)
        size = scope.text(v.extent(scope.step.axis))
        scope.lines.add(f"shmem.check_below({text}, {size}, {report}, t)", scope.loc)


def tiles_of(scope: Scope, op: Load | Store) -> list[TileNames]:
    """Those of the axes that the block has which is loaded or stored."""
    return [_tile(scope, v, e) for v, e in stored(scope.indexed(op)) if isinstance(e, (OfTile, Whole))]


def inside_of(scope: Scope, op: Load) -> str | None:
    """Which lanes of a tile are elements, as a mask of its block; None: all of them."""
    blocks = tiles_of(scope, op)
    masks = [(mask_of(tile), _expand(k, len(blocks))) for k, tile in enumerate(blocks)]
    return " & ".join(f"{mask}{side}" for mask, side in masks if mask is not None) or None


def extents_and_elements(scope: Scope, buffer: str) -> Memory:
    """Of a tensor that comes by the LL protocol the last axis is one of words, under a name."""
    extents = scope.lowered.buffer(buffer).extents
    if not scope.is_ll(buffer):
        return extents, 1
    tensor = scope.plan.wiring.tensor(buffer)
    each, pairs = LL_DATA // ITEM_BYTES[tensor.dtype], extents[-1] // 2
    if each == 1:
        return extents, 1
    scope.define(pairs, f"{label(tensor.axes[-1].name)}_pairs", row=True)
    return (*extents[:-1], pairs), each


def _tile(scope: Scope, v: ViewAxis, e: OfTile | Whole) -> TileNames:
    return scope.tiles[e.var] if isinstance(e, OfTile) else whole(scope, v.dim, v.held(scope.step.axis))


def from_data(expr: Expr, text: str, most: str | None = None) -> str:
    """A position of the program's, `text`, as 32 bits: tables may have 64. `most`: more than that means no other."""
    if expr.positional:
        return text
    return f"tl.cast({text if most is None else f'tl.minimum({text}, {most})'}, tl.int32)"


def _expand(block: int, blocks: int) -> str:
    if blocks <= 1:
        return ""
    return "[" + ", ".join(":" if k == block else "None" for k in range(blocks)) + "]"


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"[\w\[\]:, ]+", text) else f"({text})"
