"""Single positions: those of this rank's own part, counted from where it begins, and those that programs make of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import Problem, alone, assert_solves, each, random, split
from tilelink.ops.programs import scatter

M, N = 11, 16


@tilelink.program("s M N -> s N")
def first_row(inbox: Any, out: Any) -> None:
    """The first row of what every rank has sent."""
    s, n = tl.tile_id(out)
    tl.consumer_tile_wait(inbox, (s, 0, n))
    tl.tile_store(out, (s, n), tl.tile_load(inbox, (s, 0, n)))


@tilelink.operator("M N -> R N")
def first_rows(x: Any) -> Any:
    return first_row(scatter(x))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("slow", [None, 0])
def test_the_first_row_of_ones_own_part(ranks: int, slow: int | None) -> None:
    """The flag waited for is that of this rank's row; the flag of the very first row is raised on rank 0 only."""
    x = [random(M, N, seed=r) for r in range(ranks)]
    placed = first_rows.schedule(scatter=tilelink.sms(2, M=2, push=True), first_row=tilelink.sms(N=16))
    part = -(-M // ranks)
    wanted = [torch.stack([one[rank * part] for one in x]) for rank in range(ranks)]
    assert_solves(placed, [Problem(each(x), each(wanted))], straggler=slow)


@tilelink.program("h D, D g -> h D")
def by_pairs(x: Any, columns: Any, out: Any, *, paired: bool) -> None:
    h, d = tl.tile_id(out)
    tl.tile_store(out, (h, d), tl.tile_load(x, (h, d)) + tl.tile_load(columns, (d, h // 2 if paired else h)))


@tilelink.program("h D, g D -> h D")
def by_group(x: Any, rows: Any, out: Any) -> None:
    h, d = tl.tile_id(out)
    group = tl.size(x, 0) // tl.size(rows, 0)
    tl.tile_store(out, (h, d), tl.tile_load(x, (h, d)) + tl.tile_load(rows, (h // group, d)))


@pytest.mark.parametrize("paired", [True, False])
def test_a_choice_of_positions(paired: bool) -> None:
    x, columns = torch.randn(4, 8), torch.randn(8, 4)
    [got] = alone(by_pairs)([x], [columns], paired=paired)
    assert torch.equal(got, x + columns.T[[0, 0, 1, 1] if paired else [0, 1, 2, 3]])


def test_a_division_by_nothing_stops_no_plan() -> None:
    """More rows than heads: a group has none. Which row that gives is the device's affair."""
    [got] = alone(by_group)([torch.zeros(2, 8)], [torch.zeros(4, 8)])
    assert got.shape == (2, 8)


@tilelink.program("M N, e M N -> e M N")
def stored_in_turn(like: Any, x: Any, out: Any, *, early: bool = False) -> None:
    """Reads what a turn of the loop stores, before it does or behind."""
    m, n = tl.tile_id(like)
    for e in range(tl.size(x, 0)):
        if early:
            read = tl.tile_load(out, (e, m, n))
        tl.tile_store(out, (e, m, n), tl.tile_load(x, (e, m, n)))
        read = tl.tile_load(out, (e, m, n))  # noqa: F841


def test_what_a_turn_of_a_loop_has_stored_it_may_read() -> None:
    x, read_again = torch.randn(3, 8, 8), alone(stored_in_turn)
    [got] = read_again([x[0]], [x])
    assert torch.equal(got, x)
    error = read_again.verify(x[0], x, ranks=1, early=True).error
    assert error is not None
    assert (error.code, error.message) == ("TL602", "`out` is read and no wait covers it")


@tilelink.program("p M K, e K N, p i64, p i64 -> p M N")
def chosen(x: Any, weights: Any, which: Any, depth: Any, out: Any) -> None:
    """Products with the weights that a table names, of as many columns as another says."""
    p, m, n = tl.tile_id(out)
    e = tl.tile_load(which, p)
    stop = tl.tile_load(depth, p)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(x, axis=2):
        some = tl.where(tl.tile_mask(x, k, stop=stop), tl.tile_load(x, (p, m, k)), 0)
        acc = tl.dot(some, tl.tile_load(weights, (e, k, n)), acc)
    tl.tile_store(out, (p, m, n), acc)


by_tables = alone(chosen)
FAR = 2**63 - 1
WHICH = torch.tensor([1, -1, 2**32, 0, 2, FAR, -(2**63)])
DEPTH = torch.tensor([FAR, 40, 40, 17, 32, 40, 40])


def test_tables_of_64_bits() -> None:
    """What is no position stays none as a coordinate of 32 bits, and a limit past the edge means the edge."""
    x, weights = torch.randn(7, 16, 48), torch.randn(3, 48, 16)
    placed = by_tables.schedule(chosen=tilelink.sms(M=16, N=16, K=16))
    [got] = placed([x], [weights], [WHICH], [DEPTH])
    for p, (e, depth) in enumerate(zip(WHICH.tolist(), DEPTH.tolist(), strict=True)):
        want = x[p, :, :depth] @ weights[e, :depth] if 0 <= e < 3 else torch.zeros(16, 16)
        torch.testing.assert_close(got[p], want, rtol=1e-5, atol=1e-5)


@tilelink.program("e/R M K, e/R K N -> e/R M N")
def with_neighbour(x: Any, weights: Any, out: Any) -> None:
    """Products with the weights of the other expert of a pair, both of which this rank has."""
    e, m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(x, axis=2):
        acc = tl.dot(tl.tile_load(x, (e, m, k)), tl.tile_load(weights, (e ^ 1, k, n)), acc)
    tl.tile_store(out, (e, m, n), acc)


def test_bits_of_a_position_that_counts_over_all_ranks() -> None:
    x, weights = torch.randn(4, 16, 16), torch.randn(4, 16, 16)
    placed = alone(with_neighbour).schedule(with_neighbour=tilelink.sms(M=16, N=16, K=16))
    wanted = x @ weights[[1, 0, 3, 2]]
    assert_solves(placed, [Problem(each(split(x, 2), split(weights, 2)), each(split(wanted, 2)))])


@tilelink.program("M/R K -> M K")
def twice(x: Any, everywhere: Any) -> None:
    """Everybody's rows to everybody, announced as a whole: a flag for each rank, and none for positions."""
    m, k = tl.tile_id(x)
    tl.tile_push_data(everywhere, (m, k), 2 * tl.tile_load(x, (m, k)))
    tl.producer_tile_notify(everywhere)


@tilelink.program("T K, M i32 <T -> M K")
def picked(rows: Any, which: Any, out: Any) -> None:
    m, k = tl.tile_id(out)
    who = tl.tile_load(which, m, other=-1)
    tl.consumer_tile_wait(rows, who)
    tl.tile_store(out, (m, k), tl.tile_load(rows, (who, k)))


@tilelink.operator("M/R K, N i32 <M -> N K")
def picked_of_all(x: Any, which: Any) -> Any:
    return picked(twice(x), which)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_vector_of_positions_that_have_no_flags_of_their_own(slow: int) -> None:
    """It waits for every rank: positions are no ranks' numbers."""
    x, which = torch.randn(12, 8), torch.arange(11, -1, -1, dtype=torch.int32)
    placed = picked_of_all.schedule(twice=tilelink.sms(1, M=4, K=16), picked=tilelink.sms(1, M=4, K=16))
    problem = Problem(each(split(x, 3), [which] * 3), [(2 * x[which.long()],)] * 3)
    assert_solves(placed, [problem], straggler=slow)


# ------------------------------------------------------------------------------------- a coordinate that a program asks for
@tilelink.program("M/R K -> R K")
def sums(x: Any, out: Any) -> None:
    """This rank's sum, as its slice, for everyone: the domain names no coordinate."""
    m, k = tl.tile_id(x)
    s = tl.rank_of(x, m)
    tl.tile_push_data(out, (s, k), tl.sum(tl.tile_load(x, (m, k)), 0))
    tl.producer_tile_notify(out, (s, k))


@tilelink.program("M/R K -> R K")
def sums_for_the_next(x: Any, out: Any) -> None:
    """All ranks but the first, each as the slice behind its own."""
    m, k = tl.tile_id(x)
    s = tl.rank_of(x, m)
    if s > 0:
        tl.tile_push_data(out, (s + 1, k), tl.sum(tl.tile_load(x, (m, k)), 0))
        tl.producer_tile_notify(out, (s + 1, k))


@tilelink.program("s K -> s K")
def of_each(inbox: Any, out: Any) -> None:
    s, k = tl.tile_id(out)
    tl.consumer_tile_wait(inbox, (s, k))
    tl.tile_store(out, (s, k), tl.tile_load(inbox, (s, k)))


@tilelink.program("s K -> K")
def the_first(inbox: Any, out: Any) -> None:
    k = tl.tile_id(out)
    tl.consumer_tile_wait(inbox, (0, k))
    tl.tile_store(out, k, tl.tile_load(inbox, (0, k)))


@tilelink.operator("M/R K -> R K")
def everyones(x: Any) -> Any:
    return of_each(sums(x))


@tilelink.operator("M/R K -> K")
def the_last_ones(x: Any) -> Any:
    return the_first(sums_for_the_next(x))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("placement", [tilelink.sms(2), tilelink.sms(1, K=4, own_kernel=True)], ids=str)
def test_a_program_asks_for_its_own_coordinate(ranks: int, placement: Any) -> None:
    """Each flag has one rank that raises it, whatever the coordinate is called, and however far it is shifted."""
    whole = torch.rand(M, N)
    parts = split(whole, ranks)
    total = torch.stack([p.sum(0) for p in parts])
    wanted = (
        (everyones.schedule(sums=placement), total),
        (the_last_ones.schedule(sums_for_the_next=placement), total[-1]),
    )
    for operator, want in wanted[: 2 if ranks > 1 else 1]:
        assert operator.verify(parts, M=M).ok
        problems = [Problem(each([s * p for p in parts]), [(s * want,)] * ranks, {"M": M}) for s in (1, -1)]
        assert_solves(operator, problems, straggler=0)


@tilelink.program("M K, N K -> M K")
def by_begins(x: Any, rows: Any, out: Any) -> None:
    """Where a tile of an axis begins is a position of a shorter one, too, or it is past its edge."""
    m, k = tl.tile_id(out)
    tl.tile_store(out, (m, k), tl.tile_load(x, (m, k)) + tl.tile_load(rows, (tl.tile_begin(out, m), k))[None, :])


@tilelink.program("M K, M/R K -> M K")
def by_begins_of_all(x: Any, rows: Any, out: Any) -> None:
    """Of an axis that all ranks have parts of, this rank's part."""
    m, k = tl.tile_id(out)
    tl.tile_store(out, (m, k), tl.tile_load(x, (m, k)) + tl.tile_load(rows, (tl.tile_begin(out, m), k))[None, :])


@tilelink.program("h K, h/R K -> K")
def walked(x: Any, rows: Any, out: Any) -> None:
    """A walk over all positions, of which this rank has some in the other tensor."""
    k = tl.tile_id(out)
    total = tl.zeros(tl.tile_shape(out), tl.float32)
    for h in tl.tiles(x, axis=0):
        total += tl.tile_load(x, (h, k)) * tl.tile_load(rows, (h, k))
    tl.tile_store(out, k, total)


def test_a_position_that_another_axis_does_not_have() -> None:
    """It reads what lies past an edge, and no memory."""
    x, rows = torch.randn(40, N), torch.randn(20, N)
    want = x.clone()
    for begin in (0, 16):
        want[begin : begin + 16] += rows[begin]
    placed = alone(by_begins).schedule(by_begins=tilelink.sms(M=16, K=16))
    assert torch.equal(placed(x, rows), want)
    placed.validate(x, rows)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_position_that_this_ranks_part_does_not_have(ranks: int) -> None:
    x, whole = torch.randn(12, N), torch.randn(12, N)
    parts = list(whole.chunk(ranks))
    here = [torch.zeros(12, N).index_copy_(0, torch.arange(12).chunk(ranks)[r], parts[r]) for r in range(ranks)]
    for operator, wanted in (
        (
            alone(by_begins_of_all).schedule(by_begins_of_all=tilelink.sms(M=2, K=16)),
            [x + mine[::2].repeat_interleave(2, 0) for mine in here],
        ),
        (alone(walked), [(x * mine).sum(0) for mine in here]),
    ):
        operator.validate([x] * ranks, parts)
        assert_solves(operator, [Problem(each([x] * ranks, parts), each(wanted))])


@tilelink.program("M K, 2 K -> M K")
def plus_a_row(x: Any, rows: Any, out: Any, *, at: int) -> None:
    m, k = tl.tile_id(out)
    tl.tile_store(out, (m, k), tl.tile_load(x, (m, k)) + tl.tile_load(rows, (1, k)) + tl.tile_load(rows, (at, k)))


@tilelink.program("M K, 2 K -> M K")
def plus_no_row(x: Any, rows: Any, out: Any) -> None:
    m, k = tl.tile_id(out)
    tl.tile_store(out, (m, k), tl.tile_load(x, (m, k)) + tl.tile_load(rows, (2, k)))


@tilelink.program("M K -> 2 K partial")
def into_no_row(x: Any, out: Any) -> None:
    m, k = tl.tile_id(x)
    tl.tile_store(out, (2, k), tl.sum(tl.tile_load(x, (m, k)), 0))


@pytest.mark.parametrize("at", [0, 2, 1000])
def test_a_position_past_an_axis_of_a_known_length(at: int) -> None:
    """Nothing is left to test when it runs: there is no such row, and no memory is touched."""
    x, rows = torch.randn(8, N), torch.randn(2, N)
    plus, nothing, lost = map(alone, (plus_a_row, plus_no_row, into_no_row))
    assert torch.equal(plus(x, rows, at=at), x + rows[1] + (rows[at] if at < 2 else 0))
    assert torch.equal(nothing(x, rows), x)
    assert lost(x).shape == (2, N)
    plus.validate(x, rows, at=at)
    nothing.validate(x, rows)
    lost.validate(x)


@tilelink.program("e N -> e N")
def scattered(x: Any, out: Any, *, by: int) -> None:
    """Each row at another place, if by is no multiple of 5."""
    e, n = tl.tile_id(x)
    tl.tile_store(out, (e * by % 5, n), tl.tile_load(x, (e, n)))


def test_a_product_that_32_bits_do_not_hold() -> None:
    x, scattering = torch.arange(20.0).view(5, 4), alone(scattered)
    for got in scattering([x] * 2, by=500_000_003):
        torch.testing.assert_close(got, x[[0, 2, 4, 1, 3]])
    verdict = scattering.verify(x, by=1_000_000_007, ranks=2)
    assert verdict.error is not None
    assert verdict.error.code == "TL617"
    assert "1000000007" in verdict.error.message
