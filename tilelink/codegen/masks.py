"""Masks of a loop's tiles, and which tiles need none: they go through a loop of their own, since a branch becomes selects."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.codegen import access
from tilelink.codegen.access import expression
from tilelink.codegen.names import bound_in
from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import atom
from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis
from tilelink.ir.program import Bounds, Expr, Notify, Tiles, walk


@dataclass(frozen=True, slots=True)
class Whole:
    """Where whole tiles of a loop begin (None: with the first tile) and stop: positions at which tiles begin, by name.

    `rest`: whether at most one tile is left, that in which the loop ends.
    """

    start: str | None
    stop: str
    rest: bool = False


def emit(scope: Scope, op: Bounds) -> None:
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
        found = [f"{access.inside(tile)}[None, :]"]
        for (limit, vector), sign in ((start, ">="), (stop, "<")):
            if limit is not None:
                side = f"{limit if limit.isidentifier() else f'({limit})'}[:, None]" if vector else limit
                found.append(f"({access.lanes(tile)}[None, :] {sign} {side})")
        text = " & ".join(found)
    scope.lines.add(f"{scope.local(op.name)} = {text}", op.loc)


def split(scope: Scope, op: Tiles, grid: GridAxis, low: str, high: str) -> Whole | None:
    """Where the whole tiles are of a loop from `low` to `high` that makes masks; None: one loop does for all tiles.

    Limits have names from here on, by which `emit` finds them. A limit that changes from tile to tile is no limit of the
    loop; and what notifies stays in the order of its tiles.
    """
    masks = [o for o in walk(op.body) if isinstance(o, Bounds) and o.what == "mask" and o.var == op.var]
    if not masks or any(isinstance(o, Notify) for o in walk(op.body)):
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


def whole_tile(names: TileNames) -> TileNames:
    """The same tile in the loop over whole ones."""
    return replace(names, inside="", whole=True, used=set())


def _limit(scope: Scope, op: Bounds, what: str) -> tuple[str | None, bool]:
    """The text of a limit, and whether it is a vector. A choice between a vector and a position is made one."""
    expr: Expr | None = getattr(op, what)
    if expr is None:
        return None, False
    known = scope.limits.get((op.name, what))
    if known is not None:
        return known, expr.vector
    text = expression(scope, expr)
    if not expr.vector:
        return atom(text), False
    return f"tl.zeros([1], tl.int32) + ({text})", True
