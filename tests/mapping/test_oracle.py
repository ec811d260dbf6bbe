"""The proof and the checker of certificates say the same of every small plan, right or wrong.

A few hundred plans; `python -m benchmarks.compiler.verify_oracle` looks at as many as one likes.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.mapping.corrupt import CORRUPTIONS
from tests.mapping.oracle import Agreement, agreement, asked, assert_refused, assert_right, off_any_shelf
from tests.mapping.plans import plan_of, with_channel, with_signal, with_step
from tests.mapping.shelf import double, patient
from tests.mapping.shelf_graphs import awaited
from tests.operators.language import elsewhere
from tilelink import library, operator, sms, symmetric
from tilelink.ir.plan import Plan
from tilelink.ops import ag_attention
from tilelink.ops.gemm_rs_ring import ring
from tilelink.ops.programs import gather

BLOCKS, EACH = 8, 125


UNMISSED = ("TL604", "TL609")
"""How the proof refuses spoilt plans of which the checker says that nothing goes wrong (`docs/proof.md`): an order leaves out
tiles that nobody misses; something runs ahead of the call and touches nothing of others, or is read when its writer has ended."""


@cache
def looked_at(block: int) -> tuple[Agreement, ...]:
    found = (agreement(random.Random(seed)) for seed in range(block * EACH, block * EACH + EACH))
    return tuple(a for a in found if a is not None)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_same_verdict(block: int) -> None:
    """Of right plans and of wrong ones: otherwise it would show little."""
    found = looked_at(block)
    assert [str(a) for a in found if a.differs and (a.spoilt == "nothing" or a.proof not in UNMISSED)] == []
    assert len(found) > EACH // 3
    assert sum(a.proof == "proved" for a in found) > len(found) // 4
    assert sum(a.proof != "proved" for a in found) > len(found) // 5
    assert len({a.proof for a in found}) >= 5
    assert len({a.spoilt for a in found}) >= len(CORRUPTIONS) // 3


@pytest.mark.parametrize("block", range(2))
def test_there_are_no_false_alarms(block: int) -> None:
    """What the planner makes is proved, unless the checker, too, finds something wrong: an order in which all wait, say."""
    found = [made for k in range(60) if (made := off_any_shelf(random.Random(1000 + block * 60 + k))) is not None]
    assert sum(asked(plan).ok for _, plan in found) > max(25, 0.8 * len(found))


def test_who_tells_the_owners_of_nothing_but_its_own_tiles_tells_itself() -> None:
    """The last of a chain notifies under `owner == s`, so that its tile's owner is itself."""
    rows, tiles = sms(2, M=1, push=True), sms(4, M=1, N=1, order="ring+1")

    @operator("M/R N -> M N", name="around")
    def around(x: Any) -> Any:
        whole = gather(x)
        return double(gather(ring(whole, symmetric("R/R M N", like=whole)), name="again"))

    plan = plan_of(around, 3, {"M": 9, "N": 5}, gather=rows, ring=tiles, again=rows, double=tiles)
    told = next(s for s in plan.signals if s.path == "ring" and s.action == "notify" and s.to == "self")
    assert_right(replace(plan, signals=tuple(replace(s, to="owner") if s is told else s for s in plan.signals)))


def test_who_takes_none_but_its_own_tiles_may_tell_itself() -> None:
    """The owner map gives every row to the rank that the result is of: to tell the rank is to tell the owner."""
    plan = plan_of(elsewhere("m, k -> m // 4 % R"), 2, {"M": 8, "K": 3})
    told = next(s for s in plan.signals if s.path == "work" and s.action == "notify")
    assert told.to == "owner"
    assert_right(with_signal(plan, "work", told.op.param, "notify", to="self"))


def test_flags_that_nobody_needs_may_be_missed() -> None:
    """The stream's end comes before the kernel, whatever flags the kernel looks at."""
    twice = operator("M N -> M N", name="twice")(lambda x: patient(patient(x, name="first"), name="then"))
    step = library("torch.mm", M=2, N=1)
    plan = plan_of(twice, 3, {"M": 2, "N": 3}, first=step, then=sms(2, M=1, N=1))
    assert_right(_by_parts(plan, "first_out"))


def test_a_function_that_takes_all_of_an_axis_waits_for_all_flags_of_it() -> None:
    """Counted by parts, of which the last two ranks have none: they would wait for nothing."""
    both = operator("M N, N N -> M N", name="both")(lambda x, w: awaited(x, patient(w, name="first"), name="then"))
    plan = plan_of(both, 3, {"M": 4, "N": 1}, first=library("torch.mm", M=4), then=library("torch.mm", M=4))
    assert (
        assert_refused(_by_parts(plan, "first_out"), "TL608").message
        == "`first_out` is read before it is known to be written"
    )


def _by_parts(plan: Plan, tensor: str) -> Plan:
    """Its flags are counted anew in each rank's part of the first axis."""
    first, *others = plan.channel(tensor).axes
    return with_channel(plan, tensor, axes=(replace(first, kind="part"), *others))


def test_who_has_no_tile_reads_nothing() -> None:
    """There is one row, so that only the first rank has queries: nobody misses keys that the others do not take."""
    rows, sizes = sms(2, M=2, push=True), {"S": 1, "h": 2, "g": 1, "D": 2}
    plan = plan_of(ag_attention, 3, sizes, gather_k=rows, gather_v=rows, flash=sms(4, S=4, T=8, D=4))
    assert_right(with_step(plan, "gather_k", push=False))


def test_the_plans_are_spoilt_in_every_way() -> None:
    """Three ways fit few plans."""
    spoilt = {a.spoilt for block in range(BLOCKS) for a in looked_at(block)}
    assert {*CORRUPTIONS} - spoilt <= {"other_subtiles", "brought_along", "other_rows"}
