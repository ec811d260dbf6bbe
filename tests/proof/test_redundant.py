"""Which awaits and flags a plan could do without, and that without them it is right."""

from __future__ import annotations

import pytest

from benchmarks.mutants.mappings import mappings
from tests.mapping.oracle import reasons
from tests.mapping.plans import form
from tests.proof.test_tables import loops_of, with_loop
from tilelink import ops
from tilelink.ir.lowered import READY, Await, Lowered
from tilelink.mapping.lower import lower
from tilelink.proof.redundant import redundant

SIZES = {"M": 7, "K": 3, "N": 4}


def said(lowered: Lowered) -> list[str]:
    return [str(r) for r in redundant(lowered)]


def test_a_rank_alone_need_not_wait_for_its_own_argument() -> None:
    """The order of its stream keeps that as well. Three ranks need all that they wait for."""
    alone = said(lower(form("ag_gemm pull", 1, SIZES, 2)))
    assert f"`gather` waits for `{READY}`" in alone
    assert f"flags `{READY}`" in alone
    assert said(lower(form("ag_gemm pull", 3, SIZES, 2))) == []


def test_one_of_several_flags_of_a_tile_tells_of_all() -> None:
    """Means and their weights are stored before any of them is announced, and the weights are announced last."""
    found = said(lower(next(mappings(ops.flash_decode)).plan))
    assert "`merge` waits for `means`" in found
    assert "`merge` waits for `logs`" not in found


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_could_be_left_out_can_be(ranks: int) -> None:
    """By the checker, which knows nothing of how it was found."""
    lowered = lower(form("gemm_rs push", ranks, SIZES, 2))
    for one in (r for r in redundant(lowered) if r.path is not None):
        left = lowered
        for loop in (x for x in loops_of(lowered) if x.path == one.path):
            body = tuple(o for o in loop.body if not (isinstance(o, Await) and o.flags == one.flags))
            left = with_loop(left, loop, body=body)
        assert reasons(left) == []
