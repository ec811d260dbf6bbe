"""An emitted function: where the tile of a turn lies, definitions at its head, and the kernel arguments that it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.codegen import access
from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import Row, words
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.kernel import Arg
from tilelink.ir.plan import order_of
from tilelink.ir.schedule import across, as_written
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along

ORDER = (
    ("tensor", "ll", "stage"),
    ("descriptor",),
    ("flags", "epoch_flags", "expected", "doorbells", "counts", "made", "work_indices"),
    ("state", "watch"),
    ("context",),
)
"""Kinds of arguments, as they follow one another; others come behind them."""


@dataclass(frozen=True, slots=True)
class Function:
    """An emitted function: `leading` parameters are passed by its caller, `args` are the kernel's. `stores_async`: some of
    what it stores goes through descriptors. `gives`: what its caller calls the value that it returns, if it does."""

    name: str
    leading: tuple[str, ...]
    args: tuple[Arg, ...]
    lines: tuple[Row, ...]
    stores_async: bool = False
    gives: str | None = None

    def call(self, *mine: str, **others: str) -> str:
        """A line that calls it: `mine` is passed for the first of what it takes, `others` by name; the caller's own the rest."""
        rest = (name.partition(":")[0] for name in self.leading[len(mine) :])
        given = [*mine, *(others.get(name, name) for name in rest), *(a.name for a in self.args)]
        call = f"{self.name}({', '.join(given)})"
        return call if self.gives is None else f"{self.gives} = {call}"


def close(scope: Scope, name: str, leading: tuple[str, ...]) -> Function:
    """The function with its definitions at the head and every kernel argument it needs."""
    with scope.apart() as head:
        _segments(scope)
        for tile in scope.wholes.values():
            access.lane_lines(scope, tile)
        for const, value in scope.step.step.constants:
            if not isinstance(value, float):
                head.add(f"{scope.local(const)}: tl.constexpr = {value!r}")
    rows = scope.needed([*scope.definitions(), *head.rows, *scope.lines.rows])
    return Function(name, leading, arguments(scope, rows), rows, scope.stored_async)


def arguments(scope: Scope, rows: tuple[Row, ...]) -> tuple[Arg, ...]:
    named = words(rows)
    # Sizes that a fused function needs are among the host's own.
    args = [a for a in scope.args.values() if a.name in named and a.kind not in ("size", "constant")]
    args.sort(key=lambda a: next((k for k, kinds in enumerate(ORDER) if a.kind in kinds), len(ORDER)))
    sizes = [Arg(m, "size", formula=Sym(n)) for n, m in scope.naming.sizes.items() if m in named]
    axes, size = dict.fromkeys((RANK_AXIS, *scope.plan.wiring.axes)), scope.lowered.topology.size
    rank = [Arg(s.name, "size", "rank", formula=s) for s in map(rank_along, axes) if s.name in named]
    ranks = [Arg(s.name, "constant", value=size(a)) for a in axes if (s := ranks_along(a)).name in named]
    return (*args, *sizes, *rank, *ranks)


# ---------------------------------------------------------------------------------------------------- the tile of a turn
def open_tiles(scope: Scope) -> dict[str, TileNames]:
    """Declare the domain's tiles, by variable; their lines come later. Those of a copy program are called as its axes are."""
    grids = [g for g in scope.step.grid if g.var is not None]
    for (var, begin, end), g in zip(scope.part.tiles, grids, strict=True):
        fixed = _index(begin) is None
        label = access.label(g.dim) if scope.step.copies else var
        if g.unit:
            name = scope.names.fresh(f"{label}_begin") if scope.step.copies else scope.local(var)
            scope.tiles[var] = TileNames(scope.text(begin) if fixed else name, "", g, 1)
            if fixed:
                scope.replaced[var] = scope.text(begin)
            else:
                scope.known[begin] = Sym(name)
            continue
        names = access.tile_names(scope, var, g)
        if fixed:
            names.begin, names.end = scope.text(begin), scope.text(end)
        if g.table is not None:
            names.segment = scope.names.fresh(f"{label}_segment")
    return dict(scope.tiles)


def tile_lines(scope: Scope, tiles: dict[str, TileNames]) -> None:
    """The turn's tile: its indices `i0 = …`, and begin, end, lanes and masks along each axis of the domain."""
    lines, step, scope = scope.lines, scope.step, replace(scope, tiles=tiles)
    if step.order:
        lines.say(f"the tile of this turn, in order {as_written(step.order_said)}")
    for name, value in step.order:
        if name == "sorted_t":
            scope.arg(Arg(scope.naming.given[order_of(step.path)], "order", step.path))
        scope.offer(scope.text(Sym(name)), scope.text(value))
    for var, begin, end in scope.part.tiles:
        names, index = tiles[var], _index(begin)
        if names.grid.unit:
            continue
        if names.grid.table is not None and index is not None:
            _tile_of_segment(scope, index, names)
        elif index is not None:
            lines.add(f"{names.begin} = {scope.text(begin)}")
            scope.offer(names.end, scope.text(end))
        access.lane_lines(scope, names)
        scope.offer(scope.local(var), names.begin)  # an axis that is walked singly: a tile is no number


def _index(begin: F.Formula) -> str | None:
    """The index of a tile, by where it begins; None: it is always there."""
    return next((n for n in sorted(F.symbols(begin)) if n[0] == "i" and n[1:].isdigit()), None)


# --------------------------------------------------------------------- tiles of axes that an offsets table splits at run time
def _segments(scope: Scope) -> None:
    """How many tiles each segment of a run-time split has."""
    lines = scope.lines
    for g in (g for g in scope.step.grid if g.table is not None):
        assert g.table is not None
        table = scope.tensor(g.table)
        segments = scope.plan.wiring.tensor(g.table).axes[0].size - 1
        lines.add(f"{table}_lane = tl.arange(0, {access.padded(scope, segments)})")
        inside = f"mask={table}_lane < {scope.text(segments)}, other=0"
        begins, ends = (f"tl.load({table} + {table}_lane{more}, {inside})" for more in ("", " + 1"))
        pieces = _narrow(scope, g.table, f"tl.cdiv({ends} - {begins}, {scope.text(g.step)})")
        if scope.checks.debug:
            most = scope.text(g.size)
            report = scope.report("holds", f"offsets `{g.table}`, from 0, sorted, up to {most}", scope.tile_loc)
            first = f"(({table}_lane != 0) | ({begins} == 0))"
            fine = f"{first} & ({ends} >= {begins}) & ({ends} <= {most})"
            lines.add(f"{table}_fine = tl.min(({fine}).to(tl.int32), 0)")
            lines.add(f"shmem.check({table}_fine, {report}, -1)")
            # No tile lies in another, nor where there is no room for it.
            pieces = f"tl.where({table}_fine == 1, {pieces}, 0)"
        lines.add(f"{table}_pieces = {pieces}")
        if not across(scope.step.order_said):
            lines.add(f"{table}_last = tl.cumsum({table}_pieces, 0)")
        lines.add(f"{table}_tiles = tl.sum({table}_pieces, 0)")


def _tile_of_segment(scope: Scope, index: str, names: TileNames) -> None:
    g, lines = names.grid, scope.lines
    assert g.table is not None
    table, tile = scope.tensor(g.table), scope.text(g.step, F.DIVISOR)
    name, segment = g.dim if g.var is None or scope.step.copies else g.var, names.segment
    if each := across(scope.step.order_said):  # tiles of other segments come between a segment's
        piece = scope.names.fresh(f"{name}_piece")
        lines.add(f"{segment}, {piece} = blocks.across({table}_pieces, {index}, {each})")
    else:
        before = scope.names.fresh(f"{name}_before")
        lines.add(f"{segment} = tl.sum(tl.where({table}_last <= {index}, 1, 0), 0)")
        lines.add(f"{before} = tl.sum(tl.where({table}_lane < {segment}, {table}_pieces, 0), 0)")
        piece = f"({index} - {before})"
    begin, end = (_narrow(scope, g.table, f"tl.load({table} + {at})") for at in (segment, f"{segment} + 1"))
    lines.add(f"{names.begin} = {begin} + {piece} * {tile}")
    lines.add(f"{names.end} = tl.minimum({names.begin} + {tile}, {end})")


def _narrow(scope: Scope, table: str, text: str) -> str:
    """A position out of a table, as 32 bits like every other."""
    return text if scope.plan.wiring.tensor(table).dtype == "i32" else f"tl.cast({text}, tl.int32)"
