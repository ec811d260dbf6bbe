"""The proof of a sum that is fused into who pushes its summands: of this rank's own, each tile has just been told of."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mapping.oracle import verdict_on
from tests.mapping.plans import assert_right, deadlocks, plan_of
from tests.mapping.shelf_graphs import pushed_sum
from tilelink import fused, sms
from tilelink.ir.plan import Plan
from tilelink.mapping import verify


def summed(ranks: int, order: str, **more: Any) -> Plan:
    placed = {"hand_out": sms(M=2, N=4, order=order), "reduce": fused("hand_out")}
    return plan_of(pushed_sum, ranks, {"M": 12, "N": 8}, **placed, **more)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("order", ["ring+1", "row"])
def test_own_rows_come_last_or_part_by_part(ranks: int, order: str) -> None:
    plan = summed(ranks, order)
    assert next(p.text for p in verify(plan).proofs if p.rule == "deadlock").startswith(
        "`hand_out` waits for earlier runs only"
    )
    assert_right(plan)


def test_own_rows_first() -> None:
    plan = summed(2, "ring")
    error = verdict_on(plan).error
    assert error is not None
    assert error.code == "TL605"
    assert deadlocks(plan)


def test_a_word_of_several_tiles_is_not_just_told_of() -> None:
    """The last of them comes behind the first, which waits for it: in the same run."""
    plan = summed(2, "ring+1", channels={"inbox": 4})
    error = verdict_on(plan).error
    assert error is not None
    assert error.code == "TL605"
    assert deadlocks(plan)
