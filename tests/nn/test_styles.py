"""Models that are split by plans: torch's styles and `parallelize`, of transformers' models too, in two real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.each_triton
@pytest.mark.timeout(320)  # on a machine with other work
def test_two_processes(tmp_path: Path) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [sys.executable, "-m", "tests.nn.style_ranks", str(tmp_path)]
    ended = subprocess.run(ranks, cwd=ROOT, env=environment, timeout=300, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
