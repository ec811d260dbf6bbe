"""The table of diagnostics is complete: every code that is raised is in it, and every one in it is pinned by a test."""

from __future__ import annotations

import re
from pathlib import Path

from tilelink import frontend
from tilelink.frontend.codes import CODES

HERE = Path(__file__).parent
SOURCES = [*Path(str(frontend.__file__)).parent.glob("*.py"), Path(str(frontend.__file__)).parents[1] / "language.py"]


def codes(text: str) -> set[str]:
    return set(re.findall(r"TL\d{3}", text))


def test_what_is_raised_is_in_the_table() -> None:
    raised = set().union(*(codes(p.read_text()) for p in SOURCES if p.name != "codes.py"))
    assert raised == set(CODES)


def test_every_code_is_pinned() -> None:
    texts = [p.read_text() for p in HERE.rglob("*") if p.suffix in (".py", ".txt") and p.name != Path(__file__).name]
    pinned = {m for text in texts for m in re.findall(r"(TL\d{3}): ", text)}
    grammar = codes((HERE / "test_grammar.py").read_text())
    assert set(CODES) - pinned - grammar == set()
