"""A walk over shapes: what it lists is far off its bound, and it finds what chance alone does not."""

from __future__ import annotations

from typing import Any

import pytest

from tilelink import TilelinkError, ops, sms
from tilelink.explore import anomalies as walking
from tilelink.explore.anomalies import Anomaly, anomalies, parse_ranges

RANGES = {"M": (256, 4096), "N": (256, 4096), "K": 1024}
SLOW = ops.ag_gemm.schedule(gather=sms(4, M=128), matmul=sms(M=16, N=16, K=16))


def test_a_bad_schedule_is_far_off_and_a_better_one_is_named() -> None:
    found = anomalies(SLOW, {"M": 2048, "N": 2048, "K": 1024}, ranks=2)
    (only,) = found.anomalies
    assert dict(only.sizes) == {"M": 2048, "N": 2048, "K": 1024}
    assert only.gap > 2
    assert only.better is not None
    assert only.better.us is not None
    assert only.better.us < only.us / 2
    assert only.bound_us <= only.better.us


def fake(case: Any, _: Any) -> Anomaly | None:
    """A lonely peak at M=1000, N=3000, with slopes; no plan for odd K."""
    sizes = dict(case.sizes)
    slope = abs(sizes["M"] - 1000) / 1000 + abs(sizes["N"] - 3000) / 3000
    return Anomaly(case.sizes, 100 * (1 + max(0.0, 3 - 2 * slope)), 100, "compute") if sizes["M"] % 7 else None


def test_it_walks_uphill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "_gap", fake)
    monkeypatch.setattr(walking, "_improved", lambda case, found, *_: found)
    by_chance = anomalies(ops.ag_gemm, RANGES, ranks=2, shapes=80, seed=1)
    monkeypatch.setattr(walking, "WALKS", 0)
    only_chance = anomalies(ops.ag_gemm, RANGES, ranks=2, shapes=80, seed=1)
    assert by_chance.anomalies[0].gap > only_chance.anomalies[0].gap
    assert by_chance.looked == 80
    assert by_chance.refused > 0
    assert all(a.gap >= 0.5 for a in by_chance.anomalies)
    gaps = [a.gap for a in by_chance.anomalies]
    assert gaps == sorted(gaps, reverse=True)


def test_neighbours_are_one_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "_gap", lambda case, _: Anomaly(case.sizes, 200, 100, "compute"))
    monkeypatch.setattr(walking, "_improved", lambda case, found, *_: found)
    found = anomalies(ops.ag_gemm, {"M": (1000, 1900), "N": 256, "K": 256}, ranks=2, shapes=40)
    assert found.looked == 40
    assert len(found.anomalies) == 1


def test_time_ends_it() -> None:
    assert anomalies(ops.ag_gemm, RANGES, ranks=2, budget=0).looked == 0


def test_ranges_are_read() -> None:
    assert parse_ranges("M=256:16384,N=4096") == {"M": (256, 16384), "N": 4096}
    for text in ("M", "M=4:2", "M=1,M=2", "M=0", "256x256x256"):
        with pytest.raises(TilelinkError, match="TL718"):
            parse_ranges(text)
