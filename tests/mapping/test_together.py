# pyright: reportArgumentType=false
"""The proof for a step that waits for its own tiles on other ranks: all take the same tiles in one order."""

from __future__ import annotations

from typing import Any

import pytest

import tilelink
import tilelink.language as tl
from tests.mapping.plans import assert_right, deadlocks, plan_of
from tilelink import Operator, sms
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.mapping import verify
from tilelink.ops import all_reduce_one_shot

TOGETHER = "waits in each tile for the same tile of other ranks, which all take in one order"


@tilelink.program("R/R M N, R M N -> M N")
def late(x: Any, inbox: Any, out: Any) -> None:
    """Waits for others before it says that it has sent."""
    s, m, n = tl.tile_id(x)
    tl.tile_push_data(inbox, (s, m, n), tl.tile_load(x, (s, m, n)))
    acc = tl.zeros(tl.tile_shape(x), tl.float32)
    for q in tl.tiles(inbox, axis=0):
        if q != s:
            tl.consumer_tile_wait(inbox, (q, m, n))
            acc += tl.tile_load(inbox, (q, m, n))
    tl.producer_tile_notify(inbox, (s, m, n))
    tl.tile_store(out, (m, n), acc)


@tilelink.operator("M N -> M N")
def too_late(x: Any) -> Any:
    return late(x, tilelink.symmetric("R M N", like=x))


def planned(ranks: int, m: int, n: int, operator: Operator = all_reduce_one_shot, **words: int) -> Plan:
    name = "exchange" if operator is all_reduce_one_shot else "late"
    return plan_of(operator.schedule(channels=words), ranks, {"M": m, "N": n}, **{name: sms(M=1, N=8)})


def proof(plan: Plan) -> str:
    return next(p.text for p in verify(plan).proofs if p.rule == "deadlock")


def test_each_tile_waits_for_itself_elsewhere() -> None:
    small = planned(3, 2, 20)
    assert TOGETHER in proof(small)
    assert_right(small)


def test_it_does_not_look_at_tiles_one_by_one() -> None:
    assert TOGETHER in proof(planned(64, 16, 1024))


@pytest.mark.parametrize(("operator", "words"), [(all_reduce_one_shot, {"inbox": 2}), (too_late, {})])
def test_what_would_wait_forever_is_refused(operator: Operator, words: dict[str, int]) -> None:
    """A word that two tiles raise, or a notify behind the wait."""
    plan = planned(2, 2, 16, operator, **words)
    with pytest.raises(TilelinkError, match=r"^TL605"):
        verify(plan)
    assert deadlocks(plan)
