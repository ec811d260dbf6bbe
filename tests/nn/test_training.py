"""A transformer that is split over the ranks learns as the whole one does: what benchmarks/gpu_training.py runs on GPUs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch

import tilelink
from benchmarks.gpu_training import Options, compare, main

SMALL = Options(
    vocabulary=32, features=16, hidden=24, heads=2, groups=2, layers=1, sequence=16, batch=2, steps=4, rate=1e-2,
    autocast=False, backend="eager", tolerance=1e-4,
)  # fmt: skip


def test_the_loss_curves_agree() -> None:
    for row in tilelink.launch(lambda: compare(SMALL), 2, races=False):
        assert row["ok"], row
        assert [len(curve) for curve in row["losses"].values()] == [4, 4]
    torch._dynamo.reset()


def test_a_curve_that_does_not_fall_is_not_ok(tmp_path: Path) -> None:
    """One step, and all that the command does on GPUs but for the compiler."""
    given = {**dataclasses.asdict(SMALL), "steps": 1, "out": tmp_path / "made" / "row.json"}
    flags = [f"--{name}={value}" for name, value in given.items() if name != "autocast"]
    assert not main([*flags, "--no-autocast"], ranks=1)
    torch._dynamo.reset()
    row = json.loads((tmp_path / "made" / "row.json").read_text())
    assert row["worst"] <= SMALL.tolerance
    assert (row["ok"], row["ranks"], row["options"]["steps"], row["gpu"]) == (False, 1, 1, None)
