"""Where an index lies: its lanes, its holder, addresses and masks of pointer accesses, coordinates of TMA accesses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import atom
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.lowered import For, If, Op, Read, Write
from tilelink.ir.partition import GridAxis, extent, held
from tilelink.ir.plan import LL_DATA
from tilelink.ir.program import At, Expr, Gather, IndexEntry, Load, OfTile, Store, Whole
from tilelink.ir.shape import ITEM_BYTES
from tilelink.ir.wiring import TensorDecl, ViewAxis

Entries: TypeAlias = "Sequence[tuple[ViewAxis, IndexEntry]]"


@dataclass(frozen=True, slots=True)
class Term:
    """One stored axis of an access: its position, whether that is a vector (and of which block axis), and its mask."""

    position: str
    block: int | None
    mask: str | None
    stride: Formula


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


@dataclass(frozen=True, slots=True)
class Accessed:
    """What a load or store touches, and where its positions have to be tested."""

    op: Read | Write
    tests: tuple[Formula, ...]

    @staticmethod
    def of(body: tuple[Op, ...], tests: tuple[Formula, ...] = ()) -> Accessed:
        op = body[-1]
        if isinstance(op, If):
            return Accessed.of(op.body, F.conjuncts(op.test or F.of(1)))
        if isinstance(op, For):
            return Accessed.of(op.body)
        assert isinstance(op, Read | Write)
        return Accessed(op, tests)

    def first(self, tensor: TensorDecl, v: ViewAxis) -> Formula:
        """Where it begins along an axis of the memory."""
        assert v.axis is not None
        return self.op.box[stored_axis(tensor, v.axis)][0]


def address_of(scope: Scope, pointer: str, op: Load | Store) -> tuple[str, str | None]:
    """Of what a statement loads or stores, in the memory at a pointer (`address`)."""
    return address(scope, pointer, scope.declared(op.param), scope.indexed(op), Accessed.of(scope.part.of(op)))


def address(
    scope: Scope, pointer: str, tensor: TensorDecl, index: Entries, found: Accessed
) -> tuple[str, str | None]:  # fmt: skip
    """(pointer expression, mask expression or None). Products are 64 bits wide: offsets may pass 2**31."""
    with scope.keeping_names():
        terms, blocks = _terms(scope, tensor, index, found)
        parts, masks = [pointer], list[str]()
        for term in terms:
            side = _expand(term.block, blocks)
            if term.stride == F.of(1):
                parts.append(f"{term.position}{side}")
            else:
                parts.append(f"tl.cast({term.position}, tl.int64){side} * {scope.text(term.stride, F.FACTOR)}")
            if term.mask is not None:
                masks.append(f"{_bracketed(term.mask)}{side}" if side else term.mask)
    if F.of(0) in found.tests:
        masks = ["False"]  # a position that no such axis has
    if len(masks) > 1:
        masks = [_bracketed(m) if "&" in m or "<" in m else m for m in masks]
    return " + ".join(parts), " & ".join(masks) or None


def _terms(scope: Scope, tensor: TensorDecl, index: Entries, found: Accessed) -> tuple[list[Term], int]:
    """One term per stored axis of the memory that is touched, and the number of block axes."""
    memory = extents_and_elements(scope, tensor.name)
    blocks = 0
    gathered: int | None = None
    placed: dict[int, Term] = {}
    for v, e in index:
        block: int | None = None
        kept = v.axis is not None and not tensor.axes[v.axis].own_slice
        if isinstance(e, (OfTile, Whole)) and (kept or (isinstance(e, OfTile) and v.axis is None)):
            block, blocks = blocks, blocks + 1
        elif isinstance(e, Gather):
            if gathered is None:
                gathered, blocks = blocks, blocks + 1
            block = gathered
        if v.axis is not None and kept:
            axis = stored_axis(tensor, v.axis)
            placed[axis] = _term(scope, tensor, (v, e), axis, block, found, memory)
    return [placed[k] for k in sorted(placed)], blocks


def stored(tensor: TensorDecl, index: Entries) -> Entries:
    """The entries of axes that are in memory."""
    return [(v, e) for v, e in index if v.axis is not None and not tensor.axes[v.axis].own_slice]


def stored_axis(tensor: TensorDecl, axis: int) -> int:
    """Which of the axes in memory an axis of a tensor is."""
    return sum(1 for a in tensor.axes[:axis] if not a.own_slice)


def _term(
    scope: Scope, tensor: TensorDecl, entry: tuple[ViewAxis, IndexEntry], axis: int, block: int | None, found: Accessed,
    memory: tuple[tuple[Formula, ...], int],
) -> Term:  # fmt: skip
    (v, e), (extents, each), first = entry, memory, found.first(tensor, entry[0])
    if each > 1 and axis == len(extents) - 1:
        # A lane for each word. Such a tile begins at a multiple of its length.
        assert isinstance(e, (OfTile, Whole))
        tile = _tile(scope, tensor, v, e)
        tile.pairs_end = scope.text(extents[-1])
        return Term(tile.pairs, block, tile.pairs_inside, F.of(1))
    stride = scope.stride(tensor.name, axis, extents)
    if isinstance(e, (OfTile, Whole)):
        tile, place = _tile(scope, tensor, v, e), scope.places.get(tensor.name)
        at, mask = tile.at, mask_of(tile)
        if place is not None and v.axis == 0:
            return Term(f"({at} - {place.first})", block, mask, stride)
        begin = scope.here(first)
        moved = tile.begin in F.symbols(begin)
        where = F.substitute(begin, {tile.begin: Sym(at)}) if moved else begin + Sym(at)
        return Term(scope.text(where, F.FACTOR), block, mask, stride)
    at = named(scope, e)
    tests = [t for t in found.tests if at in F.parts(t)]
    if tests:
        _name_position(scope, tensor, v, e, at)
    mask = " & ".join(scope.text(t, F.DIVISOR * (len(tests) > 1)) for t in tests) or None
    return Term(scope.text(first, F.FACTOR), block, mask, stride)


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
    if scope.reports.checks.debug and not e.expr.positional:
        report = scope.report("below", f"the index `{e.expr.text}` of `{tensor.name}`", scope.loc)
        size = scope.text(extent(tensor, v, scope.step.axis))
        scope.lines.add(f"shmem.check_below({text}, {size}, {report}, t)", scope.loc)


def tiles_of(scope: Scope, op: Load | Store) -> list[TileNames]:
    """Those of the axes that the block has which is loaded or stored."""
    tensor = scope.declared(op.param)
    found = stored(tensor, scope.indexed(op))
    return [_tile(scope, tensor, v, e) for v, e in found if isinstance(e, (OfTile, Whole))]


def inside_of(scope: Scope, op: Load) -> str | None:
    """Which lanes of a tile are elements, as a mask of its block; None: all of them."""
    blocks = tiles_of(scope, op)
    masks = [(mask_of(tile), _expand(k, len(blocks))) for k, tile in enumerate(blocks)]
    return " & ".join(f"{mask}{side}" for mask, side in masks if mask is not None) or None


def extents_and_elements(scope: Scope, buffer: str) -> tuple[tuple[Formula, ...], int]:
    """The extents of a memory, and how many elements a position of its last axis has: of a tensor that comes by the LL protocol
    that is an axis of words, under a name."""
    extents = scope.lowered.buffer(buffer).extents
    if not scope.is_ll(buffer):
        return extents, 1
    tensor = scope.plan.wiring.tensor(buffer)
    each, pairs = LL_DATA // ITEM_BYTES[tensor.dtype], extents[-1] // 2
    if each == 1:
        return extents, 1
    scope.define(pairs, f"{label(tensor.axes[-1].name)}_pairs", row=True)
    return (*extents[:-1], pairs), each


def _tile(scope: Scope, tensor: TensorDecl, v: ViewAxis, e: OfTile | Whole) -> TileNames:
    return scope.tiles[e.var] if isinstance(e, OfTile) else whole(scope, v.dim, held(tensor, v, scope.step.axis))


def from_data(expr: Expr, text: str, most: str | None = None) -> str:
    """A position of the program's, `text`, as 32 bits: tables may have 64. `most`: more than that means no other."""
    if expr.positional:
        return text
    return f"tl.cast({text if most is None else f'tl.minimum({text}, {most})'}, tl.int32)"


def _expand(block: int | None, blocks: int) -> str:
    if block is None or blocks <= 1:
        return ""
    return "[" + ", ".join(":" if k == block else "None" for k in range(blocks)) + "]"


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"[\w\[\]:, ]+", text) else f"({text})"
