"""Every diagnostic about a tile program, whole: `messages/*.txt` hold programs and what is said about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import triton.language  # noqa: F401  # suggestions are made from its names

from tests.frontend.harness import load, message, tile_program
from tests.selection import table

FILES = sorted((Path(__file__).parent / "messages").glob("*.txt"))


@dataclass(frozen=True)
class Case:
    name: str
    signature: str
    parameters: str
    body: str
    text: str


def read(path: Path) -> list[Case]:
    cases: list[Case] = []
    for section in path.read_text(encoding="utf-8").split("## ")[1:]:
        program, text = section.split("\n--\n")
        name, header, body = program.split("\n", 2)
        signature, parameters = header.split(" | ") if " | " in header else (header.removesuffix(" |"), "")
        cases.append(Case(name, signature, parameters, body, text.strip("\n")))
    return cases


CASES = [pytest.param(case, id=f"{path.stem}: {case.name}") for path in FILES for case in read(path)]


def test_the_files_are_read() -> None:
    assert len(CASES) > 120


@table("case", CASES)
def test_message(case: Case, tmp_path: Path) -> None:
    module = load(tmp_path, tile_program(case.signature, case.parameters, case.body))
    assert message(lambda: module.f.captured, tmp_path) == case.text
