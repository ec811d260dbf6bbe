"""Every diagnostic about a tile program, whole: `messages/*.txt` hold programs, with their signatures and parameters where these
are not `M N -> M N` and `a, out`, and what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton.language  # noqa: F401  # suggestions are made from its names

from tests.frontend.harness import Section, load, message, sections, tile_program
from tests.selection import table

FILES = sorted((Path(__file__).parent / "messages").glob("*.txt"))
CASES = [pytest.param(case, id=f"{path.stem}: {case.name}") for path in FILES for case in sections(path, 7)]


def test_the_files_are_read() -> None:
    assert len(CASES) > 120


@table("case", CASES)
def test_message(case: Section, tmp_path: Path) -> None:
    signature, parameters, *_ = (*case.about, "") if case.about else ("M N -> M N", "a, out")
    module = load(tmp_path, tile_program(signature, parameters, case.program))
    assert message(lambda: module.f.captured, tmp_path) == case.text
