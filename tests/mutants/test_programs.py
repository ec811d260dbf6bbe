"""Every changed write of a program is refused, does no harm, or is for data to decide as the verdict says."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.mutants import mappings as m
from benchmarks.mutants.programs import judging, table
from benchmarks.mutants.programs.judging import Placed, Row, bare
from benchmarks.mutants.programs.source import source_of
from benchmarks.mutants.programs.table import WRONG
from tilelink.ir.verdict import Verdict

OPERATORS = m.operators()
SHOWN = ("ag_gemm", "all_to_all", "ep_dispatch", "gemm_rs_ring")
"""Operators that are looked at here, and that have every kind of change among them. `make mutants` looks at all."""
TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "mutants-programs-cpu.json"
SOME = 12
"""Changes of each of them."""
KINDS = {"drop", "guard", "loop", "mask", "shift", "fix", "swap", "twice", "shrink", "test", "load"}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))


@cache
def placed(operator: str) -> tuple[Placed, ...]:
    return tuple(Placed(f) for f in m.mappings(OPERATORS[operator]))


def number(found: Placed, step: str, kind: str, how: str) -> int:
    every = enumerate(found.found)
    return next(n for n, (s, _, one) in every if (s.path, one.kind) == (step, kind) and how in one.how)


@pytest.mark.parametrize("operator", SHOWN)
def test_a_text_that_is_not_changed_gives_the_same_program(operator: str) -> None:
    """Or else each change would be of something else as well."""
    for step in placed(operator)[0].mapping.plan.steps:
        source = source_of(step.step.program)
        changed = judging.changed(placed(operator)[0].mapping.plan, step, source.captured(source.node))
        assert bare(changed.step(step.path).step.program.body) == bare(step.step.program.body)


def test_the_kinds_of_changes() -> None:
    assert {one.kind for name in SHOWN for p in placed(name) for _, _, one in p.found} == KINDS


@pytest.mark.parametrize("operator", SHOWN)
def test_no_change_survives(operator: str) -> None:
    every = [(p, n) for p in placed(operator) for n in range(len(p.found))]
    for found, n in random.Random(0).sample(every, SOME):
        row = found.row(n)
        assert row.verdict not in (*WRONG, "taken"), row


@pytest.mark.parametrize(
    ("step", "kind", "how", "verdict"),
    [
        ("matmul", "drop", "dropped", "survived"),
        ("matmul", "mask", "tl.size(out, 1) - 1", "survived"),
        ("gather", "loop", "range(0)", "refused"),  # a pull in a loop is no copy program
        ("gather", "drop", "dropped", "survived"),
        ("matmul", "guard", "tl.num_ranks() > 0", "equivalent"),
        ("matmul", "load", "entry 1", "other values"),
    ],
)
def test_the_simulated_ranks_tell_what_a_blind_proof_lets_through(
    monkeypatch: pytest.MonkeyPatch, step: str, kind: str, how: str, verdict: str
) -> None:
    """What is never written is seen whatever lies there, and another value is not mistaken for it."""
    monkeypatch.setattr(judging, "verify", lambda plan: Verdict(True, ()))
    found = next(p for p in placed("ag_gemm") if p.mapping.name == "gather: SMs pull")
    assert found.row(number(found, step, kind, how)).verdict == verdict


@pytest.mark.parametrize(("entry", "verdict"), [("entry 0: e + 1", "assumed"), ("entry 2", "refused")])
def test_a_load_where_data_says_is_trusted_to_be_of_what_was_written(entry: str, verdict: str) -> None:
    """Of a tensor that is `partial`, and along the axes that data says; along others a position past the end is seen."""
    found = placed("ep_combine")[0]
    assert found.row(number(found, "collect", "load", entry)).verdict == verdict


def test_what_is_harmed_in_one_placement_is_simulated_in_all() -> None:
    rows = [Row("op", f"placed {k}", "step", 0, "mask", "how", "what", "taken", "not simulated") for k in range(5)]
    assert len(table.to_simulate(rows, 2)) == 2
    seen = [replace(rows[0], verdict="equivalent", by="a"), replace(rows[1], verdict="other values", by="b")]
    assert table.to_simulate([*seen, *rows[2:]], 2) == []
    assert {r.verdict for r in table.spread([*seen, *rows[2:]])[2:]} == {"other values"}
    harmed = [replace(rows[0], verdict="survived"), seen[1], *rows[2:]]
    assert {key[1] for key in table.to_simulate(harmed, 2)} == {"placed 2", "placed 3", "placed 4"}


def test_rows_are_read_to_the_last_whole_line(tmp_path: Path) -> None:
    file, row = tmp_path / "rows.jsonl", Row("op", "SMs", "step", 3, "mask", "how", "what", "taken", "not simulated")
    for verdict in ("taken", "equivalent"):
        table.appended(file, replace(row, verdict=verdict))
    file.write_text(file.read_text() + '{"operator": "op", "sch')
    assert [r.verdict for r in table.read(file).values()] == ["equivalent"]


def test_the_table_that_is_committed() -> None:
    """Of the changes that there are now; nobody's is let through."""
    found = json.loads(TABLE.read_text())
    assert (found["wrong"], found["missing"]) == ([], 0)
    assert set(found["by operator"]) == set(OPERATORS)
    assert set(found["by kind"]) == KINDS
    for name in SHOWN:
        assert found["by operator"][name]["made"] == sum(len(p.found) for p in placed(name))


def test_the_page_tells_of_the_table() -> None:
    every = json.loads(TABLE.read_text())["all"]
    said = " ".join((TABLE.parents[2] / "docs" / "proof.md").read_text().split())
    for sentence in (
        f"Of {every['made']:,} such mutants {every['refused']:,} are refused",
        f"{every['assumed']:,} are for data to decide",
        f"{every['equivalent']:,} give the same numbers and {every['other values']:,} others",
    ):
        assert sentence in said, sentence
