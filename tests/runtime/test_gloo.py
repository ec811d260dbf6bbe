"""Processes on the CPU: operators run their references there. The library's own: `tests/operators/test_references.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_two_processes(tmp_path: Path) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    ranks = [sys.executable, "-m", "tests.runtime.gloo_ranks", str(tmp_path)]
    ended = subprocess.run(ranks, cwd=ROOT, env=environment, timeout=100, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
