"""Loops over a dimension that one tensor has whole and another by parts: each walks what its own tensor has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import Problem, assert_solves, each, random, split, told
from tilelink import Operator, sms
from tilelink.frontend.program import Program
from tilelink.ops.programs import gather

RANKS, ROWS = 2, 15


@tilelink.program("M N, M/R N -> N")
def all_and_mine(rows: Any, shard: Any, out: Any) -> None:
    n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for m in tl.tiles(rows, axis=0):
        tl.consumer_tile_wait(rows, (m, n))
        acc += tl.sum(tl.tile_load(rows, (m, n)), 0)
    for m in tl.tiles(shard, axis=0):
        acc += tl.sum(tl.tile_load(shard, (m, n)), 0)
    tl.tile_store(out, n, acc)


@tilelink.program("M N, M/R N -> N")
def mine_and_all(rows: Any, shard: Any, out: Any) -> None:
    """The same, the other way round, and under two names."""
    n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for own in tl.tiles(shard, axis=0):
        acc += tl.sum(tl.tile_load(shard, (own, n)), 0)
    for m in tl.tiles(rows, axis=0):
        tl.consumer_tile_wait(rows, (m, n))
        acc += tl.sum(tl.tile_load(rows, (m, n)), 0)
    tl.tile_store(out, n, acc)


@tilelink.program("M N, M/R N -> N")
def waits_for_its_own(rows: Any, shard: Any, out: Any) -> None:
    n = tl.tile_id(out)
    for m in tl.tiles(shard, axis=0):
        tl.consumer_tile_wait(rows, (m, n))
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for m in tl.tiles(rows, axis=0):
        acc += tl.sum(tl.tile_load(rows, (m, n)), 0)
    tl.tile_store(out, n, acc)


@tilelink.program("M N, M/R N -> N")
def waits_for_all(rows: Any, shard: Any, out: Any) -> None:
    """A walk over all of an axis is one over each part of it."""
    n = tl.tile_id(out)
    for m in tl.tiles(rows, axis=0):
        tl.consumer_tile_wait(rows, (m, n))
        tl.consumer_tile_wait(shard, (m, n))
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for m in tl.tiles(rows, axis=0):
        acc += tl.sum(tl.tile_load(rows, (m, n)), 0)
    for m in tl.tiles(shard, axis=0):
        acc += tl.sum(tl.tile_load(shard, (m, n)), 0)
    tl.tile_store(out, n, acc)


def summed(program: Program) -> Operator:
    def body(x: Any) -> Any:
        return program(gather(x), x)

    placed = {"gather": sms(1, M=4), program.name: sms(M=4, N=4)}
    return tilelink.operator("M/R N -> N", name="summed", schedule=placed)(body)


@pytest.mark.parametrize("program", [all_and_mine, mine_and_all, waits_for_all], ids=lambda p: p.name)
def test_each_loop_walks_its_own(program: Program) -> None:
    x = random(ROWS, 8)
    shards, operator = split(x, RANKS), summed(program)
    assert operator.verify(shards[0], ranks=RANKS, M=ROWS).ok
    wanted = [x.sum(0) + shard.sum(0) for shard in shards]
    assert_solves(operator, [Problem(each(shards), each(wanted), {"M": ROWS})])


def test_a_walk_over_a_part_is_not_one_over_all() -> None:
    verdict = summed(waits_for_its_own).verify(torch.empty(8, 8), ranks=RANKS, M=16)
    code, message, _, hint = told(verdict.error)
    assert (code, message) == ("TL602", "`rows` is read and no wait covers it")
    assert hint == "write `tl.consumer_tile_wait(rows, (m, n))` before it"
    assert verdict.counterexample is not None
    assert verdict.counterexample.kind == "race"


@tilelink.program("M N -> M N, M i32")
def row_by_row(rows: Any, out: Any, mine: Any, *, named: bool) -> None:
    """It announces each tile of its walk, or as often all of the row."""
    m = tl.tile_id(mine)
    for n in tl.tiles(out, axis=1):
        tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)))
        if named:
            tl.producer_tile_notify(out, (m, n))
        else:
            tl.producer_tile_notify(out, m)


@tilelink.program("M N -> M N")
def twice(rows: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)) * 2)


@pytest.mark.parametrize("named", [True, False])
def test_a_walk_that_announces_each_of_its_tiles(named: bool) -> None:
    x = torch.randn(7, 13)
    operator = tilelink.operator("M N -> M N", name="walked")(lambda x: twice(row_by_row(x, named=named)[0]))
    placed = operator.schedule(row_by_row=tilelink.sms(2, M=4, N=4, own_kernel=True), twice=tilelink.sms(2, M=4, N=8))
    for ranks in (1, 2):
        assert all(torch.equal(y, 2 * x) for y in tilelink.launch(lambda: placed(x), ranks, straggler=0))


@tilelink.program("R/R M N -> R M N, R M N")
def sent(x: Any, ones: Any, others: Any) -> None:
    s, m, n = tl.tile_id(x)
    value = tl.tile_load(x, (s, m, n))
    tl.tile_push_data(ones, (s, m, n), value)
    tl.producer_tile_notify(ones, (s, m, n))
    tl.tile_push_data(others, (s, m, n), 2 * value)
    tl.producer_tile_notify(others, (s, m, n))


@tilelink.program("s M N, s M N -> M N")
def one_by_one(ones: Any, others: Any, out: Any) -> None:
    """Two walks by one name, each of which waits for flags of all ranks."""
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(ones, axis=0):
        tl.consumer_tile_wait(ones, (s, m, n))
        acc = acc * 2 + tl.tile_load(ones, (s, m, n))
    for s in tl.tiles(others, axis=0):
        tl.consumer_tile_wait(others, (s, m, n))
        acc = acc * 2 + tl.tile_load(others, (s, m, n))
    tl.tile_store(out, (m, n), acc)


@tilelink.operator("R/R M N -> M N")
def both(x: Any) -> Any:
    return one_by_one(*sent(x))


@pytest.mark.parametrize("ranks", [2, 3])
def test_walks_by_one_name_wait_for_their_own_flags(ranks: int) -> None:
    x = torch.randn(ranks, 5, 7, generator=torch.Generator().manual_seed(0))
    want = torch.zeros(5, 7)
    for part in (*x, *(2 * x)):
        want = want * 2 + part
    for placed in (both, both.schedule(sent=sms(M=4, N=4), one_by_one=sms(M=2, N=4), ll=False)):
        results = tilelink.launch(
            lambda placed=placed: placed(x[tilelink.rank()][None]), ranks, races=True, straggler=0
        )
        for got in results:
            torch.testing.assert_close(got, want)
