"""No false alarms: what the planner makes of the library's operators is proved, at any size, and does run."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mapping.plans import assert_right, form, forms
from tilelink.ir.plan import Plan
from tilelink.mapping.judge import verify

NAMES = sorted(forms())
RULES = [
    "form",
    "order in a tile",
    "elided signals",
    "frame of a call",
    "bounds",
    "coverage",
    "orders",
    "counts",
    "waits",
    "deadlock",
    "epochs",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", range(1, 9))
def test_ragged_rows(name: str, ranks: int) -> None:
    """Each number of ranks with three kinds of rows, each kind with four numbers of ranks."""
    for rows in (1, 33 * ranks, 997 * ranks - 5) if (ranks + NAMES.index(name)) % 2 else (3, 16 * ranks, 997 * ranks):
        verdict = verify(form(name, ranks, {"M": rows, "K": 40, "N": 50}))
        left_out = next(p for p in verdict.proofs if p.rule == "elided signals")
        assert "exact graph" not in left_out.text  # shown by structure, and so in worlds of any size


@pytest.mark.parametrize("name", NAMES)
def test_ranks_without_rows(name: str) -> None:
    assert verify(form(name, 8, {"M": 5, "K": 8, "N": 16}))


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_slots(slots: int) -> None:
    for name in ("ag_gemm pull", "gemm_rs fused", "gemm_rs_ring"):
        assert verify(form(name, 4, {"M": 64, "K": 16, "N": 32}, slots=slots))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    ranks=st.integers(1, 8),
    rows=st.integers(1, 3000),
    columns=st.integers(1, 100),
    tile=st.sampled_from([1, 2, 16, 64]),
)
def test_any_size(name: str, ranks: int, rows: int, columns: int, tile: int) -> None:
    assert verify(form(name, ranks, {"M": min(rows, 200 * tile), "K": 33, "N": min(columns, 20 * tile)}, tile))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    ranks=st.integers(1, 5),
    rows=st.integers(1, 21),
    columns=st.integers(1, 5),
    tile=st.sampled_from([1, 2, 4]),
)
def test_what_is_proved_is_right(name: str, ranks: int, rows: int, columns: int, tile: int) -> None:
    """By the exact graph, event by event."""
    plan = form(name, ranks, {"M": rows, "K": 3, "N": columns}, tile)
    assert_right(plan)


def test_every_rule_says_what_it_found() -> None:
    verdict = verify(form("gemm_rs fused, reduced in the epilogue", 4, {"M": 64, "K": 16, "N": 48}))
    assert [p.rule for p in verdict.proofs] == RULES
    assert all(p.text and p.ms >= 0 for p in verdict.proofs)
    said = {p.rule: p.text for p in verdict.proofs}
    assert said["coverage"] == "each element written once: `matmul_out`, `dst`, `reduce_out`"
    assert said["counts"] == "targets of 12 words on each of 4 ranks equal the notifies that exist"
    assert said["deadlock"] == (
        "`matmul` waits for earlier runs only, round the ring from the rows of rank + 1; "
        "one worker of each would do, with all workers resident (64 of `matmul`)"
    )
    assert said["epochs"] == "2 slots: every rank hears from every rank in a call, so `dst` needs no credit"


def test_a_plan_without_circles_says_so() -> None:
    verdict = verify(form("ag_gemm pull", 4, {"M": 64, "K": 16, "N": 48}))
    assert verdict.proofs[9].text == (
        "no executor waits for itself (`gather` → `matmul`), with all workers resident (2 of `gather`, 62 of `matmul`)"
    )


def _best_of_three(plan: Plan) -> float:
    """Seconds of this thread, whatever else the machine does."""
    best = float("inf")
    for _ in range(3):
        started = time.thread_time()
        verify(plan)
        best = min(best, time.thread_time() - started)
    return best


@pytest.mark.parametrize("name", ["ag_gemm pull", "ag_gemm copy engine push", "gemm_rs fused, reduced in the epilogue"])
def test_64_ranks_take_no_time(name: str) -> None:
    """About 10 ms; the margin is for machines that do something else as well."""
    assert _best_of_three(form(name, 64, {"M": 8192, "K": 4096, "N": 5504}, 128)) < 0.06


@pytest.mark.parametrize("name", ["ag_gemm pull", "gemm_rs fused, reduced in the epilogue", "gemm_rs_ring"])
def test_1024_ranks_with_800000_tiles_each(name: str) -> None:
    """Less than a second each. Planned with one slot, since what implies a credit is not looked for then."""
    plan = form(name, 1024, {"M": 1024 * 997, "K": 4096, "N": 12800}, 128, slots=1)
    if name != "gemm_rs_ring":
        plan = replace(
            plan,
            schedule=replace(plan.schedule, slots=2),
            buffers=tuple(replace(b, slots=2) for b in plan.buffers),
            credits=tuple(replace(c, implied_by=c.tensor) for c in plan.credits),
        )
    assert _best_of_three(plan) < 2
