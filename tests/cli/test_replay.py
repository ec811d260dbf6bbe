"""A failed simulated run comes again from its token alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilelink
from tests.cli.commands import command
from tests.cli.test_running import doubled
from tests.simulated.breaking import Break, breaking, dropped
from tilelink import ops
from tilelink.errors import TilelinkError
from tilelink.explore.cases import Case
from tilelink.explore.naming import operator_named
from tilelink.explore.placements import parse_placement, placement_text
from tilelink.explore.replay import Recipe, recipe
from tilelink.explore.running import run_case
from tilelink.explore.stress import policies, stress
from tilelink.ir.schedule import Placement
from tilelink.runtime.simulated import Policy, RaceError

__all__ = ["breaking"]

SIZES = (("M", 40), ("N", 32), ("K", 32))
HEADS = (("S", 32), ("h", 1), ("g", 1), ("D", 16))
TOKEN = re.compile(r"tilelink replay (run1-[\w-]+)")


def small() -> Case:
    gather, matmul = tilelink.sms(2, M=16), tilelink.sms(M=16, N=16, K=16, order=("ring", "group 2"))
    return Case(ops.ag_gemm.schedule(gather=gather, matmul=matmul), SIZES, 2)


words = st.text("abcxyz_.:/=1", max_size=20)
texts, numbers = st.lists(words).map(tuple), st.integers()


@given(st.builds(Recipe, words, words, words, texts, words, numbers, numbers, words, st.booleans()))
def test_a_recipe_reads_back_from_its_token(made: Recipe) -> None:
    assert re.fullmatch(r"run1-[\w-]+", made.token)
    assert Recipe.parse(made.token) == made


@given(st.one_of(st.text(max_size=40), st.text("abcdefghij0123456789-_", max_size=60).map(lambda t: f"run1-{t}")))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(TilelinkError, match="TL709"):
        Recipe.parse(text)


@pytest.mark.parametrize(
    "placement",
    [
        tilelink.sms(),
        tilelink.sms(3, M=16, order=("ring", "group 4"), push=True, num_warps=8, num_stages=2, own_kernel=True),
        tilelink.copy_engine(push=False),
        tilelink.copy_engine(M=64, order="ring+1", streams=2),
        tilelink.fused("matmul"),
        tilelink.fused("matmul", behind=True, N=64),
        tilelink.fused("matmul", behind=None),
        tilelink.library("torch.mm", M=64),
        tilelink.library("tilelink.libraries.attention", T="T/R", streams=2),
    ],
)
def test_a_placement_reads_back_from_its_text(placement: Placement) -> None:
    text = placement_text("a.b", placement)
    assert text is not None
    assert parse_placement(text) == ("a.b", placement)


def test_a_recipe_has_what_simulated_ranks_run() -> None:
    kernel = tilelink.sms(S=16, T=16)
    placed = tilelink.library("tilelink.libraries.attention", T="T/R", otherwise=kernel)
    assert placement_text("flash", placed) is None
    made = recipe(Case(ops.ag_attention.schedule(flash=placed), HEADS, 2), 1, "random-0", False)
    assert made is not None
    assert [parse_placement(text) for text in made.schedule] == [("flash", kernel)]


def test_a_sort_key_has_no_text() -> None:
    case = Case(ops.ag_gemm.schedule(matmul=tilelink.sms(M=16, order=lambda tile, rank, ranks: tile)), SIZES, 2)
    assert recipe(case, 1, "random-0", False) is None


def test_a_failure_prints_its_token_and_the_token_repeats_it(breaking: Break) -> None:
    breaking(dropped("shmem.local_wait_until(rows_words"))
    with pytest.raises(RaceError) as caught:
        run_case(small(), calls=2, policy=Policy("straggler", 4, 1), delayed_stores=True)
    found = TOKEN.search("\n".join(caught.value.__notes__))
    assert found is not None
    made = Recipe.parse(found[1])
    assert (made.operator, made.ranks, made.calls, made.policy) == ("ag_gemm", "2", 2, "straggler-1-4")
    assert made.delayed_stores
    again = command("replay", found[1], code=1).output
    assert str(caught.value) in again
    assert found[0] in again


def test_a_run_that_was_right_is_right_again() -> None:
    outcome = run_case(small(), policy=Policy("priorities", 2))
    found = TOKEN.search(outcome.again[0])
    assert found is not None
    assert "priorities-2" in command("replay", found[1]).output


def test_stress_ends_at_the_first_failure(breaking: Break) -> None:
    placed = ["--schedule", "gather=sms(2, M=16)", "--schedule", "matmul=sms(M=16, N=16, K=16)"]
    good = command("stress", "ag_gemm", "--shape", "40x32x32", "--world", "2", "--runs", "3", *placed)
    assert "3, all right" in good.output
    breaking(dropped("shmem.async_load_fence()"))
    with pytest.raises(RaceError):
        stress(small(), runs=3)


def test_stress_says_that_numbers_are_wrong() -> None:
    """Of an operator that computes something else than its signature states."""
    with pytest.raises(TilelinkError) as caught:
        stress(replace(small(), operator=doubled), runs=1)
    first, *_, why, hint = str(caught.value).splitlines()
    assert re.sub(r"[\d.]+e[+-]\d+", "E", first) == "TL710: wrong numbers: a relative error of E, at most E is right"
    assert why == "  why: the run under the policy random-0 differs from torch in fp32"
    assert hint == "  do:  if no race is reported, the tile programs compute something else than the signature states"
    assert TOKEN.search("\n".join(caught.value.__notes__))


def test_stress_tries_every_kind_of_policy() -> None:
    assert {p.kind for p in policies(3, 6)} == {"random", "straggler", "priorities"}
    assert {p.rank for p in policies(3, 9) if p.kind == "straggler"} == {0, 1, 2}


def test_an_operator_of_a_file_is_named_with_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(Path(ops.ag_gemm.loc.file).read_text())
    operator = operator_named(f"{file}:ag_gemm")
    made = recipe(Case(operator, SIZES, 2), 1, "random-0", False)
    assert made is not None
    assert made.operator == f"{file}:ag_gemm"
