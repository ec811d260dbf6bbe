"""Fused steps: functions that a host calls for the tile it has just made, which it hands over in registers."""

from __future__ import annotations

import re
from dataclasses import replace

from tilelink.codegen import copies
from tilelink.codegen.access import label, lane_lines, tile_names
from tilelink.codegen.body import emit_body
from tilelink.codegen.function import Function, close
from tilelink.codegen.loops import FIRST_SUBTILE
from tilelink.codegen.scope import File, Scope, TileNames, open_scope
from tilelink.codegen.text import Lines
from tilelink.ir import formula as F
from tilelink.ir.lowered import Write, walk
from tilelink.ir.plan import StepPlan


def call_fused(host: Scope, step: StepPlan) -> Function:
    """Call the fused step's function for the tile that the host has just made; emit that function."""
    passed = [end for _, *ends in bounds_passed(host, step) for end in ends]
    held = held_of(host, step)
    function = fused_function(host.file, step, held)
    # What the function's formulas name has to reach it through the host.
    for arg in function.args:
        host.args.setdefault(arg.name, arg)
    lines, depth = host.lines, host.lines.depth
    host.open_if(host.lowered.part(step.path).tests, step.step.program.loc)
    tiles = list(dict.fromkeys(held.values()))
    for k, (values, (begin, end)) in enumerate(_in_subtiles(host, step, tiles, passed[-2], passed[-1])):
        tile = [n for n in ("t", "epoch") if n in function.leading]
        first = [str(k == 0)] if any(n.startswith(FIRST_SUBTILE) for n in function.leading) else []
        given = [*values, *passed[:-2], begin, end, *tile, *first, *[a.name for a in function.args]]
        lines.add(f"{function.name}({', '.join(given)})", step.step.program.loc)
    lines.depth = depth
    return function


def bounds_passed(host: Scope, step: StepPlan) -> list[tuple[str, str, str]]:
    """Begin and end of the host's tile, as the fused step counts and by its variables, as far as they are the host's."""
    tiles = host.lowered.part(step.path).tiles
    return [(var, host.text(begin), host.text(end)) for var, begin, end in tiles if is_passed(begin)]


def is_passed(begin: F.Formula) -> bool:
    """Whether a tile is the host's; else it is this rank's coordinate."""
    return any("." in name for name in F.symbols(begin))


def _in_subtiles(
    host: Scope, step: StepPlan, tiles: list[str], begin: str, end: str
) -> list[tuple[list[str], tuple[str, str]]]:
    """The tiles that are handed over, and where their columns begin and end: once, or subtile by subtile."""
    if step.subtiles == 1:
        return [(tiles, (begin, end))]
    width = (step.grid[-1].tile or 0) // step.subtiles
    parts: list[list[str]] = []
    for tile in tiles:
        names = [tile]
        while len(names) < step.subtiles:
            halved: list[str] = []
            for name in names:
                left, right = host.names.fresh(f"{tile}_subtile"), host.names.fresh(f"{tile}_subtile")
                host.lines.add(f"{left}, {right} = blocks.halves({name})", step.step.program.loc)
                halved += [left, right]
            names = halved
        parts.append(names)
    return [
        (
            [names[k] for names in parts],
            (f"{begin} + {k * width}" if k else begin, f"tl.minimum({begin} + {(k + 1) * width}, {end})"),
        )
        for k in range(step.subtiles)
    ]


def held_of(host: Scope, step: StepPlan) -> dict[str, str]:
    """Tensors of a fused step -> the host's name of the tile that stands for them."""
    tensors = step.forwarded
    part = host.lowered.part(step.path)
    if part.copies:
        written = next(o.param for o in walk(part.body) if isinstance(o, Write))
        tensors = tuple(b.tensor for b in step.step.bindings if b.param != written)
    return {t: host.forwarded[host.plan.wiring.moved_from(t, host.forwarded)] for t in tensors}


def fused_function(file: File, step: StepPlan, held: dict[str, str]) -> Function:
    scope = open_scope(file, step, frozenset(held.values()))
    leading = list(dict.fromkeys(held.values()))
    outer, scope.lines = scope.lines, Lines()
    tiles: list[TileNames] = []
    if scope.part.copies:
        opened = [(str(a), tile_names(scope, label(g.dim), g)) for a, g in enumerate(step.grid) if not g.unit]
        scope.tiles = dict(opened)
        copies.emit_held(scope, leading[0], scope.tiles)
        tiles = [*scope.tiles.values()]
        leading += [n for t in tiles for n in (t.begin, t.end)]
    else:
        grids = {g.var or f"axis{a}": g for a, g in enumerate(step.grid)}
        for var, begin, _ in scope.part.tiles:
            if not is_passed(begin):
                scope.replaced[var] = scope.rank
                scope.tiles[var] = TileNames(scope.rank, "", "", "", grids[var], 1)
                continue
            g, last = grids[var], grids[var] is step.grid[-1]
            names = tile_names(
                scope, var, replace(g, tile=(g.tile or 0) // step.subtiles) if last and step.subtiles > 1 else g
            )
            tiles.append(names)
            leading += [names.begin, names.end]
        scope.forwarded |= held
        emit_body(scope, step.step.program.body)
    inner, scope.lines = scope.lines, outer
    if file.reports.sites and any(re.search(r"watch_at, \d+, t\b", text) for _, text, _ in inner.rows):
        leading.append("t")  # the host's tile, for reports
    if file.lowered.by_epoch and any(re.search(r"\bepoch\b", text) for _, text, _ in inner.rows):
        leading.append("epoch")
    if any(text == f"if {FIRST_SUBTILE}:" for _, text, _ in inner.rows):
        leading.append(FIRST_SUBTILE if step.deferred else f"{FIRST_SUBTILE}: tl.constexpr")
    for names in tiles:
        lane_lines(scope.lines, names)
    scope.lines.extend(inner)
    return close(scope, scope.naming.functions[step.path], tuple(leading))
