"""Rehearsals: a program is run on a few small sizes when it is captured, with what lies past an edge marked.

A block has as many lanes as its tile: past the edge of a tensor they hold 0, as loads fill them, or what has been made of that.
Where that would come into what is stored, a program is refused (TL143). How long tiles are is the schedule's matter, so a
rehearsal also finds where a program takes all of one tile together (`ir.program.Together`).

Takes: the source of a program, the names around it, its parameters and its signature.
Gives: `taken_together`.
Knows: `frontend.scope`, `frontend.source`, numpy. Never knows: ops, plans, Triton.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilelink.errors import Loc
from tilelink.frontend.rehearsal.drawn import SIZES, Drawn, Findings, Paths, Rehearsed, is_new, values_of
from tilelink.frontend.rehearsal.places import Trial
from tilelink.frontend.rehearsal.run import rehearse
from tilelink.ir.program import Together

__all__ = ["Rehearsed", "is_new", "taken_together"]

MANY = 18
"""Rehearsals of a program in which only some data shows what lies past an edge; of one with constants, two thirds."""
WALKED, LONGER, LONG, CROSSED = (0, 5), (64,), 37, 512
"""Rehearsals that show whether what is stored hangs on the tiles of a walk; how long others are, and how long their axis is; and
up to which number it is also so much longer than one that positions are compared with."""
ONE = 32
"""Elements of a tile that is the only one of its axis."""
QUOTIENTS = (1, 6)
"""Rehearsals that judge quotients."""
MORE = 72
"""Rehearsals, at most, for sides of branches that others do not take, and near constants that positions are compared with."""
WIDE = 100
"""Where an axis is as long as a constant from here on, the others are not."""
_COUNTING = ("range", "static_range", "topk")
"""Functions that count to a number."""


def taken_together(program: Rehearsed) -> tuple[Together, ...]:
    """What the program takes together of tiles of its domain, once each, in the order of its text; what is stored, as that.

    Raises:
        TilelinkError: TL143, what lies past an edge would come into what it stores.
    """
    found, paths = Findings(), Paths()

    def run(drawn: Drawn, way: Mapping[ast.AST, bool] | None = None) -> None:
        rehearse(Trial(program, drawn, paths, found, way or {}))

    counted, compared, far = _numbers(program)
    near = [(n + more, k) for n in compared for k in ((-1,) if n < WIDE else (0, 1, 2)) for more in (-3, 3)]
    with np.errstate(all="ignore"):
        for which in range(MANY):
            if which < len(SIZES) or found.doubtful or (program.constants and 3 * which < 2 * MANY):
                run(Drawn(which, counted))
                if counted:  # axes are longer than a tile then, of which the first ends at no edge
                    run(Drawn(which, counted, tile=ONE))
        for which in range(len(SIZES)):
            for size, axis in near[: MORE // len(SIZES) if found.doubtful or not which else 0]:
                run(Drawn(which, counted, size, axis))
        for _ in range(MORE):
            if (side := paths.untaken()) is None:
                break
            run(*side)
        for which in QUOTIENTS if found.quotients else ():
            for first in (True, False):
                run(Drawn(which, far, first=first))
        loops = dict.fromkeys(found.loops - {t.var for t in found.notes if t.stored}, -1)
        found.notes.update(_hanging(program, paths, loops | found.walks, compared))
    once = [t for t in found.notes if t.stored or replace(t, stored=True) not in found.notes]
    return tuple(sorted(once, key=lambda t: (t.loc.line, t.loc.column, t.var, t.what)))


def _hanging(program: Rehearsed, paths: Paths, tiles: Mapping[str, int], compared: Sequence[int]) -> Iterator[Together]:
    """Of tiles of the domain that say how often a loop goes round, or of those of a walk, those on whose length hangs what is
    stored: with tiles of the domain half as long, or longer ones of the walk, it is something else. Longer also than numbers that
    the program compares positions with."""

    def stored(drawn: Drawn, half: tuple[str, int]) -> dict[tuple[Any, ...], tuple[float, Loc]]:
        trial = Trial(program, replace(drawn, half=half), paths, Findings(), {})
        rehearse(trial)
        return trial.stored

    def differing(var: str) -> Iterator[Loc]:
        calls = [(Drawn(k), (0, 1)) for k in range(MANY)]
        if var not in program.domain:
            calls = [(Drawn(k, near=LONG, axis=tiles[var]), LONGER) for k in WALKED]
            crossed = [n for n in compared if n <= CROSSED]
            calls += [(Drawn(0, near=n + LONG, axis=tiles[var]), (1 << n.bit_length(),)) for n in crossed]
        for one, others in calls:
            whole = stored(one, ("", 0))
            for at, (value, loc) in [item for other in others for item in stored(one, (var, other)).items()]:
                if not np.isclose(value, whole.get(at, (value, loc))[0], rtol=1e-6, atol=1e-9, equal_nan=True):
                    yield loc

    for var in sorted(tiles):
        if (loc := next(differing(var), None)) is not None:
            yield Together(var, "", loc, stored=True)


def _numbers(program: Rehearsed) -> tuple[int, tuple[int, ...], int]:
    """The greatest number that a program counts to, as in `tl.topk(x, 8)` or a loop; those that it compares something with, or
    divides by; and more than its constants and all that it writes, up to 64: positions may lie on both sides of them."""
    constants = {c.name: program.given.get(c.name, c.default) for c in program.constants}
    given = {name: value for name, value in constants.items() if isinstance(value, int)}
    counted, compared = {0}, set[int]()
    written = {abs(n) for c in program.constants if c.kind == "int" for n in (*values_of(c), constants[c.name] or 0)}
    for node in ast.walk(program.source.node):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _COUNTING:
            parts = node.args
        elif isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv):
            parts = [node.right]
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            written.add(node.value)
        inside = [n for p in parts for n in ast.walk(p)]
        values = {n.value for n in inside if isinstance(n, ast.Constant) and type(n.value) is int}
        values |= {given[n.id] for n in inside if isinstance(n, ast.Name) and n.id in given}
        (counted if isinstance(node, ast.Call) else compared).update(values)
    far = 2 * int(max((n for n in written if n <= 64), default=0))
    return max(n for n in counted if n <= 16), tuple(sorted(n for n in compared if 8 < n <= 2048)), far
