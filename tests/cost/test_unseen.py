"""What the page says of machines that the cost model was not fitted to follows from the file, and the file from the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.model import unseen

FOUND: dict[str, Any] = json.loads(unseen.OUT.read_text())
PAGE = (Path(__file__).parents[2] / "docs" / "cost-model.md").read_text()


def test_the_page_says_what_was_found() -> None:
    assert unseen.summary(FOUND["rows"]) == FOUND["summary"]
    said, calibrated = FOUND["summary"].values()
    for a, b, verb in (
        (said["mean"], calibrated["mean"], "mean error is {} % with"),
        (said["worst"], calibrated["worst"], "worst {} %"),
    ):
        assert verb.format(f"{100 * a:.1f}") in PAGE
        assert f"{100 * b:.1f} %" in PAGE


@pytest.mark.parametrize(
    "row", [FOUND["rows"][1], FOUND["rows"][-1]], ids=lambda row: f"{row['operator']} {row['case']}"
)
def test_the_model_predicts_what_is_recorded(row: dict[str, Any]) -> None:
    for name, us in row["predicted_us"].items():
        found = unseen.predicted(row["operator"], row["sizes"], row["ranks"], unseen.machine_of(name))
        assert found == pytest.approx(us, abs=0.06)
