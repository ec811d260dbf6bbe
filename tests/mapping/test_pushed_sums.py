"""The proof of a sum that is fused into who pushes its summands: of this rank's own, each tile has just been told of."""

from __future__ import annotations

from typing import Any

from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import plan_of
from tests.mapping.shelf_graphs import pushed_sum
from tests.selection import table
from tilelink import fused, sms
from tilelink.ir.plan import Plan


def summed(ranks: int, order: str, **more: Any) -> Plan:
    placed = {"hand_out": sms(M=2, N=4, order=order), "reduce": fused("hand_out")}
    return plan_of(pushed_sum, ranks, {"M": 12, "N": 8}, **placed, **more)


@table("ranks", [2, 3])
@table("order", ["ring+1", "row"])
def test_own_rows_come_last_or_part_by_part(ranks: int, order: str) -> None:
    assert_right(summed(ranks, order))


def test_own_rows_first() -> None:
    error = assert_refused(summed(2, "ring"), "TL605")
    assert error.hint == (
        'order `hand_out` so that what others wait for comes first, such as order="ring+1" (now "ring")'
    )


def test_a_flag_of_several_tiles_is_not_just_told_of() -> None:
    """The last of them comes behind the first, which waits for it: in the same run."""
    error = assert_refused(summed(2, "ring+1", channels={"inbox": 4}), "TL605")
    assert error.hint == (
        "place `reduce` on workers of its own, as tilelink.sms(1): here it waits before the tiles that it waits for"
    )
    hand_out, reduce = sms(M=2, N=4, order="ring+1"), sms(1)
    plan = plan_of(pushed_sum, 2, {"M": 12, "N": 8}, hand_out=hand_out, reduce=reduce, channels={"inbox": 4})
    assert_right(plan)
