"""What the planner's formulas promise, checked against plain counting: partitions, flags, targets, orders."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.mapping.corrupt import ORDERS
from tests.mapping.plans import form, forms
from tests.selection import cases
from tilelink.ir import formula as F
from tilelink.ir.partition import ChannelAxis, GridAxis
from tilelink.ir.streams import Copy, Set, Wait, actions
from tilelink.mapping.arrivals import tiles_in
from tilelink.mapping.lower import lower
from tilelink.mapping.orders import decode

SIZE, COLUMNS = F.Sym("M"), F.Sym("N")
KINDS = ["plain", "cut", "mine"]
sizes = st.integers(1, 60)
tiles = st.one_of(st.none(), st.integers(1, 17))
rank_counts = st.integers(1, 8)


def env(ranks: int, rank: int, size: int, columns: int = 1) -> dict[str, Any]:
    return {"M": size, "N": columns, "RANKS": ranks, "rank": rank}


def cuts(grid: GridAxis, at: dict[str, Any]) -> list[tuple[int, int]]:
    count = int(F.evaluate(grid.count, at))
    return [(int(F.evaluate(grid.begin(i), at)), int(F.evaluate(grid.end(i), at))) for i in range(count)]


def axis_of(kind: str, tile: int | None, dim: str = "M") -> GridAxis:
    return GridAxis(dim, kind, SIZE if dim == "M" else COLUMNS, tile, dim.lower(), shared=kind != "plain")


# ------------------------------------------------------------------------------------------------------------ partitions
@cases(200)
@given(kind=st.sampled_from(KINDS), size=sizes, tile=tiles, ranks=rank_counts)
def test_every_element_lies_in_one_tile(kind: str, size: int, tile: int | None, ranks: int) -> None:
    grid = axis_of(kind, tile)
    length = max(1, -(-size // ranks))
    for rank in range(ranks):
        found = cuts(grid, env(ranks, rank, size))
        first, last = (rank * length, min((rank + 1) * length, size)) if kind == "mine" else (0, size)
        assert [p for lo, hi in found for p in range(lo, hi)] == list(range(first, last))
        assert all(lo < hi for lo, hi in found)
        if kind != "plain":
            assert all(lo // length == (hi - 1) // length for lo, hi in found)
        if tile is not None:
            assert all(hi - lo <= tile for lo, hi in found)


def test_a_part_of_nothing() -> None:
    for kind in KINDS:
        assert cuts(axis_of(kind, 4), env(3, 1, 0)) == []


# ----------------------------------------------------------------------------------------------------------------- flags
@cases(200)
@given(kind=st.sampled_from(["plain", "cut", "part"]), size=sizes, span=st.integers(1, 20), ranks=rank_counts)
def test_every_position_lies_in_the_interval_of_its_flag(kind: str, size: int, span: int, ranks: int) -> None:
    axis = ChannelAxis(0, kind, SIZE, span)
    length = max(1, -(-size // ranks))
    for rank in range(ranks):
        at = env(ranks, rank, size)
        mine = range(rank * length, min((rank + 1) * length, size)) if kind == "part" else range(size)
        flags = [int(F.evaluate(axis.index(p), at)) for p in mine]
        for p, flag in zip(mine, flags, strict=True):
            lo, hi = (int(F.evaluate(f, at)) for f in axis.interval(flag))
            assert lo <= p < hi
        assert flags == sorted(flags)
        assert all(0 <= w < int(F.evaluate(axis.count, at)) for w in flags)


@cases(200)
@given(
    grid=st.builds(axis_of, st.sampled_from(["plain", "cut"]), tiles),
    kind=st.sampled_from(["plain", "cut", "part"]),
    span=st.one_of(st.none(), st.integers(1, 20)),
    size=sizes,
    ranks=rank_counts,
)
def test_the_count_of_a_flag_is_the_number_of_tiles_that_meet_it(
    grid: GridAxis, kind: str, span: int | None, size: int, ranks: int
) -> None:
    if kind == "plain" and (grid.kind == "cut" or span is None):
        return  # the planner never makes these
    axis = ChannelAxis(0, kind, SIZE, span)
    for rank in range(ranks):
        at = env(ranks, rank, size)
        for flag in range(int(F.evaluate(axis.count, at))):
            lo, hi = (int(F.evaluate(f, at)) for f in axis.interval(flag))
            real = sum(b < hi and e > lo for b, e in cuts(grid, at)) if lo < hi else 0
            assert int(F.evaluate(tiles_in(grid, axis, flag), at)) == real


@cases(200)
@given(
    grid=st.builds(axis_of, st.sampled_from(KINDS), tiles),
    kind=st.sampled_from(["plain", "cut", "part"]),
    span=st.one_of(st.none(), st.integers(1, 20)),
    size=sizes,
    ranks=rank_counts,
)
def test_a_tile_that_is_said_to_lie_in_one_flag_does(
    grid: GridAxis, kind: str, span: int | None, size: int, ranks: int
) -> None:
    if kind == "plain" and span is None:
        return
    axis = ChannelAxis(0, kind, SIZE, span)
    if not axis.holds(grid):
        return
    for rank in range(ranks):
        at = env(ranks, rank, size)
        for lo, hi in cuts(grid, at):
            assert F.evaluate(axis.index(lo), at) == F.evaluate(axis.index(hi - 1), at)


# ---------------------------------------------------------------------------------------------------------------- orders
@cases(200)
@given(
    first=st.builds(axis_of, st.sampled_from(KINDS), st.integers(1, 9)),
    second=st.integers(1, 5),
    names=st.sampled_from(ORDERS),
    size=sizes,
    columns=st.integers(1, 11),
    ranks=rank_counts,
)
def test_an_order_is_a_permutation(
    first: GridAxis, second: int, names: tuple[str, ...], size: int, columns: int, ranks: int
) -> None:
    grid = (first, axis_of("plain", second, "N"))
    lets, total = decode(grid, names)
    for rank in range(ranks):
        at = env(ranks, rank, size, columns)
        count = int(F.evaluate(total, at))
        at["t"] = np.arange(count)
        if not count:
            continue
        for name, value in lets:
            at[name] = F.evaluate(value, at)
        counts = [int(F.evaluate(g.count, at)) for g in grid]
        taken = sorted(zip(at["i0"].tolist(), at["i1"].tolist(), strict=True))
        assert taken == [(i, j) for i in range(counts[0]) for j in range(counts[1])]


@cases(200)
@given(
    tile=st.integers(1, 9),
    shift=st.integers(0, 3),
    size=sizes,
    columns=st.integers(1, 6),
    ranks=rank_counts,
    inner=st.sampled_from(["row", "column", "group 2"]),
)
def test_a_ring_takes_one_part_after_the_other(
    tile: int, shift: int, size: int, columns: int, ranks: int, inner: str
) -> None:
    grid = (axis_of("cut", tile), axis_of("plain", 2, "N"))
    lets, total = decode(grid, (f"ring+{shift}", inner))
    length = max(1, -(-size // ranks))
    for rank in range(ranks):
        at = env(ranks, rank, size, columns)
        at["t"] = np.arange(int(F.evaluate(total, at)))
        for name, value in lets:
            at[name] = F.evaluate(value, at)
        parts = np.broadcast_to(F.evaluate(grid[0].begin(F.Sym("i0")), at), at["t"].shape) // length
        assert (np.diff((parts - rank - shift) % ranks) >= 0).all()


# ------------------------------------------------------------------------------------------------------------ copy engines
@cases(60)
@given(
    name=st.sampled_from([n for n in sorted(forms()) if "copy engine" in n]),
    ranks=st.integers(1, 6),
    rows=st.integers(1, 40),
    tile=st.sampled_from([1, 2, 4]),
)
def test_a_copy_engine_takes_every_tile_once_and_waits_for_every_flag_once(
    name: str, ranks: int, rows: int, tile: int
) -> None:
    plan = form(name, ranks, {"M": rows, "K": 3, "N": 5}, tile)
    step = next(s for s in plan.steps if s.engine.by == "stream")
    for rank in range(ranks):
        streams = actions(lower(plan), step.path, rank)
        assert len(streams) == step.streams
        ops = [op for stream in streams for op in stream]
        waited = [op.index for op in ops if isinstance(op, Wait) and op.style == "doorbell"]
        assert len(waited) == len(set(waited))
        raised = [(op.rank, op.index) for op in ops if isinstance(op, Set)]
        assert len(raised) == len(set(raised)) == sum(isinstance(op, Copy) for op in ops)
        tiles_here = step.spans(plan.env(rank))
        assert len(tiles_here) == len(set(tiles_here))
        for stream in streams:
            # What is moved was waited for, and is told behind the copy.
            kinds = [type(op) for op in stream]
            assert all(k in (Wait, Copy, Set) for k in kinds)
            assert all(a is Copy for a, b in pairwise(kinds) if b is Set)
