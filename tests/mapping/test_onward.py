# pyright: reportArgumentType=false
"""The proof for executors that wait in a circle, but for other ranks in one direction only."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import plan_of
from tests.selection import table
from tilelink import Operator, sms
from tilelink.ir.plan import Plan


def relay(first: int, last: int) -> Operator:
    """What comes from the rank before is added to one's own and handed on; rank `first` waits for nobody, and the one that is
    `last` from the end tells nobody."""

    @tilelink.program("R/R M N, R/R M N -> R/R M N")
    def hand_on(x: Any, inbox: Any, out: Any) -> None:
        s, m, n = tl.tile_id(out)
        acc = tl.tile_load(x, (s, m, n))
        if s != first:
            tl.peer_tile_wait(inbox, (s, m, n), s - 1)
            acc += tl.tile_load(inbox, (s, m, n))
        tl.tile_store(out, (s, m, n), acc)
        if s != tl.num_ranks() - last:
            tl.tile_push_data(inbox, (s + 1, m, n), acc)
            tl.peer_tile_notify(inbox, (s + 1, m, n), s + 1)

    @tilelink.operator("R/R M N -> R/R M N", name="relay")
    def op(x: Any) -> Any:
        return hand_on(x, tilelink.symmetric("R/R M N", like=x))

    return op


@tilelink.program("b M K, K N, R/R b M K -> R/R b M N")
def stage(x: Any, weight: Any, inbox: Any, out: Any) -> None:
    s, b, m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    if s != 0:
        tl.peer_tile_wait(inbox, (s, b, m), s - 1)
    for k in tl.tiles(weight, axis=0):
        rows = tl.tile_load(x, (b, m, k))
        if s != 0:
            rows = tl.tile_load(inbox, (s, b, m, k))
        acc = tl.dot(rows, tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (s, b, m, n), acc)
    tl.producer_tile_notify(out, (s, b, m, n))


@tilelink.program("R/R b M N, R/R b M N")
def hand_over(out: Any, inbox: Any) -> None:
    s, b, m, n = tl.tile_id(out)
    if s != tl.num_ranks() - 1:
        tl.consumer_tile_wait(out, (s, b, m, n))
        tl.tile_push_data(inbox, (s + 1, b, m, n), tl.tile_load(out, (s, b, m, n)))
        tl.peer_tile_notify(inbox, (s + 1, b, m, n), s + 1)


@tilelink.operator("b M K, K K -> b M K")
def pipeline(x: Any, weight: Any) -> Any:
    """Two steps, of which each waits for the other: the stages wait for whole rows, in whatever order these are made."""
    inbox = tilelink.symmetric("R/R b M K", like=x)
    y = stage(x, weight, inbox)
    hand_over(y, inbox)
    return y


def relayed(ranks: int, first: int, last: int, m: int = 2, **more: Any) -> Plan:
    return plan_of(relay(first, last), ranks, {"M": m, "N": 20}, hand_on=sms(1, M=1, N=8, **more))


@table("ranks", [1, 2, 3])
@table("order", ["row", "column"])
def test_whoever_is_first_waits_for_nobody(ranks: int, order: str) -> None:
    plan = relayed(ranks, 0, 1, order=order)
    assert_right(plan)


def test_wherever_the_ring_is_open() -> None:
    plan = relayed(4, 2, 3)
    assert_right(plan)


def test_a_closed_ring_is_refused() -> None:
    plan = relayed(3, -1, 0)
    assert_refused(plan, "TL605")


def test_steps_that_wait_for_one_another() -> None:
    placed = {"stage": sms(2, M=2, N=16, K=16), "hand_over": sms(1, M=2, N=16)}
    plan = plan_of(pipeline, 3, {"b": 2, "M": 4, "K": 32}, **placed)
    assert_right(plan)
