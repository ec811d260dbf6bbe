"""docs/operators.md: every operator that the library exports, with its signature and its lines of code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tilelink
import tilelink.language as tl
from benchmarks.compiler import lines
from tilelink import Operator, ops

PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
SECTIONS = dict(re.findall(r"^## `(\w+)`\n\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
ROWS = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+|–) \|$", PAGE, re.MULTILINE)


def test_every_operator_has_a_section_that_begins_with_its_signature() -> None:
    exported = {name: op for name in ops.__all__ if isinstance(op := getattr(ops, name), Operator)}
    assert set(SECTIONS) == set(exported)
    for name, op in exported.items():
        text = " ".join(SECTIONS[name].split())
        assert text.startswith(f"`{op.signature}`"), name


def test_the_table_of_lines() -> None:
    shown = [(name, int(ours), None if by_hand == "–" else int(by_hand)) for name, ours, by_hand in ROWS]
    assert shown == lines.table()


def test_a_tenth_of_what_is_needed_by_hand() -> None:
    known = {name for name, _, by_hand in lines.table() if by_hand is not None}
    assert known == set(lines.BY_HAND) & set(ops.__all__)
    assert [row for row in lines.table() if row[2] is not None and row[1] > row[2] / 10] == []


@tilelink.program("M -> M")
def twice(x: Any, out: Any) -> None:
    """Not counted.

    Nor this.
    """
    # Nor this.
    m = tl.tile_id(out)

    tl.tile_store(
        out,
        m,
        2 * tl.tile_load(x, m),
    )


@tilelink.operator(
    "M -> M",
)
def four_times(x: Any) -> Any:
    return twice(twice(x), name="again")


def test_what_is_counted() -> None:
    assert lines.lines_of(four_times) == 5 + 8
