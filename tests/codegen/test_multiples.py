"""Lengths that are said to be multiples of 16 are so on every rank."""

from __future__ import annotations

import tilelink
from tests.mapping.plans import emitted, plan_of
from tests.mapping.shelf import double
from tests.selection import table
from tilelink import sms

doubled = tilelink.operator("M N/R -> M N/R", name="doubled")(lambda x: double(x))


@table("columns, said", [(512, True), (496, True), (488, False), (500, False)])
def test_also_where_the_last_rank_holds_nothing(columns: int, said: bool) -> None:
    """Of 488 columns on 32 ranks, 16 each, the last but one has 8 and the last has none."""
    plan = plan_of(doubled, 32, {"M": 16, "N": columns}, double=sms(M=16, N=16))
    (held,) = {line.split("=")[1] for line in emitted(plan).text.splitlines() if line.strip().startswith("N_here = ")}
    assert held.strip().startswith("tl.multiple_of(") is said
