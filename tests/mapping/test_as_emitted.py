"""What the planner adds on the way to the text is played through as it is emitted: own parts read in place, fused pieces."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.mapping.corrupt import spoilt
from tests.mapping.oracle import asked, assert_refused, assert_right, events_of
from tests.mapping.plans import plan_of, with_signal, with_step
from tests.selection import cases
from tilelink import copy_engine, fused, operator, sms
from tilelink.ir.plan import Plan
from tilelink.ops import ag_gemm, gemm_rs
from tilelink.ops.programs import gather, matmul


def gathered(
    ranks: int, parts: int, tile: int, *, push: bool = True, chunk: int | None = None, order: str = "ring"
) -> Plan:
    """AG+GEMM whose matmul reads own rows in the argument: whole tiles in each part."""
    moved = copy_engine(push=push) if chunk is None else copy_engine(M=chunk, push=push)
    sizes = {"M": ranks * parts * tile, "K": 3, "N": 5}
    return plan_of(ag_gemm, ranks, sizes, gather=moved, matmul=sms(M=tile, N=2, K=4, order=order))


def reduced(ranks: int, rows: int, columns: int, tile: int, piece: int, scatter: str = "fused") -> Plan:
    """GEMM+RS whose reduction takes the host's tile piece by piece."""
    moved = fused("matmul") if scatter == "fused" else copy_engine(M=2, order="ring+1")
    made = sms(M=2, N=tile, K=4, order="ring+1")
    sizes = {"M": rows, "K": 3, "N": columns}
    return plan_of(gemm_rs, ranks, sizes, scatter=moved, reduce=fused("matmul", N=piece), matmul=made)


@cases(40)
@given(
    ranks=st.integers(1, 4),
    parts=st.integers(1, 3),
    tile=st.sampled_from([1, 2, 4]),
    push=st.booleans(),
    chunk=st.sampled_from([None, 1, 2, 3]),
    order=st.sampled_from(["ring", "row", "ring+1", "column"]),
)
def test_own_rows_are_read_in_the_argument(
    ranks: int, parts: int, tile: int, push: bool, chunk: int | None, order: str
) -> None:
    """Each rank reads each position of each row once per column of tiles: its own ones there, all others in `rows`."""
    plan = gathered(ranks, parts, tile, push=push, chunk=chunk, order=order)
    assert any(s.in_place for s in plan.steps)
    assert_right(plan)
    part, columns = parts * tile, 3
    events = [e for e in events_of(plan) if e.at.path == "matmul"]
    for rank in range(ranks):
        read: dict[str, list[int]] = {"x": [], "rows": []}
        waited = sum(e.kind == "await" and e.what == "rows" for e in events if e.at.rank == rank)
        for event in (e for e in events if e.at.rank == rank and e.kind == "read" and e.what in read):
            assert event.ranks == (rank,)
            read[event.what] += range(event.box[0].start, event.box[0].stop)
        assert sorted(read["x"]) == sorted([*range(part)] * columns)
        others = [p for p in range(ranks * part) if p // part != rank]
        assert sorted(read["rows"]) == sorted(others * columns)
        assert (waited == 0) == (ranks == 1)


@cases(40)
@given(rng=st.randoms(use_true_random=False), ranks=st.integers(1, 3), parts=st.integers(1, 2), push=st.booleans())
def test_a_part_that_is_not_there_is_seen(rng: random.Random, ranks: int, parts: int, push: bool) -> None:
    made = spoilt(rng, gathered(ranks, parts, 2, push=push), "brought_along")
    assume(made is not None)
    assert made is not None
    asked(made)


def test_a_reader_that_does_not_know_of_it() -> None:
    """What the others read in place is not moved: it waits for ever."""

    def body(x: Any, weight: Any) -> Any:
        rows = gather(x)
        return matmul(rows, weight), matmul(rows, weight, name="again")

    both = operator("M/R K, K N -> M N, M N", name="both")(body)
    tile = sms(M=2, N=2, K=4)
    plan = plan_of(both, 2, {"M": 8, "K": 3, "N": 4}, gather=copy_engine(push=True), matmul=tile, again=tile)
    assert [s.path for s in plan.steps if s.in_place] == ["matmul", "again"]
    assert_right(plan)
    spoilt = with_step(plan, "again", in_place=())
    assert assert_refused(spoilt, "TL604").message.endswith("of `rows` are never written, and `again` reads it")


@cases(40)
@given(
    ranks=st.integers(1, 4),
    rows=st.integers(1, 9),
    columns=st.integers(1, 13),
    tile=st.sampled_from([2, 4, 8]),
    piece=st.sampled_from([1, 2, 4]),
    scatter=st.sampled_from(["fused", "copy engine"]),
)
def test_pieces_make_the_tile(ranks: int, rows: int, columns: int, tile: int, piece: int, scatter: str) -> None:
    """In order, none longer than asked for, together all columns of the host's tile; proof and oracle agree."""
    assume(piece < tile)
    plan = reduced(ranks, rows, columns, tile, piece, scatter)
    assert plan.step("reduce").subtiles == tile // piece
    asked(plan)
    written: dict[int, list[tuple[int, int]]] = {}
    for event in (e for e in events_of(plan) if e.kind == "write" and e.what == plan.wiring.results[0]):
        written.setdefault(id(event.at), []).append((event.box[1].start, event.box[1].stop))
    for found in written.values():
        first, last = found[0][0], found[-1][1]
        assert first % tile == 0
        assert last == min(first + tile, columns)
        assert all(a[1] == b[0] for a, b in pairwise(found))
        assert all(0 < end - begin <= piece for begin, end in found)


def test_pieces_that_do_not_make_the_tile() -> None:
    plan = reduced(2, 4, 8, 8, 4)
    spoilt = with_step(plan, "reduce", subtiles=3)
    assert_refused(spoilt, "TL604")


def test_pieces_that_each_notify() -> None:
    """Flags are counted in tiles."""
    plan = reduced(2, 4, 8, 8, 4)
    assert_right(with_signal(plan, "reduce", "out", "elided"))
    ring = plan_of(
        gemm_rs, 2, {"M": 4, "K": 3, "N": 8}, scatter=fused("matmul"), matmul=sms(M=2, N=8, K=4, order="ring+1")
    )
    spoilt = with_step(ring, "scatter", subtiles=2)
    assert_refused(spoilt, "TL607")
