"""What `make test` leaves out of products of parameters, and what it does not."""

from __future__ import annotations

import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests import repeats
from tests.left_out import idle, listed
from tests.selection import covering, table

AXES = (("pull", "push"), ("bf16", "f16", "f32"), (1, 2, 3, 4))


def test_of_three_axes_every_two_values_meet() -> None:
    pairs = [set(combinations(enumerate(case), 2)) for case in product(*AXES)]
    kept = covering(pairs)
    assert set().union(*(pairs[n] for n in kept)) == set().union(*pairs)
    assert len(kept) < len(pairs)


def test_of_two_axes_each_value_is_there_and_values_take_turns() -> None:
    cases = list(product(*AXES[1:]))
    kept = [cases[n] for n in covering([set(enumerate(case)) for case in cases])]
    assert [{case[axis] for case in kept} for axis in (0, 1)] == [set(AXES[1]), set(AXES[2])]
    assert len(kept) == 4


CASES = [f"x.py::test_{name}[{value}]" for name in "abc" for value in ("1-8", "2-8", "2-9", "[*]")] + ["x.py::test_d"]


def test_the_last_line_that_names_a_case_says_whether_it_is_left_out(tmp_path: Path) -> None:
    text = "# why\n\nx.py::test_a\n!x.py::test_a[*-8]\nx.py::test_a[2-8]\nx.py::test_b[2-*]\nx.py::test_c[[*]]\nx.py::test_d\n"
    (tmp_path / "list.txt").write_text(text)
    assert [case[6:] for case in CASES if listed(tmp_path / "list.txt", case)] == [
        "test_a[2-8]", "test_a[2-9]", "test_a[[*]]", "test_b[2-8]", "test_b[2-9]", "test_c[[*]]", "test_d",
    ]  # fmt: skip
    assert idle(tmp_path / "list.txt", CASES) == []


def test_a_line_that_names_no_case_is_found(tmp_path: Path) -> None:
    """Unless its file is there and no case of it was collected."""
    lines = ["x.py::test_a[3-*]", "!x.py::test_b[1]", "x.py::test_e", "y.py::test_a", "tests/conftest.py::test_a"]
    (tmp_path / "list.txt").write_text("\n".join(["x.py::test_a", *lines]))
    assert idle(tmp_path / "list.txt", CASES) == lines[:-1]


def test_no_list_leaves_nothing_out(tmp_path: Path) -> None:
    assert not any(listed(tmp_path / "list.txt", case) for case in CASES)


def test_what_takes_long_and_runs_no_line_of_its_own_is_left_out(tmp_path: Path) -> None:
    """The dearest first, and a quarter of each function stays."""
    run = {
        "x.py::test_a[1]": (3.0, [1, 2]),
        "x.py::test_a[2]": (2.0, [1, 2, 3]),
        "x.py::test_a[3]": (1.0, [1, 2]),
        "x.py::test_a[4]": (0.5, [1, 2]),
        "x.py::test_b[1]": (1.0, [4]),
        "x.py::test_b[2]": (0.1, [4]),
        "x.py::test_c": (9.0, [1]),
    }
    rows = [{"test": name, "cpu_s": s, "lines": {"a.py": lines}} for name, (s, lines) in run.items()]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert repeats.found(tmp_path) == ["x.py::test_a[1]", "x.py::test_a[3]", "x.py::test_a[4]", "x.py::test_b[1]"]


# ------------------------------------------------------------------------------------------------------------------ tables
seen: list[object] = []


@table("text, number", [("a", 1), ("b", 2), ("c", 3)])
@table("more", [10, 20])
def test_a_table_is_one_test(text: str, number: int, more: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each row with a folder of its own; `left_out.txt` names the second."""
    assert not (tmp_path / "here").exists()
    (tmp_path / "here").write_text(text)
    seen.append((text, number, more))
    if (number, more) == (3, 20):
        rows = "abc" if request.config.getoption("--all") else "ac"
        assert seen == [(text, 1 + "abc".index(text), more) for text in rows for more in (10, 20)]


def refused(request: pytest.FixtureRequest, test: Any, **fixtures: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # of which kind is asked below
        test(request=request, **fixtures)
    return caught.value


def test_all_rows_that_fail_are_raised_and_named(request: pytest.FixtureRequest) -> None:
    @table("n", range(4), ids=str)
    def odd(n: int) -> None:
        if n == 2:
            pytest.fail("two")
        assert n % 2

    found = refused(request, odd)
    assert isinstance(found, BaseExceptionGroup)
    assert found.message == "2 of 4 rows"
    assert [e.__notes__ for e in found.exceptions] == [["row 1: 0"], ["row 3: 2"]]


def test_one_row_that_fails_is_raised_as_it_is(request: pytest.FixtureRequest) -> None:
    @table("text", ["", "b"])
    def full(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(repeats, "text", text, raising=False)
        assert text

    found = refused(request, full, monkeypatch=None)
    assert isinstance(found, AssertionError)
    assert found.__notes__ == ["row 1: "]
    assert not hasattr(repeats, "text")
