"""What `tilelink calibrate` measures between ranks: everything that it asks for runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

import tilelink
from tilelink.bench import calibration
from tilelink.bench.calibration import links


def test_every_way_between_ranks_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is one of a plan, and its time is said to grow with the rows."""
    monkeypatch.setattr(calibration, "ROWS", (128, 256))
    monkeypatch.setattr(calibration, "WIDTH", 64)
    monkeypatch.setattr(calibration, "_random", lambda rows, columns: torch.ones(rows, columns))

    def found() -> dict[str, calibration.Figure]:
        rounds: list[float] = []

        def clock(runs: Mapping[str, Callable[[], object]]) -> Mapping[str, float]:
            rounds.append(0.0)
            for name, run in runs.items():
                if name != "nccl":
                    run()
            return {name: 1.0 + len(rounds) for name in runs}

        return links(clock, 2, tilelink.rank())

    for figures in tilelink.launch(found, 2):
        assert set(figures) == {"link", "peer_link", "push", "pull", "nccl", "nccl_call"}
        assert all(figure.value > 0 for figure in figures.values())
