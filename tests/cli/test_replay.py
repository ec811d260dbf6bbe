"""A failed simulated run comes again from its token alone."""

from __future__ import annotations

import base64
import json
import re
import sys
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilelink
from tests.cli.commands import alone, command
from tests.cli.test_running import doubled
from tests.selection import cases, table
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
from tilelink.runtime.simulated import RaceError

__all__ = ["alone", "breaking"]

SIZES = (("M", 40), ("N", 32), ("K", 32))
HEADS = (("S", 32), ("h", 1), ("g", 1), ("D", 16))
TOKEN = re.compile(r"tilelink replay (run1-[\w-]+)")


def small() -> Case:
    gather, matmul = tilelink.sms(2, M=16), tilelink.sms(M=16, N=16, K=16, order=("ring", "group 2"))
    return Case(ops.ag_gemm.schedule(gather=gather, matmul=matmul), SIZES, 2)


flags = st.text("abcxyz_.:/=1", max_size=20)
texts, numbers = st.lists(flags).map(tuple), st.integers()


@given(st.builds(Recipe, flags, flags, flags, texts, flags, numbers, numbers, flags, st.booleans()))
def test_a_recipe_reads_back_from_its_token(made: Recipe) -> None:
    assert re.fullmatch(r"run1-[\w-]+", made.token)
    assert Recipe.parse(made.token) == made


@given(st.one_of(st.text(max_size=40), st.text("abcdefghij0123456789-_", max_size=60).map(lambda t: f"run1-{t}")))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(TilelinkError, match="TL709"):
        Recipe.parse(text)


@table(
    "placement",
    [
        tilelink.sms(),
        tilelink.sms(3, M=16, order=("ring", "group 4"), push=True, num_warps=8, num_stages=2, own_kernel=True),
        tilelink.copy_engine(push=False),
        tilelink.copy_engine(M=64, order="ring+1", streams=2),
        tilelink.fused("matmul"),
        tilelink.fused("matmul", deferred=True, N=64),
        tilelink.fused("matmul", deferred=None),
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
    placed = tilelink.library("tilelink.libraries.attention", T="T/R", fallback=kernel)
    assert placement_text("flash", placed) is None
    made = recipe(Case(ops.ag_attention.schedule(flash=placed), HEADS, 2), 1, "random-0", False)
    assert made is not None
    assert [parse_placement(text) for text in made.schedule] == [("flash", kernel)]


def test_a_sort_key_has_no_text() -> None:
    case = Case(ops.ag_gemm.schedule(matmul=tilelink.sms(M=16, order=lambda tile, rank, ranks: tile)), SIZES, 2)
    assert recipe(case, 1, "random-0", False) is None


def test_a_failure_prints_its_token_and_the_token_repeats_it(breaking: Break) -> None:
    breaking(dropped("shmem.local_wait_until(rows_flags"))
    with pytest.raises(RaceError) as caught:
        run_case(small(), calls=2, policy="straggler-1-4", delayed_stores=True)
    found = TOKEN.search("\n".join(caught.value.__notes__))
    assert found is not None
    made = Recipe.parse(found[1])
    assert (made.operator, made.ranks, made.calls, made.policy) == ("ag_gemm", "2", 2, "straggler-1-4")
    assert made.delayed_stores
    again = command("replay", found[1], code=1).output
    assert str(caught.value) in again
    assert found[0] in again


def test_a_run_that_was_right_is_right_again() -> None:
    outcome = run_case(small(), policy="priorities-2")
    found = TOKEN.search(outcome.again[0])
    assert found is not None
    assert "priorities-2" in command("replay", found[1]).output


def test_stress_ends_at_the_first_failure(breaking: Break) -> None:
    placed = ["--schedule", "gather=sms(2, M=16)", "--schedule", "matmul=sms(M=16, N=16, K=16)"]
    good = command("stress", "ag_gemm", "--shape", "40x32x32", "--ranks", "2", "--runs", "3", *placed)
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
    assert why == "  why: the run under the policy random-0 differs from the product of the signature, by torch in fp32"
    assert hint == (
        "  do:  if no race is reported, the tile programs compute something else than this product; if they are to, "
        "say what in torch, `@doubled.reference`, or pass --no-check"
    )
    assert TOKEN.search("\n".join(caught.value.__notes__))


def test_stress_tries_every_kind_of_policy() -> None:
    assert {p.partition("-")[0] for p in policies(3, 6)} == {"random", "straggler", "priorities"}
    assert {p.split("-")[1] for p in policies(3, 9) if p.startswith("straggler")} == {"0", "1", "2"}


MINE = """
from pathlib import Path
from tilelink.ops.ag_gemm import ag_gemm as known
from dataclasses import replace
from tilelink.errors import Loc

Path(__file__).with_suffix(".ran").touch()
mine = replace(known, name="mine", loc=Loc(__file__, 1))
"""


def test_an_operator_of_a_file_runs_only_where_the_command_line_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "my own.py"
    file.write_text(MINE)
    operator = operator_named(f"{file}:mine").schedule(dict(small().operator.schedules.entries))
    outcome = run_case(Case(operator, SIZES, 2))
    token, named = outcome.again[0].removeprefix("the same run again: tilelink replay ").split(" --file ")
    assert named == f"'{file}'"
    assert Recipe.parse(token).operator == ":mine"
    (ran := file.with_suffix(".ran")).unlink()
    said = command("replay", token, code=1).output
    assert said.splitlines() == [
        "TL714: the run is of `mine`, an operator of a file",
        "  why: a token names an operator of tilelink.ops, or one of the file that the command line names: no other Python runs",
        "  do:  if you trust the file, name it: tilelink replay TOKEN --file FILE.py",
    ]
    assert not ran.exists()
    assert "random-0" in command("replay", token, "--file", str(file)).output
    assert ran.exists()
    shipped = run_case(small()).again[0].split()[-1]
    assert "do:  leave --file out" in command("replay", shipped, "--file", str(file), code=1).output


# ------------------------------------------------------------------------------------------------- tokens from elsewhere
GOOD = {
    "operator": "ag_gemm",
    "sizes": "M=40,N=32,K=32",
    "ranks": "2",
    "schedule": ["gather=sms(2, M=16)", "matmul=sms(M=16, N=16, K=16)"],
}


def packed(record: object) -> str:
    text = record if isinstance(record, bytes) else json.dumps(record).encode()
    return "run1-" + base64.urlsafe_b64encode(zlib.compress(text, 9)).decode().rstrip("=")


def refusal(token: str) -> str:
    """What `replay` prints, which is a diagnostic that errors.md lists."""
    said = command("replay", "--", token, code=1)
    assert isinstance(said.exception, SystemExit)
    assert f"| {said.output[:5]} |" in (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    return said.output


@table(
    "token, text",
    [
        ("run1-" + "A" * 2_900_000, "TL715.*\n.*\n.*\n.*\n.*\n  why: it has 2,900,005 characters"),
        (packed(b" " * 5_000_000), "TL715.*\n.*\n.*\n.*\n.*\n  why: it unpacks to more than 65,536 characters"),
        (packed(b"[" * 60_000), "TL709"),
    ],
    ids=["long", "unpacks to much", "nested"],
)
def test_a_token_takes_no_memory(token: str, text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TilelinkError) as caught:
            Recipe.parse(token)
        assert tracemalloc.get_traced_memory()[1] < 1 << 21
    finally:
        tracemalloc.stop()
    assert re.match(text, str(caught.value))
    assert refusal(token)[:5] == text[:5]


TOKEN_OF_GOOD = packed(GOOD)
ALPHABET = "ABCdef0189-_+/= \0é"
changes = st.lists(
    st.tuples(st.integers(0, len(TOKEN_OF_GOOD)), st.integers(0, 3), st.text(ALPHABET, max_size=3)), max_size=3
)


def read(token: str) -> Recipe | str:
    try:
        return Recipe.parse(token)
    except TilelinkError as error:
        return error.code


@given(changes)
def test_a_changed_token_is_the_same_run_or_none(changed: list[tuple[int, int, str]]) -> None:
    token = TOKEN_OF_GOOD
    for at, cut, put in changed:
        token = token[:at] + put + token[at + cut :]
    assert read(token) in (Recipe.parse(TOKEN_OF_GOOD), "TL709")


HOSTILE: dict[str, st.SearchStrategy[Any]] = {
    "operator": st.sampled_from(["evil.py:mine", ":mine", "evil.py", "os.system", "__all__", "", "ops", ":", "::mine", "/x"])
    | st.text(max_size=8),
    "sizes": st.sampled_from(["M=4194304,N=4194304,K=32", "M=40,N=9999999999999,K=32", "M=40", "", "MxNxK", "M=1_0,N=1,K=1"])
    | st.text("MNKx=-", max_size=8),
    "ranks": st.sampled_from(["1000000000", "0", "-1", "A=1000,B=1000", "", "2,2"]) | st.text("ab=,-", max_size=4),
    "schedule": st.sampled_from([
        ["matmul=library('evil.f')"], ["matmul=library('os.system', M=16)"], ["gather=__import__('evil')"], ["matmul"],
        ["matmul=sms(M=1e9)"], ["matmul=" + "(" * 2000], ["matmul=sms({[]: 1})"], ["nothing=sms()"], ["a=sms()"] * 2,
        ["matmul=sms(M=3)"], ["matmul=sms(order='group \0')"], ["matmul=\0"],
    ]) | st.lists(st.text(max_size=12), min_size=1, max_size=2),
    "calls": st.sampled_from([0, -1, 1001, 10**30, True, 1.5, "1", None]),
    "data": st.sampled_from([-1, 1 << 41, 10**30, False, None]),
    "policy": st.sampled_from(["", "random-x", "random", "preemptions-1..2", None]),
    "dtype": st.sampled_from(["", "f64", "i32", None, 3]),
    "delayed_stores": st.sampled_from([0, 1, None, "yes"]),
    "file": st.just("evil.py"),
}  # fmt: skip


@cases(75)
@given(st.sampled_from(sorted(HOSTILE)).flatmap(lambda name: st.tuples(st.just(name), HOSTILE[name])))
def test_no_token_runs_what_is_not_asked_for(hostile: tuple[str, Any]) -> None:
    """One part of a good token is not good; the folder has a module that would leave a trace."""
    here = Path.cwd()
    (here / "evil.py").write_text(MINE + "def f(*_, **__): Path(__file__).with_suffix('.ran').touch()\n")
    assert refusal(packed({**GOOD, hostile[0]: hostile[1]}))
    assert not (here / "evil.ran").exists()
    assert "evil" not in sys.modules


def test_a_token_says_what_is_too_much() -> None:
    for part, text in (
        ({"ranks": "65"}, "TL716: the run asks for 65 ranks\n  why: a token may ask for 1 to 64\n"),
        ({"sizes": "M=1,N=1000001,K=1"}, "TL716: the run asks for 1,000,001 elements along an axis"),
        ({"sizes": "M=900000,N=1,K=1000"}, "TL716: the run asks for 1,800,00.* bytes of arguments"),
        ({"sizes": "M=65536,N=65536,K=8", "schedule": []}, "TL716: the run asks for 2,.* tiles"),
        (
            {"sizes": "M=65536,N=65536,K=8", "schedule": ["matmul=sms(M=256, N=1024, K=8)"]},
            "TL716: the run asks for 17,.* bytes",
        ),
        ({"calls": 10**30}, "TL716: the run asks for far too many calls"),
    ):
        assert re.match(text, refusal(packed({**GOOD, **part}))), part
    named = refusal(packed({**GOOD, "schedule": ["matmul=library('os.system')"]}))
    assert "why: it names the function `os.system`, which no text from outside may name here" in named
    assert "do:  it may name tilelink.libraries.attention, torch.mm" in named


@table("name, sizes", [("ag_moe_outer", "T=1000,H=1,k=1001,N=1,experts=4"), ("ag_attention", "S=8,h=1,g=2,D=16")])
def test_sizes_that_an_operator_derives_count_too_and_so_does_what_its_body_says(name: str, sizes: str) -> None:
    said = refusal(packed({"operator": name, "sizes": sizes, "ranks": "2"}))
    assert said.startswith(
        "TL716: the run asks for 1,001,000 elements" if "k=" in sizes else "TL711: the body of `ag_attention`"
    )


def test_no_token_is_printed_that_would_be_refused() -> None:
    named = ops.ag_gemm.schedule(matmul=tilelink.library("torch.mm"))
    assert recipe(Case(named, SIZES, 2), 1, "random-0", False) is not None
    named = ops.ag_gemm.schedule(matmul=tilelink.library("tests.tuning.test_kept.product"))
    assert recipe(Case(named, SIZES, 2), 1, "random-0", False) is None
