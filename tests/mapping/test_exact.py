"""A plan played through: nothing is found in what is right, and what is wrong is found and shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.mapping.plans import form, forms, plan_of, with_channel, with_signal
from tests.operators.test_fused_tiles import of_two
from tilelink import fused, sms
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.mapping import equivalent, redundant, verify
from tilelink.mapping.exact import examine

SIZES = {"M": 7, "K": 3, "N": 4}


@pytest.mark.parametrize("name", sorted(forms()))
def test_nothing_is_found_in_what_is_right(name: str) -> None:
    assert examine(form(name, 3, SIZES, 2)).findings == ()


def elided(plan: Plan, path: str, param: str) -> Plan:
    return with_signal(plan, path, param, "await", action="elided", channel=None, reason="magic")


def test_a_wait_left_out_is_a_race() -> None:
    finding = examine(elided(form("ag_gemm pull", 3, SIZES, 2), "matmul", "rows")).finding
    assert finding is not None
    assert (finding.kind, finding.text) == ("race", "`rows` of rank 0 is read and nothing makes sure that it is there")
    assert finding.first is not None
    assert finding.second is not None
    assert (finding.first.event.path, finding.second.event.path) == ("gather", "matmul")


def test_what_could_be_left_out_is_said() -> None:
    """A rank alone waits for its own arguments' ready flag, which the order of its stream keeps as well."""
    plan = form("ag_gemm pull", 1, SIZES, 2)
    found = redundant(plan)
    assert ("wait", "x", "gather") in [(r.what, r.tensor, r.path) for r in found]
    assert all(r.proof.rule == "equivalent" and "are ordered" in r.proof.text for r in found)
    assert redundant(form("ag_gemm pull", 3, SIZES, 2)) == ()


def test_a_changed_plan_is_equivalent_only_if_it_touches_the_same_in_order() -> None:
    plan = form("ag_gemm pull", 3, SIZES, 2)
    assert equivalent(plan, plan) is not None
    assert equivalent(plan, elided(plan, "matmul", "rows")) is None
    assert equivalent(plan, form("ag_gemm push", 3, SIZES, 2)) is None
    no_credit = replace(plan, credits=tuple(replace(c, implied_by=None) for c in plan.credits))
    assert equivalent(no_credit, plan) is not None


def test_a_word_that_no_other_rank_can_raise_and_nobody_needs() -> None:
    """Tiles of two tensors are pushed and announced one after the other: who waits for the second has both."""
    tile = sms(M=2, N=4, K=4, order="ring+1")
    pushed: dict[str, Any] = {path: fused("twice") for path in ("one", "two")}
    plan = plan_of(of_two, 2, {"M": 8, "K": 8, "N": 4}, twice=tile, **pushed, difference=sms(M=2, N=4))
    assert examine(plan).findings == ()
    first = next(c for c in plan.channels if c.scope == "sys")
    near = with_channel(plan, first.tensor, scope="gpu")
    text = "`one` raises a word of another rank, where only that rank's GPU reaches it"
    assert [(f.kind, f.text) for f in examine(near).findings] == [("plan", text)]
    with pytest.raises(TilelinkError, match="TL612"):
        verify(near)
