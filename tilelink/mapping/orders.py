"""The sequence in which a step's workers take its tiles, as closed forms (paper section 3.1: tile order).

Position `t` of a step's `total` tiles becomes one index per axis. Orders compose, the first outermost:
`("ring+1", "group 8")` starts at the next rank's rows and walks groups of 8 rows of tiles inside each rank's part.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tilelink.errors import Loc, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Plan, StepPlan, order_of
from tilelink.ir.schedule import ACROSS, Order, SortKey

Lets = list[tuple[str, Formula]]
RAISED = (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
"""What a user's function may raise."""
SORTED = "sorted_t"
"""What formulas call the position that a table gives for `t`."""


def by_table(lets: tuple[tuple[str, Formula], ...], path: str) -> tuple[tuple[str, Formula], ...]:
    """The same assignments for the position that the table of step `path` gives for `t`."""
    first = (SORTED, F.at(Sym(order_of(path)), Sym("t")))
    return (first, *((name, F.substitute(value, {"t": Sym(SORTED)})) for name, value in lets))


def tables(plan: Plan) -> tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]:
    """The orders by a user's key: by name, for each rank the positions of its tiles, sorted.

    Raises:
        TilelinkError: TL310, keys that cannot be compared, or a function that raises.
    """
    return tuple(
        (order_of(s.path), tuple(_sorted(plan, s, s.sort_key, rank) for rank in range(plan.topology.ranks)))
        for s in plan.steps
        if s.sort_key is not None
    )


def _sorted(plan: Plan, step: StepPlan, key: SortKey, rank: int) -> tuple[int, ...]:
    """One rank's tiles by rising key, which sees its coordinate on the step's axis; where keys are equal, in the order that
    the schedule gives besides."""
    unsorted = replace(step, order=((SORTED, Sym("t")), *step.order[1:]))
    at, ranks = plan.topology.at(rank, step.axis), plan.topology.size(step.axis)
    turns = unsorted.turns(plan.env(rank))
    indices = [np.broadcast_to(turns[f"i{a}"], turns["t"].shape).tolist() for a in range(len(step.grid))]
    tiles = [tuple(index) for index in zip(*indices, strict=True)]
    try:
        keys = [key(tile, at, ranks) for tile in tiles]
    except RAISED as error:
        code = getattr(key, "__code__", None)
        raise TilelinkError(
            "TL310",
            f"the sort key of `{step.path}` raises {type(error).__name__}: {error}",
            loc=Loc(code.co_filename, code.co_firstlineno) if code is not None else None,
            why=f"it is called as key(tile, rank, ranks), first as key({tiles[0]}, {at}, {ranks})",
            hint="write def key(tile, rank, ranks), which gives a number, or a tuple of numbers, for every tile",
        ) from error
    try:
        hash(tuple(keys))
        return tuple(sorted(range(len(keys)), key=lambda t: keys[t]))
    except TypeError as error:
        raise TilelinkError(
            "TL310",
            "the keys of an order cannot be compared",
            why=f"tiles are sorted by what the function gives for them: {error}",
            hint="let it give numbers, or tuples of numbers",
        ) from error


def parse(order: Order, loc: Loc | None = None) -> tuple[int | None, int, bool]:
    """(shift of the ring or None, group or 0, column-major); `loc`: of the step whose order it is.

    Raises:
        TilelinkError: TL310, a word that is no order.
    """
    ring: int | None = None
    group, column = 0, False
    for name in (name for name in order if isinstance(name, str)):
        word, *rest = name.split() or [""]
        number = int(rest[0]) if len(rest) == 1 and rest[0].isdigit() else 0
        if word == "ring" and not rest:
            ring = 0
        elif word.startswith("ring+") and word[5:].isdigit():
            ring = int(word[5:])
        elif word == "group" and number > 0:
            group = number
        elif word == "column" and not rest:
            column = True
        # Which tiles of a run-time split come first, a table says on the device; parts of ranks stay as they are.
        elif not (word in ("row", ACROSS) and not rest) and not (word == ACROSS and number > 0):
            raise TilelinkError(
                "TL310",
                f"`{name}` is no tile order",
                loc=loc,
                why="orders are row, column, `group N`, ring, ring+N, across, `across N`; the first is outermost",
                hint='write for example order=("ring+1", "group 8")',
            )
    return ring, group, column


def decode(grid: tuple[GridAxis, ...], order: Order) -> tuple[tuple[tuple[str, Formula], ...], Formula]:
    """Assignments that turn `t` into `i0`, `i1`, … (one per axis of `grid`), and the number of tiles."""
    ring, group, column = parse(order)
    walked = [a for a, axis in enumerate(grid) if axis.kind != "own" and axis.count != F.of(1)]
    lets: Lets = [
        (f"i{a}", axis.rank if axis.kind == "own" else F.of(0)) for a, axis in enumerate(grid) if a not in walked
    ]
    # Two inner axes may be grouped; everything before them is outermost, in row order.
    inner = walked[-2:]
    position: Formula = Sym("t")
    for k, a in enumerate(walked[:-2]):
        behind = math.prod((grid[b].count for b in walked[k + 1 :]), start=F.of(1))
        lets.append((f"i{a}", _rotate(position // behind, grid[a], ring)))
        position = position % behind
        ring = None if _ringed(grid[a]) else ring
    if len(inner) == 1:
        axis = grid[inner[0]]
        if ACROSS in order and (axis.kind == "cut" or _ringed(axis)):
            lets += _across_parts(position, axis, inner[0], ring)
        else:
            lets.append((f"i{inner[0]}", _rotate(position, axis, ring)))
    elif inner:
        column |= ACROSS in order and grid[inner[0]].kind == "unit"
        lets += _plane(position, grid, inner[0], inner[1], ring, group, column)
    return tuple(lets), math.prod((grid[a].count for a in walked), start=F.of(1))


def _ringed(axis: GridAxis) -> bool:
    return axis.shared or axis.dim == "R"


def _start(axis: GridAxis, shift: int) -> Formula:
    """The first tile of the part of rank `rank + shift`; 0 where that rank holds nothing."""
    rank = (axis.rank + shift) % axis.ranks if shift else axis.rank
    if axis.kind == "unit" and not axis.shared:
        return rank
    first = rank * axis.per if axis.kind == "cut" else F.cdiv(rank * axis.part, axis.step)
    return F.minimum(first, axis.count) % F.maximum(axis.count, 1)


def _rotate(index: Formula, axis: GridAxis, shift: int | None) -> Formula:
    if shift is None or not _ringed(axis) or axis.kind == "mine":
        return index
    return (index + _start(axis, shift)) % axis.count


def _across_parts(position: Formula, axis: GridAxis, a: int, ring: int | None) -> Lets:
    """The first tiles of all parts, then all second ones: `whole` parts have all their tiles, one more has `rest`."""
    per = axis.per if axis.kind == "cut" else F.maximum(axis.part // axis.step, 1)
    whole, rest = Sym("whole_parts"), Sym("rest_tiles")
    first = axis.rank + ring if ring is not None else F.of(0)
    early = F.binary("<", position, rest * (whole + 1))
    late = F.maximum(position - rest * (whole + 1), 0)
    among = F.maximum(whole, 1)
    return [
        ("whole_parts", axis.count // per),
        ("rest_tiles", axis.count % per),
        ("part_turn", F.select(early, position // (whole + 1), rest + late // among)),
        (f"i{a}", F.select(early, (position + first) % (whole + 1), (late + first) % among) * per + Sym("part_turn")),
    ]


def _plane(
    position: Formula, grid: tuple[GridAxis, ...], a: int, b: int, ring: int | None, group: int, column: bool
) -> Lets:
    """Two axes: rotated along the ring, then row, column or grouped."""
    first, second = grid[a], grid[b]
    if ring is not None and not _ringed(first) and _ringed(second):
        return _plane(position, grid, b, a, ring, group, not column)
    rows, columns = first.count, second.count
    lets: Lets = []
    by_parts = ring is not None and first.kind == "cut"
    if ring is not None and by_parts:
        # The parts in ring order, each whole before the next: what a proof by ring distance needs.
        turned, block = Sym("turned"), first.per * columns
        lets += [
            ("turned", (position + _start(first, ring) * columns) % (rows * columns)),
            ("part_top", turned // block * first.per),
        ]
        position, rows = turned % block, F.minimum(first.per, rows - Sym("part_top"))
    if group:
        top, height, block = Sym("group_top"), Sym("group_rows"), columns * group
        lets += [("group_top", position // block * group), ("group_rows", F.minimum(rows - top, group))]
        row, col = top + position % block % height, position % block // height
    else:
        row, col = (position % rows, position // rows) if column else (position // columns, position % columns)
    row = Sym("part_top") + row if by_parts else _rotate(row, first, ring)
    return [*lets, (f"i{a}", row), (f"i{b}", col)]
