# pyright: reportArgumentType=false
"""The proof for a step that waits for its own tiles on other ranks: all take the same tiles in one order."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import plan_of
from tests.selection import table
from tilelink import Operator, sms
from tilelink.ir.plan import Plan
from tilelink.ops import all_reduce_one_shot


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


def planned(ranks: int, m: int, n: int, operator: Operator = all_reduce_one_shot, **flags: int) -> Plan:
    name = "exchange" if operator is all_reduce_one_shot else "late"
    return plan_of(operator.schedule(channels=flags), ranks, {"M": m, "N": n}, **{name: sms(M=1, N=8)})


def test_each_tile_waits_for_itself_elsewhere() -> None:
    assert_right(planned(3, 2, 20))


@table("operator, flags", [(all_reduce_one_shot, {"inbox": 2}), (too_late, {})])
def test_what_would_wait_forever_is_refused(operator: Operator, flags: dict[str, int]) -> None:
    """A flag that two tiles raise, or a notify behind the wait."""
    assert_refused(planned(2, 2, 16, operator, **flags), "TL605")
