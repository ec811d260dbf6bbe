"""Every diagnostic about a tile program, whole: `messages/*.txt` hold programs and what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton.language  # noqa: F401  # suggestions are made from its names

from tests.frontend.harness import Section, load, message, sections, tile_program
from tests.selection import table

FILES = sorted((Path(__file__).parent / "messages").glob("*.txt"))


CASES = [pytest.param(case, id=f"{path.stem}: {case.name}") for path in FILES for case in sections(path, 6)]


def test_the_files_are_read() -> None:
    assert len(CASES) > 120


@table("case", CASES)
def test_message(case: Section, tmp_path: Path) -> None:
    header, body = case.program.split("\n", 1)
    signature, parameters = header.split(" | ") if " | " in header else (header.removesuffix(" |"), "")
    module = load(tmp_path, tile_program(signature, parameters, body))
    assert message(lambda: module.f.captured, tmp_path) == case.text
