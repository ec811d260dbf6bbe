"""The tile of a turn: which it is in the step's order, and where it lies."""

from __future__ import annotations

from tilelink.codegen import access, segments
from tilelink.codegen.names import read_names
from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.plan import order_of


def open_tiles(scope: Scope) -> dict[str, TileNames]:
    """Declare the domain's tiles, by variable; their lines come later, when it is known which of them are used. Those of a copy
    program are called as its axes are."""
    grids = [g for g in scope.step.grid if g.var is not None or scope.part.copies]
    for (var, begin, end), g in zip(scope.part.tiles, grids, strict=True):
        fixed = _index(begin) is None
        label = access.label(g.dim) if scope.part.copies else var
        if g.unit:
            name = scope.names.fresh(f"{label}_begin") if scope.part.copies else scope.local(var)
            scope.tiles[var] = TileNames(scope.text(begin) if fixed else name, "", "", "", g, 1)
            if fixed:
                scope.replaced[var] = scope.text(begin)
            else:
                scope.known[begin] = Sym(name)
            continue
        names = scope.tiles[var] = access.tile_names(scope, label, g)
        if fixed:
            names.begin, names.end = scope.text(begin), scope.text(end)
        if g.table is not None:
            scope.segments[var] = scope.names.fresh(f"{label}_segment")
    return dict(scope.tiles)


def order_lines(scope: Scope) -> None:
    """`i0 = …`: the indices of the turn's tile, as far as they tell tiles apart."""
    step = scope.step
    if step.order:
        scope.lines.say(f"the tile of this turn, in order {' '.join(step.order_names)}")
    asked = {n for _, begin, _ in scope.part.tiles for n in F.symbols(begin)}
    asked |= {n for _, value in step.order for n in F.symbols(value)}
    for name, value in step.order:
        if name == "sorted_t":
            scope.arg(Arg(scope.naming.given[order_of(step.path)], "order", step.path))
        if name in asked:
            scope.lines.add(f"{scope.text(Sym(name))} = {scope.text(value)}")


def tile_lines(scope: Scope, tiles: dict[str, TileNames]) -> Lines:
    """Begin, end, lanes and masks of the domain's tiles, as far as the body uses them."""
    lines, read = Lines(), read_names(scope.step.step.program.body)
    kept, scope.tiles = scope.tiles, tiles
    for var, begin, end in scope.part.tiles:
        names, index = tiles[var], _index(begin)
        if names.grid.table is not None and index is not None:
            segments.tile(scope, lines, index, names, var)
        elif index is not None and not names.grid.unit:
            lines.add(f"{names.begin} = {scope.text(begin)}")
            if names.used & {"end", "inside"} or _end_used(scope, names):
                lines.add(f"{names.end} = {scope.text(end)}")
        access.lane_lines(lines, names)
        if var in read and not names.grid.unit:
            # A tile by its number, an axis that is walked singly by its position.
            at = next(a for a, g in enumerate(scope.step.grid) if g.var == var)
            unit = scope.step.step.binding(scope.step.domain).view[at].unit
            lines.add(f"{scope.local(var)} = {names.begin if unit or index is None else index}")
    scope.tiles = kept
    return lines


def _index(begin: F.Formula) -> str | None:
    """The index of a tile, by where it begins; None: it is always there."""
    return next((n for n in sorted(F.symbols(begin)) if n[0] == "i" and n[1:].isdigit()), None)


def _end_used(scope: Scope, names: TileNames) -> bool:
    return any(names.end in text for _, text, _ in scope.lines.rows) or names.end in scope.formulas.symbols
