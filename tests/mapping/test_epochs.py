"""Credits: what is left out is implied, and a slot is written again only when all who used it have left that call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import form, plan_of
from tests.mapping.test_broken_plans import SIZES
from tests.selection import table
from tilelink import copy_engine, operator, sms
from tilelink.ir.plan import Plan
from tilelink.ops.programs import gather
from tilelink.ops.ulysses import to_heads


def assuming(plan: Plan) -> Plan:
    return replace(plan, credits_implied_by="all")


def test_a_credit_is_not_implied_where_a_rank_has_no_rows() -> None:
    plan = form("ag_gemm pull", 4, {"M": 3, "K": 4, "N": 4}, 2)
    assert plan.takes_credits
    assert_right(plan)
    assert assert_refused(assuming(plan), "TL610").message == (
        "rank 0 may write `x@stage` again while rank 3 still uses it from 2 calls ago"
    )


def test_a_ring_hears_from_one_rank_only() -> None:
    """Of its flags a rank hears one neighbour; that all others have been heard by way of it is not looked for."""
    assert_refused(assuming(form("gemm_rs_ring", 4, {**SIZES, "M": 16}, 2)), "TL610")


@table("slots", [2, 3])
def test_a_rank_that_is_never_heard_may_be_arbitrarily_slow(slots: int) -> None:
    """Three rows on four ranks: the last has none, and nobody hears from it."""
    plan = form("ag_gemm pull", 4, {"M": 3, "K": 4, "N": 4}, 2, slots=slots)
    assert_right(plan)
    assert_refused(assuming(plan), "TL610")


@tilelink.program("M N, T/R N -> T/R N")
def of_all(rows: Any, mine: Any, out: Any) -> None:
    """Waits for everything, for each tile of its own rows."""
    t, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows)
    tl.tile_store(out, (t, n), tl.tile_load(mine, (t, n)) + tl.sum(tl.tile_load(rows)))


@table(
    "sizes, heard",
    [({"M": 3, "T": 3}, True), ({"M": 1, "T": 3}, False), ({"M": 3, "T": 1}, False)],
    ids=["all", "some send nothing", "some wait for nothing"],
)
def test_who_sends_nothing_is_not_heard_and_who_has_no_tile_hears_nobody(sizes: dict[str, int], heard: bool) -> None:
    """Each rank's rows have a flag of their own, which exists whether or not anybody raises it or waits for it."""
    op = operator("M/R N, T/R N -> T/R N", name="of_every_rank")(lambda x, mine: of_all(gather(x), mine))
    plan = plan_of(op, 3, {**sizes, "N": 2}, gather=sms(2, M=2, push=True), of_all=sms(T=2, N=2))
    assert plan.takes_credits != heard
    assert_right(plan)
    if not heard:
        assert_refused(assuming(plan), "TL610")


@tilelink.program("R/R M N, R M N")
def all_but_the_first(x: Any, box: Any) -> None:
    s, m, n = tl.tile_id(x)
    if s >= 1:
        tl.tile_push_data(box, (s, m, n), 2 * tl.tile_load(x, (s, m, n)))
        tl.producer_tile_notify(box, (s, m, n))


@tilelink.program("R M N -> M N")
def sum_of_the_others(box: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(box))
    for q in tl.tiles(box, axis=0):
        if q >= 1:
            tl.consumer_tile_wait(box, (q, m, n))
            acc += tl.tile_load(box, (q, m, n))
    tl.tile_store(out, (m, n), acc)


def test_a_rank_that_a_test_leaves_out_is_not_heard() -> None:
    @operator("M N -> M N", name="others")
    def op(x: Any) -> Any:
        box = tilelink.symmetric("R M N", like=x)
        all_but_the_first(x, box)
        return sum_of_the_others(box)

    tile = sms(2, M=2, N=2)
    plan = plan_of(op, 3, {"M": 2, "N": 2}, all_but_the_first=tile, sum_of_the_others=tile)
    assert plan.takes_credits
    assert_right(plan)
    assert_refused(assuming(plan), "TL610")


def test_who_pulls_nothing_hears_nobody() -> None:
    """There is one column, of which the first rank alone pulls the rows."""
    op = operator("M/R N -> M N/R", name="turned")(lambda x: to_heads(x))
    plan = plan_of(op, 3, {"M": 3, "N": 1}, to_heads=copy_engine(push=False))
    assert plan.takes_credits
    assert_right(plan)
    assert_refused(assuming(plan), "TL610")


def test_two_copies_for_three_calls_are_used_twice_running() -> None:
    """The third call has the first copy, and so has the next one."""
    plan = form("ag_gemm push", 2, SIZES, 2, slots=3)
    assert_right(plan)
    fewer = replace(plan, buffers=tuple(replace(b, slots=2) if b.shared else b for b in plan.buffers))
    assert assert_refused(fewer, "TL610").message == (
        "rank 0 may write `rows` again while rank 1 still uses it from 1 calls ago"
    )


@table("name", ["ag_gemm pull", "gemm_rs push"])
def test_with_one_slot_nothing_implies_a_credit(name: str) -> None:
    plan = form(name, 2, SIZES, 2, slots=1)
    assert_right(plan)
    assert_refused(assuming(plan), "TL610")
