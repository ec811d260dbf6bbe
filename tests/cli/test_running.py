"""Running a case: simulated from outside, or as one rank among others, which is how torchrun has it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import tilelink
import tilelink.language as tl
from tilelink import ops
from tilelink.explore.cases import Case
from tilelink.explore.running import Outcome, run_case
from tilelink.runtime.session import current

CASE = Case(ops.ag_gemm, (("M", 65), ("N", 32), ("K", 16)), ranks=3)


def test_every_rank_hears_all_errors() -> None:
    outcomes = tilelink.launch(lambda: run_case(CASE, current(), calls=2), ranks=3)
    assert len({o.errors for o in outcomes}) == 1
    assert len(outcomes[0].errors) == 3
    assert outcomes[0].within(CASE.tolerance)
    assert outcomes[0].errors == run_case(CASE, calls=2, seed=1).errors


@tilelink.program("M N -> M N")
def double(product, out):
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(product, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(product, (m, n)) * 2)
    tl.producer_tile_notify(out, (m, n))


@tilelink.operator("M/R K, K N -> M N")
def doubled(x, weight):
    return double(ops.ag_gemm(x, weight))


def test_a_wrong_result_is_seen() -> None:
    outcome = run_case(replace(CASE, operator=doubled))
    assert outcome.worst == pytest.approx(1, abs=0.01)
    assert not outcome.within(CASE.tolerance)


@pytest.mark.parametrize(("errors", "worst"), [((), 0.0), ((0.1, 0.3, 0.2), 0.3)])
def test_the_worst_rank_decides(errors: tuple[float, ...], worst: float) -> None:
    assert Outcome(errors, 1.0).worst == worst


def test_nan_is_never_within() -> None:
    assert math.isnan(Outcome((0.0, float("nan"), 0.0), 1.0).worst)
    assert not Outcome((0.0, float("nan"), 0.0), 1.0).within(1e9)
