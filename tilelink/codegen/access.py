"""Where an index lies: its lanes, its holder, addresses and masks of pointer accesses, coordinates of TMA accesses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.codegen.scope import Scope, TileNames, in_sixteens
from tilelink.codegen.text import Lines, atom
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.low_latency import DATA
from tilelink.ir.partition import GridAxis, extent, part, tile_holder
from tilelink.ir.program import At, Bounds, Expr, Gather, Index, IndexEntry, OfTile, Whole, walk
from tilelink.ir.program import Load as LoadOp
from tilelink.ir.program import Store as StoreOp
from tilelink.ir.ring import RANKS
from tilelink.ir.shape import ITEM_BYTES
from tilelink.ir.wiring import TensorDecl, ViewAxis, entries, indexed

PLACES = 1024
"""Places of a walked axis up to which they are gone through to see whether a position stays in its axis."""


@dataclass(frozen=True, slots=True)
class Term:
    """One stored axis of an access: its position, whether that is a vector (and of which block axis), and its mask."""

    position: str
    block: int | None
    mask: str | None
    stride: Formula


def expression(scope: Scope, expr: Expr) -> str:
    """The text of a user's expression, with the results of bounds put in."""
    return scope.spelled(expr.text)


def tile_names(scope: Scope, var: str, grid: GridAxis) -> TileNames:
    """Declare a tile of the program's variable `var`."""
    length = grid.tile if grid.tile is not None else padded(scope, grid.step)
    fresh = scope.names.fresh
    names = TileNames(fresh(f"{var}_begin"), fresh(f"{var}_end"), fresh(f"{var}_at"), fresh(f"{var}_in"), grid, length)
    names.pairs, names.pairs_inside = fresh(f"{var}_pair"), fresh(f"{var}_pair_in")
    scope.tiles[var] = names
    return names


def whole(scope: Scope, dim: str, size: Formula) -> TileNames:
    """The lanes of a whole axis: a block padded to a power of two."""
    if dim not in scope.wholes:
        label = _label(dim)
        length = padded(scope, size)
        scope.wholes[dim] = TileNames(
            "0",
            scope.text(size),
            scope.names.fresh(f"{label}_at"),
            scope.names.fresh(f"{label}_in"),
            GridAxis(dim, "plain", size, None),
            length,
            whole=_fills(scope, size, length),
            pairs=scope.names.fresh(f"{label}_pair"),
            pairs_inside=scope.names.fresh(f"{label}_pair_in"),
        )
    return scope.wholes[dim]


def _label(dim: str) -> str:
    """An axis's name as part of others; `e+1` is a size too."""
    return re.sub(r"\W+", "_", dim if not dim.startswith("_") else "axis" + dim)


def padded(scope: Scope, size: Formula) -> int:
    """The power of two that holds `size` on every rank."""
    return power_of_two(max(int(F.evaluate(size, scope.plan.env(r))) for r in (0, scope.plan.topology.ranks - 1)))


def power_of_two(n: int) -> int:
    """The lanes of a block that has room for `n` values."""
    return 1 << (n - 1).bit_length()


def lanes(tile: TileNames) -> str:
    tile.used.add("at")
    return tile.at


def inside(tile: TileNames) -> str:
    tile.used |= {"at", "inside"}
    return tile.inside


def mask_of(tile: TileNames) -> str | None:
    """Its mask, where some of its lanes may be no positions."""
    return None if tile.whole else inside(tile)


def _paired(scope: Scope, tile: TileNames, pairs: Formula, block: int | None) -> Term:
    """A lane for two positions each, of words that hold two elements. Such a tile begins at a multiple of its length; `pairs`:
    how many there are on the axis."""
    tile.used.add("pairs")
    tile.pairs_end = scope.text(pairs)
    return Term(tile.pairs, block, tile.pairs_inside, F.of(1))


def _fills(scope: Scope, size: Formula, length: int) -> bool:
    """Whether a block of that length has no lanes to spare on any rank."""
    return all(int(F.evaluate(size, scope.plan.env(r))) == length for r in (0, scope.plan.topology.ranks - 1))


def lane_lines(lines: Lines, tile: TileNames) -> None:
    """The lanes and the mask of a tile, where something used them."""
    if "at" in tile.used:
        start = f"{tile.begin} + " if tile.begin != "0" else ""
        lines.add(f"{tile.at} = {start}tl.arange(0, {tile.extent})")
    if "inside" in tile.used:
        lines.add(f"{tile.inside} = {tile.at} < {tile.end}")
    if "pairs" in tile.used:
        half = tile.extent // 2
        start = f"tl.multiple_of({tile.begin} // 2, {half}) + " if tile.begin != "0" else ""
        lines.add(f"{tile.pairs} = {start}tl.arange(0, {half})")
        lines.add(f"{tile.pairs_inside} = {tile.pairs} < {tile.pairs_end}")


def terms(
    scope: Scope, tensor: TensorDecl, view: tuple[ViewAxis, ...], index: tuple[IndexEntry, ...], holder: F.Like
) -> tuple[list[Term], int]:
    """One term per stored axis of the tensor's instance on rank `holder`, and the number of block axes.

    Of a tensor that comes by the low-latency protocol the last axis is one of words.
    """
    extents = scope.plan.buffer(tensor.name).extents
    each = elements_of_word(scope, tensor)
    if each > 1:
        extents = (*extents[:-1], pairs_of(scope, tensor, extents[-1]))
    blocks = 0
    gathered: int | None = None
    placed: dict[int, Term] = {}
    for v, e in zip(view, index, strict=True):
        block: int | None = None
        if isinstance(e, (OfTile, Whole)) and not (isinstance(e, Whole) and v.axis is None):
            if not (v.axis is not None and tensor.axes[v.axis].own_slice):
                block, blocks = blocks, blocks + 1
        elif isinstance(e, Gather):
            if gathered is None:
                gathered, blocks = blocks, blocks + 1
            block = gathered
        if v.axis is None or tensor.axes[v.axis].own_slice:
            continue
        stored = sum(1 for a in tensor.axes[: v.axis] if not a.own_slice)
        if each > 1 and stored == len(extents) - 1:
            assert isinstance(e, (OfTile, Whole))
            placed[stored] = _paired(scope, _tile(scope, tensor, v, e), extents[-1], block)
            continue
        position, mask = _position(scope, tensor, v, e, holder)
        place = scope.places.get(tensor.name)
        if place is not None and place.axis == v.axis:
            position = f"({position} - {place.first})"
        first = first_of(tensor, v, holder)
        if first is not None:
            position = f"({position} - {scope.text(first, F.FACTOR)})"
        placed[stored] = Term(position, block, mask, scope.stride(tensor.name, stored, extents))
    return [placed[k] for k in sorted(placed)], blocks


def inside_of(scope: Scope, tensor: TensorDecl, op: LoadOp, index: tuple[IndexEntry, ...]) -> str | None:
    """Which lanes of a tile are elements, as a mask of its block; None: all of them."""
    view = scope.step.step.binding(op.param).view
    blocks = [
        _tile(scope, tensor, v, e)
        for v, e in zip(view, index, strict=True)
        if isinstance(e, (OfTile, Whole)) and v.axis is not None and not tensor.axes[v.axis].own_slice
    ]
    masks = [(mask_of(tile), _expand(k, len(blocks))) for k, tile in enumerate(blocks)]
    return " & ".join(f"{mask}{side}" for mask, side in masks if mask is not None) or None


def pairs_of(scope: Scope, tensor: TensorDecl, size: Formula) -> Formula:
    """Words of two elements on an axis of that size, under a name."""
    pairs = size // 2
    if pairs not in scope.formulas.names:
        scope.formulas.define(pairs, scope.names.fresh(f"{_label(tensor.axes[-1].name)}_pairs"))
    if in_sixteens(scope.plan, pairs):
        scope.formulas.multiples.add(pairs)
    return pairs


def elements_of_word(scope: Scope, tensor: TensorDecl) -> int:
    """Of a tensor that comes by the low-latency protocol; of others 1."""
    return DATA // ITEM_BYTES[tensor.dtype] if tensor.name in scope.plan.low_latency else 1


def _tile(scope: Scope, tensor: TensorDecl, v: ViewAxis, e: OfTile | Whole) -> TileNames:
    return scope.tiles[e.var] if isinstance(e, OfTile) else whole(scope, v.dim, extent(tensor, v, scope.step.axis))


def block_shape(scope: Scope, op: LoadOp | StoreOp) -> tuple[int, ...]:
    """Elements per axis of the block that is loaded or stored."""
    tensor, view = scope.declared(op.param), scope.step.step.binding(op.param).view
    found = zip(view, index_of(scope, op), strict=True)
    kept = [(v, e) for v, e in found if v.axis is not None and not tensor.axes[v.axis].own_slice]
    return tuple(_tile(scope, tensor, v, e).extent for v, e in kept if isinstance(e, (OfTile, Whole)))


def _position(scope: Scope, tensor: TensorDecl, v: ViewAxis, e: IndexEntry, holder: F.Like) -> tuple[str, str | None]:
    if isinstance(e, (OfTile, Whole)):
        tile = _tile(scope, tensor, v, e)
        return lanes(tile), mask_of(tile)
    assert v.axis is not None
    size = extent(tensor, v, scope.step.axis)
    text = expression(scope, e.expr)
    if text.isdigit():
        return text, f"{text} < {scope.text(size)}"
    if isinstance(e, At) and in_range(scope, e):
        return text, None
    if isinstance(e, At) and _never_leaves(scope, e, size):
        return atom(text), None
    at = text if text.isidentifier() else scope.named(f"{tensor.name}_index", text)
    # What is made of positions alone may well lie past an edge: rows before the first, a tile's last lanes.
    if scope.watch.checks.debug and not e.expr.positional:
        report = scope.report("below", f"the index `{e.expr.text}` of `{tensor.name}`", scope.loc)
        scope.lines.add(f"shmem.check_below({at}, {scope.text(size)}, {report}, t)", scope.loc)
    return at, there(scope, at, tensor, v, holder)


def there(scope: Scope, at: str, tensor: TensorDecl, v: ViewAxis, holder: F.Like | None) -> str:
    """Which of the positions `at` the instance of rank `holder` has on an axis; None: those of all ranks together."""
    first, end = _reachable(tensor, v, extent(tensor, v, scope.step.axis), holder)
    return f"({at} >= {scope.text(first, F.SUMMAND)}) & ({at} < {scope.text(end, F.SUMMAND)})"


def _reachable(tensor: TensorDecl, v: ViewAxis, size: Formula, holder: F.Like | None) -> tuple[Formula, Formula]:
    """These positions as the program counts: `[first, end)`."""
    first = None if holder is None else first_of(tensor, v, holder)
    if first is None:
        return F.of(0), size
    assert v.axis is not None
    return first, F.minimum(first + part(size, tensor.axes[v.axis].over), size)


def first_of(tensor: TensorDecl, v: ViewAxis, holder: F.Like) -> Formula | None:
    """The program's position on an axis with which the instance of rank `holder` begins; None: with 0."""
    assert v.axis is not None
    of = tensor.axes[v.axis]
    return F.of(holder) * part(of.size, of.over) if of.over is not None and not v.local else None


def in_range(scope: Scope, e: At) -> bool:
    """Whether the position is in range by construction: a rank, or the variable of a walked axis."""
    return e.ring is not None or e.expr.text in scope.tiles or e.expr.text in scope.inside


def _never_leaves(scope: Scope, e: At, size: Formula) -> bool:
    """Whether the position lies in the axis for every place along the walked axis of the domain that it is made of."""
    step, sizes = scope.step, frozenset(scope.plan.wiring.sizes)
    if e.expr.formula is None:
        return False
    names = F.symbols(e.expr.formula)
    walked = [g for g in step.grid if g.kind == "unit" and g.var in names]
    if len(walked) != 1:
        return False
    known: dict[str, F.Like] = {**step.step.compiled}
    for op in walk(step.step.program.body):
        if isinstance(op, Bounds) and op.what == "size" and op.axis is not None:
            v = step.step.binding(op.param).view[op.axis]
            known[op.name] = extent(scope.declared(op.param), v, step.axis)
    place = Sym("a place")  # no size is called so
    known[walked[0].var or ""] = place
    found, env = F.substitute(e.expr.formula, known), scope.plan.env(0)
    if not names <= known.keys() or not F.symbols(found) | F.symbols(size) | F.symbols(walked[0].size) <= sizes | {
        "a place"
    }:
        return False
    places, end = int(F.evaluate(walked[0].size, env)), int(F.evaluate(size, env))
    each = ({**env, "a place": at} for at in range(places))
    return places <= PLACES and all(_as_in_triton(found, at) and 0 <= F.evaluate(found, at) < end for at in each)


def _as_in_triton(f: Formula, env: Mapping[str, F.Number]) -> bool:
    """Whether it divides natural numbers by positive ones only: Triton rounds others towards zero."""
    if not isinstance(f, F.Binary):
        return True
    if not (_as_in_triton(f.left, env) and _as_in_triton(f.right, env)):
        return False
    return f.op not in ("//", "%", "cdiv") or (F.evaluate(f.left, env) >= 0 and F.evaluate(f.right, env) > 0)


def from_data(expr: Expr, text: str, most: str | None = None) -> str:
    """A position of the program's, `text`, as 32 bits: tables may have 64. `most`: more than that means no other."""
    if expr.positional:
        return text
    return f"tl.cast({text if most is None else f'tl.minimum({text}, {most})'}, tl.int32)"


def position(scope: Scope, entry: At) -> Formula:
    """A scalar index as a formula: of the program's names, which are the emitted ones."""
    if entry.expr.formula is not None:
        known = {RANKS.name: scope.ranks, **scope.renamed, **scope.replaced}
        return F.substitute(entry.expr.formula, {n: Sym(known[n]) for n in F.symbols(entry.expr.formula) if n in known})
    return Sym(expression(scope, entry.expr))


def holder_of(scope: Scope, param: str, index: Index | None) -> Formula | None:
    """The one rank that holds the index in the parameter's tensor; None: every rank does."""
    begins = (None if v.axis is None else _begin(scope, e) for v, e in indexed(scope.step.step, param, index))
    return tile_holder(scope.declared(param), scope.step.step.binding(param).view, begins)


def _begin(scope: Scope, e: IndexEntry) -> Formula | None:
    if isinstance(e, OfTile):
        return Sym(scope.tiles[e.var].begin)
    return position(scope, e) if isinstance(e, At) else None


def _expand(block: int | None, blocks: int) -> str:
    if block is None or blocks <= 1:
        return ""
    return "[" + ", ".join(":" if k == block else "None" for k in range(blocks)) + "]"


def address(scope: Scope, pointer: str, found: list[Term], blocks: int) -> tuple[str, str | None]:
    """(pointer expression, mask expression or None). Products are 64 bits wide: offsets may pass 2**31."""
    parts = [pointer]
    masks: list[str] = []
    for term in found:
        side = _expand(term.block, blocks)
        if term.stride == F.of(1):
            parts.append(f"{term.position}{side}")
        else:
            parts.append(f"tl.cast({term.position}, tl.int64){side} * {scope.text(term.stride, F.FACTOR)}")
        if term.mask is not None:
            masks.append(f"{_bracketed(term.mask)}{side}" if side else term.mask)
    if len(masks) > 1:
        masks = [_bracketed(m) if "&" in m or "<" in m else m for m in masks]
    return " + ".join(parts), " & ".join(masks) or None


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"[\w\[\]:, ]+", text) else f"({text})"


def index_of(scope: Scope, op: LoadOp | StoreOp) -> tuple[IndexEntry, ...]:
    return entries(scope.step.step, op.param, op.index)
