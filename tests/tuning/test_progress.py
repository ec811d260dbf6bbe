"""Progress without a terminal: a line now and then on stderr, and none that nobody asked for."""

from __future__ import annotations

import pytest

from tilelink import ops
from tilelink.explore.cases import Case
from tilelink.explore.stress import stress
from tilelink.tuning import progress


def test_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.bar("walking", 4) as advance:
        for step in range(1, 5):
            now[0] += 3
            advance(step, f"{step} of 4")
    with progress.bar("walking", 4, quiet=True) as advance:
        now[0] += 10
        advance(4, "4 of 4")
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", ["walking: 2 of 4", "walking: 4 of 4"])


def test_stress_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "PERIOD", 0.0)
    stress(Case(ops.all_gather, (("M", 8), ("N", 8)), 2), runs=2, calls=1)
    assert [line for line in capsys.readouterr().err.splitlines() if "stress" in line] == [
        "all_gather under stress: 1 of 2 schedules",
        "all_gather under stress: 2 of 2 schedules",
    ]
