"""Models that are split by plans: torch's styles and `parallelize`, of transformers' models too, in two real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.two_processes import Problem


@pytest.mark.each_triton
@pytest.mark.timeout(320)  # on a machine with other work
def test_two_processes(problem_of: Problem, tmp_path: Path) -> None:
    assert problem_of("tests.nn.style_ranks", tmp_path) == ""
