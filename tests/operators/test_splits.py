# pyright: reportArgumentType=false
"""Signals of what is split at run time: its tiles are counted on the device, and the last of them notifies."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import tilelink
from tests.mapping.oracle import assert_refused, assert_right
from tests.operators import splits as ops
from tests.operators.problems import FEW, Problem, assert_solves
from tests.selection import table
from tilelink import Operator, TilelinkError, copy_engine, sms
from tilelink.ir.partition import Channel
from tilelink.ir.plan import Plan
from tilelink.ir.topology import Topology

SEGMENTS, H, N, T = 3, 12, 20, 9
STARTS = {
    "ragged": [0, 7, 8, 21],
    "empty segments": [0, 0, 21, 21],
    "no rows at all": [0, 0, 0, 0],
    "one row": [0, 0, 1, 1],
}
MADE = sms(P=4, N=8, H=8, order="column")
SCHEDULES: dict[str, Operator] = {
    "in one kernel": ops.route.schedule(scaled=MADE, picked=sms(2, T=4, N=8)),
    "in a kernel of its own": ops.route.schedule(scaled=MADE, picked=sms(2, T=4, N=16, own_kernel=True)),
    "row by row": ops.route.schedule(scaled=sms(P=4, N=8, H=8), picked=sms(2, T=4, N=8)),
    "waiting for all": ops.route_whole.schedule(scaled=MADE, picked_whole=sms(2, T=4, N=8)),
    "copied on the way": ops.route_copies.schedule(scaled=MADE, copied=sms(1, M=4), picked_whole=sms(2, T=4, N=8)),
}


def inputs(start: list[int], salt: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(salt)
    rows = start[-1]
    at = torch.randint(-1, rows, (T,), generator=generator) if rows else torch.full((T,), -1)
    x, weight = torch.randn(21, H, generator=generator), torch.randn(SEGMENTS, H, N, generator=generator)
    return x, torch.tensor(start, dtype=torch.int32), weight, at.to(torch.int32)


def wanted(x: torch.Tensor, start: torch.Tensor, weight: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    ends = start.tolist()
    made = [x[a:b] @ weight[e] for e, (a, b) in enumerate(pairwise(ends))]
    rows = torch.cat([*made, torch.zeros(1, N)])
    return rows[at.long()] * (at >= 0)[:, None]


@pytest.mark.parametrize("name", [pytest.param("in one kernel", marks=pytest.mark.each_triton), *list(SCHEDULES)[1:]])
def test_against_torch(name: str) -> None:
    """One plan for all tables, call after call, each slot more than once."""
    operator = SCHEDULES[name]
    given = [inputs(start, salt) for salt, start in enumerate([*STARTS.values()] * 2)]
    problems = [Problem([one], [(wanted(*one),)]) for one in given]
    for seed in range(2):
        assert_solves(operator, problems, seed=seed, device=FEW)


def test_debug_mode_ends_although_the_table_is_wrong() -> None:
    """Without a good table there are no tiles, and who waits for them must not wait forever."""
    operator = SCHEDULES["in one kernel"]
    x, _, weight, at = inputs(STARTS["ragged"])
    broken = torch.tensor([0, 9, 4, 21], dtype=torch.int32)
    with pytest.raises(TilelinkError) as caught:
        tilelink.launch(lambda: operator(x, broken, weight, at), 1, device=FEW, debug=True)
    assert caught.value.code == "TL473"


# --------------------------------------------------------------------------------------------------------------- the plan
def planned(name: str) -> Plan:
    return SCHEDULES[name].plan(*inputs(STARTS["ragged"]), topology=Topology(1, device=FEW))


def channel(plan: Plan) -> Channel:
    (found,) = plan.channels
    return found


def test_a_flag_for_each_column_of_tiles() -> None:
    found = channel(planned("in one kernel"))
    assert (found.joined, found.scope, found.adds) == (True, "gpu", True)
    assert [(a.axis, a.span) for a in found.axes] == [(1, 8)]
    whole = channel(planned("waiting for all"))
    assert (whole.joined, whole.axes) == (True, ())


@table("name", SCHEDULES)
def test_the_plan_is_proven(name: str) -> None:
    assert_right(planned(name))


def test_a_plan_that_counts_in_another_way_is_refused() -> None:
    """Every tile would notify."""
    plan = planned("in one kernel")
    assert_refused(replace(plan, channels=(replace(channel(plan), joined=False),)), "TL607")


REFUSED: dict[str, tuple[str, Operator]] = {
    "they are counted on the rank that makes them, and other ranks write or read this tensor": (
        "dst",
        ops.route_everywhere.schedule(scaled=MADE, sent=sms(1, M=4, push=True), picked_of_all=sms(2, T=4, N=8)),
    ),
    "a copy engine cannot count them (`copied`)": (
        "dst",
        ops.route_copies.schedule(scaled=MADE, copied=copy_engine(M=4, push=False), picked_whole=sms(T=4, N=8)),
    ),
    "all of them share a flag, whatever `channels` says": (
        "scaled_out",
        SCHEDULES["in one kernel"].schedule(channels={"scaled_out": 16}),
    ),
}


@table("why", REFUSED)
def test_what_cannot_be_counted(why: str) -> None:
    tensor, operator = REFUSED[why]
    with pytest.raises(TilelinkError) as caught:
        operator.plan(*inputs(STARTS["ragged"]), topology=Topology(1, device=FEW))
    assert caught.value.code == "TL303"
    assert caught.value.message == f"`{tensor}` is split at run time and cannot be signalled so"
    assert caught.value.why == f"the number of tiles of a run-time split is known on the device only: {why}"
