"""Every mutant of every placed operator is refused, or right; the simulation sees those of one placement."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.mutants import mappings as m
from benchmarks.mutants import table
from benchmarks.mutants.edits import mutant, running
from benchmarks.mutants.mutations import mutations
from benchmarks.mutants.scoring import RIGHT, Placed, unsound
from benchmarks.mutants.simulating import noticed
from benchmarks.mutants.table import read, share
from tests.mapping.oracle import reasons
from tilelink import ops
from tilelink.mapping.judge import judge
from tilelink.mapping.lower import lower

SOME = 20
"""Mutants of an operator that are looked at here."""
TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "mutants-cpu.json"
OPERATORS = m.operators()
SHOWN = {"ag_gemm", "gemm_rs", "gemm_rs_ring"}
"""Operators that have every kind of mutation among them."""
KINDS = {
    "drop a notify",
    "drop a wait (stream)",
    "drop a wait (worker)",
    "drop a wait (argument)",
    "wrong channel",
    "wrong rank (self)",
    "wrong rank (all)",
    "wrong tile",
    "count off by one (+1)",
    "count off by one (-1)",
    "notify before the store",
    "wait after the load",
    "release weakened",
    "acquire weakened",
    "scope weakened",
    "epoch not advanced (expected)",
    "epoch not advanced (call entry)",
    "double buffer removed",
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))


@cache
def mappings(operator: str) -> tuple[m.Mapping, ...]:
    return tuple(m.mappings(OPERATORS[operator]))


def mapping(operator: str, *flags: str) -> m.Mapping:
    return next(f for f in mappings(operator) if all(w in f.name for w in flags))


def test_every_operator_has_mappings() -> None:
    found = {name: {f.name for f in mappings(name)} for name in ("ag_gemm", "gemm_rs")}
    assert "SMs" in found["ag_gemm"], "the default: gather pushes"
    for resources in ("SMs pull", "own kernel push", "own kernel pull", "copy engine push", "copy engine pull"):
        assert any(resources in name for name in found["ag_gemm"]), resources
    assert any("scatter: fused into matmul, reduce: fused into matmul" in name for name in found["gemm_rs"])


def test_a_new_operator_joins_by_existing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "another", ops.ag_gemm.schedule(), raising=False)
    monkeypatch.setattr(ops, "__all__", [*ops.__all__, "another"])
    assert set(m.operators()) == {*OPERATORS, "another"}


def test_the_kinds_of_mutations() -> None:
    found = {x.name for name in SHOWN for f in mappings(name) for x in mutations(f.plan)}
    assert found >= KINDS


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_what_is_accepted_is_right(operator: str) -> None:
    """By the checker of certificates. Of operators that have a great many, some; `make mutants` simulates what is accepted, and
    looks at all. (What data decides the checker takes on trust where the proof does not.)"""
    every = [(at, n) for at, found in enumerate(mappings(operator)) for n, _ in enumerate(mutations(found.plan))]
    assert every
    some = random.Random(0).sample(every, min(len(every), SOME))
    found: Counter[bool] = Counter()
    for at, group in groupby(sorted(some), key=lambda one: one[0]):
        placed = Placed(mappings(operator)[at])
        for _, number in group:
            mutation = placed.mutations[number]
            if mutation.weakened is None:
                accepted = judge(mutation.plan).ok
                found[accepted] += 1
                assert not accepted or reasons(lower(mutation.plan)) == [], (mutation.name, mutation.signal)
            else:
                changed = mutant(placed.original, mutation)
                assert changed is not None
                assert unsound(changed) == "TL406"
    assert found[False] >= 3 * found[True]


def test_an_unchanged_plan_is_not_refused_and_nothing_is_seen() -> None:
    """Or else all of this would show nothing."""
    found = mapping("gemm_rs_ring", "fused")
    original = running(found.plan)
    assert noticed(found, Placed(found).expected, original) is None


def test_the_simulation_sees_them_by_itself() -> None:
    placed = Placed(mapping("ag_gemm", "gather: copy engine push"))
    rows = [placed.row(number) for number, _ in enumerate(placed.mutations)]
    harmful = [r for r in rows if r.caught_by != "accepted"]
    assert {r.caught_by for r in rows} <= {"refused", "accepted"}
    missed = [(r.mutation, r.signal) for r in harmful if r.missed]
    assert len(missed) <= 0.1 * len(harmful), missed


def test_what_is_accepted_does_no_harm() -> None:
    """Means and their weights are stored before any of them is announced, and the weights are announced last."""
    placed = Placed(mappings("flash_decode")[0])
    said = [(x.name, x.signal) for x in placed.mutations]
    row = placed.row(said.index(("drop a wait (worker)", "merge waits for means")))
    assert (row.caught_by, row.simulation_too, row.by) == ("accepted", False, RIGHT)


def test_a_wait_for_one_flag_in_a_loop_over_all_ranks_is_no_wait_for_a_block() -> None:
    """What one poll takes for the flags of all ranks has a lane for each."""
    placed = Placed(mapping("moe_rs", "scatter: copy engine pull whole"))
    said = [(x.name, x.signal.partition(":")[0]) for x in placed.mutations]
    row = placed.row(said.index(("wrong channel", "reduce waits for inbox")))
    assert (row.caught_by, row.simulation_too) == ("refused", True)


def test_a_slow_rank_of_which_nothing_is_chosen_shows_what_is_used_too_early() -> None:
    """Whoever needs none of its rows may be a call ahead of it, and writes what it has not read yet."""
    placed = Placed(mapping("ag_moe", "gather_choice: own kernel pull"))
    said = [(x.name, x.signal) for x in placed.mutations]
    row = placed.row(said.index(("double buffer removed", "buffer choice")))
    assert (row.caught_by, row.seen) == ("refused", "race")


def test_the_table_that_is_committed() -> None:
    """Of mutants that there are now, of each operator; none survives. `tests/project/test_benchmarks.py` holds the page to it."""
    rows, about = read(TABLE), json.loads(TABLE.read_text())["about"]
    now = {
        f.key(n): (x.name, x.signal)
        for name in OPERATORS
        for f in mappings(name)
        for n, x in enumerate(mutations(f.plan))
    }
    assert {r.key: (r.mutation, r.signal) for r in rows}.items() <= now.items()
    assert len(rows) + about["missing"] == len(now)
    assert {r.operator for r in rows} == set(OPERATORS)
    assert {r.caught_by for r in rows} <= {"refused", "accepted"}
    assert share(rows) >= 0.8
    assert all(r.by for r in rows)


def test_rows_that_are_kept_say_what_they_were_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, made = tmp_path / "mutants-cpu.json", table.read(TABLE)[:3]
    for commit in ("a1", "b2", "c3"):
        monkeypatch.setattr(harness, "commit", lambda commit=commit: commit)
        table.write(out, made, kept=table.earlier(out))
    about = json.loads(out.read_text())["about"]
    assert (about["commit"], [e["commit"] for e in about["earlier"]]) == ("c3", ["a1", "b2"])
