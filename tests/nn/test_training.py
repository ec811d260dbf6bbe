"""A transformer that is split over the ranks learns as the whole one does: what benchmarks/gpu/training.py runs on GPUs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import tilelink
from benchmarks import render
from benchmarks.gpu.training import Options, compare, data, main

SMALL = Options(
    vocabulary=32, features=16, hidden=24, heads=2, groups=2, layers=1, sequence=16, batch=2, steps=4, rate=1e-2,
    autocast=False, backend="eager", tolerance=1e-4,
)  # fmt: skip


def test_the_loss_curves_agree() -> None:
    for row in tilelink.launch(lambda: compare(SMALL), 2, races=False):
        assert row["ok"], row
        assert [len(curve) for curve in row["losses"].values()] == [4, 4]


def test_a_curve_that_does_not_fall_is_not_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step, and all that the command does on GPUs but for the compiler; then the page that shows it."""
    given = {**dataclasses.asdict(SMALL), "steps": 1, "out": tmp_path / "made" / "training-simulated-1.json"}
    flags = [f"--{name}={value}" for name, value in given.items() if not isinstance(value, bool)]
    assert not main([*flags, "--no-autocast"], ranks=1)
    found = json.loads((tmp_path / "made" / "training-simulated-1.json").read_text())
    (row,) = found["rows"]
    assert row["worst"] <= SMALL.tolerance
    assert (row["ok"], row["options"]["steps"], found["about"]["gpus"], found["about"]["gpu"]) == (False, 1, 1, None)
    monkeypatch.setattr(render, "RESULTS", tmp_path / "made")
    monkeypatch.setattr(render, "PAGE", tmp_path / "performance.md")
    lines = render.page().splitlines()
    loss = f"{row['losses']['split'][0]:.4f}"
    assert [line.split(" | ")[1] for line in lines if line.startswith("| split |")] == [loss]
    assert (tmp_path / "training-simulated-1.svg").is_file()


def test_each_token_follows_from_the_one_before_but_for_one_in_eight() -> None:
    options = dataclasses.replace(SMALL, vocabulary=4096, sequence=512, batch=4)
    tokens, following = data(options, 3, "cpu")
    assert tokens.shape == following.shape == (4, 512)
    assert torch.equal(tokens[:, 1:], following[:, :-1])
    follows = (5 * tokens + 7) % options.vocabulary == following
    assert 0.8 < follows.float().mean() < 0.95
    again, _ = data(options, 4, "cpu")
    assert not torch.equal(tokens, again)
