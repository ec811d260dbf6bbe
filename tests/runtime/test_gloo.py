"""Processes on the CPU: operators run their references there. The library's own: `tests/operators/test_references.py`."""

from __future__ import annotations

from pathlib import Path

from tests.two_processes import Problem


def test_two_processes(problem_of: Problem, tmp_path: Path) -> None:
    assert problem_of("tests.runtime.gloo_ranks", tmp_path) == ""
