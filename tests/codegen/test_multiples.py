"""Lengths that are said to be multiples of 16 are so on every rank."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tests.mapping.plans import emitted, plan_of
from tests.selection import table
from tilelink import sms


@tilelink.program("M N -> M N")
def doubled(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) * 2)


@tilelink.operator("M N/R -> M N/R")
def double(x: Any) -> Any:
    return doubled(x)


@table("columns, said", [(512, True), (496, True), (488, False), (500, False)])
def test_also_where_the_last_rank_holds_nothing(columns: int, said: bool) -> None:
    """Of 488 columns on 32 ranks, 16 each, the last but one has 8 and the last has none."""
    plan = plan_of(double, 32, {"M": 16, "N": columns}, doubled=sms(M=16, N=16))
    (held,) = {line.split("=")[1] for line in emitted(plan).text.splitlines() if line.strip().startswith("N_here = ")}
    assert held.strip().startswith("tl.multiple_of(") is said
