"""Commands as a user gives them, in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tilelink.cli import app

CIRCLE = ("--schedule", 'scatter=fused("matmul")', "--schedule", 'matmul=sms(M=16, N=16, K=16, order="ring")')
"""Of `gemm_rs`: its ranks wait in a circle."""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and a cache of its own, and no launcher's environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILELINK_BACKEND", "simulated")


def command(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


def lines(done: Result) -> list[str]:
    return [line.strip() for line in done.output.splitlines()]


def error_of(done: Result) -> float:
    """How far a result is from what it is compared with."""
    return float(next(line for line in lines(done) if line.startswith("error")).split()[1])
