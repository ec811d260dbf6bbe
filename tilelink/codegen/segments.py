"""Tiles of axes that an offsets table splits at run time."""

from __future__ import annotations

from tilelink.codegen import access
from tilelink.codegen.scope import Scope, TileNames
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.schedule import across


def head(scope: Scope) -> Lines:
    """How many tiles each segment of a run-time split has."""
    lines = Lines()
    for g in scope.step.grid:
        if g.table is None:
            continue
        table = scope.tensor(g.table)
        segments = scope.plan.wiring.tensor(g.table).axes[0].size - 1
        lines.add(f"{table}_lane = tl.arange(0, {access.padded(scope, segments)})")
        ends = f"tl.load({table} + {table}_lane + 1, mask={table}_lane < {scope.text(segments)}, other=0)"
        begins = f"tl.load({table} + {table}_lane, mask={table}_lane < {scope.text(segments)}, other=0)"
        pieces = _narrow(scope, g.table, f"tl.cdiv({ends} - {begins}, {scope.text(g.step)})")
        if scope.reports.checks.debug:
            most = scope.text(g.size)
            said = f"offsets `{g.table}`, from 0, sorted, up to {most}"
            report = scope.report("holds", said, scope.tile_loc)
            first = f"(({table}_lane != 0) | ({begins} == 0))"
            fine = f"{first} & ({ends} >= {begins}) & ({ends} <= {most})"
            lines.add(f"{table}_fine = tl.min(({fine}).to(tl.int32), 0)")
            lines.add(f"shmem.check({table}_fine, {report}, -1)")
            # No tile lies in another, nor where there is no room for it.
            pieces = f"tl.where({table}_fine == 1, {pieces}, 0)"
        lines.add(f"{table}_pieces = {pieces}")
        if not _crosses(scope):
            lines.add(f"{table}_last = tl.cumsum({table}_pieces, 0)")
        lines.add(f"{table}_tiles = tl.sum({table}_pieces, 0)")
    return lines


def tile(scope: Scope, lines: Lines, index: str, names: TileNames, var: str) -> None:
    g = names.grid
    assert g.table is not None
    table, tile = scope.tensor(g.table), scope.text(g.step, F.DIVISOR)
    name, segment = g.var or g.dim, scope.segments[var]
    if _crosses(scope):
        piece = scope.names.fresh(f"{name}_piece")
        each = across(scope.step.order_names)
        lines.add(f"{segment}, {piece} = blocks.across({table}_pieces, {index}, {each})")
    else:
        before = scope.names.fresh(f"{name}_before")
        lines.add(f"{segment} = tl.sum(tl.where({table}_last <= {index}, 1, 0), 0)")
        lines.add(f"{before} = tl.sum(tl.where({table}_lane < {segment}, {table}_pieces, 0), 0)")
        piece = f"({index} - {before})"
    begin, end = (_narrow(scope, g.table, f"tl.load({table} + {at})") for at in (segment, f"{segment} + 1"))
    lines.add(f"{names.begin} = {begin} + {piece} * {tile}")
    lines.add(f"{names.end} = tl.minimum({names.begin} + {tile}, {end})")


def _crosses(scope: Scope) -> bool:
    """Whether tiles of other segments come between a segment's."""
    return across(scope.step.order_names) > 0


def _narrow(scope: Scope, table: str, text: str) -> str:
    """A position out of a table, as 32 bits like every other."""
    return text if scope.plan.wiring.tensor(table).dtype == "i32" else f"tl.cast({text}, tl.int32)"
