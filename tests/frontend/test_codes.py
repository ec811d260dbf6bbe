"""Every diagnostic of the frontend is pinned by a test of it. (The page of errors lists all that are raised: tests/project.)"""

from __future__ import annotations

import re
from pathlib import Path

from tilelink import frontend

HERE = Path(__file__).parent
SOURCES = [*Path(str(frontend.__file__)).parent.glob("*.py"), Path(str(frontend.__file__)).parents[1] / "language.py"]


def codes(text: str) -> set[str]:
    return set(re.findall(r"TL\d{3}", text))


def test_every_code_is_pinned() -> None:
    raised = set().union(*(codes(p.read_text()) for p in SOURCES))
    texts = [p.read_text() for p in HERE.rglob("*") if p.suffix in (".py", ".txt") and p.name != Path(__file__).name]
    pinned = {m for text in texts for m in re.findall(r"(TL\d{3}): ", text)}
    grammar = codes((HERE / "test_grammar.py").read_text())
    assert raised - pinned - grammar == set()
