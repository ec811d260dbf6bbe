"""Processes on the CPU: operators run their references there. The library's own: `tests/operators/test_references.py`."""

from __future__ import annotations

from pathlib import Path

from tests.two_processes import Ended


def test_two_processes(both_end_well: Ended, tmp_path: Path) -> None:
    both_end_well("tests.runtime.gloo_ranks", tmp_path)
