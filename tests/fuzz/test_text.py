"""Signatures, shapes, owner maps, schedules and sizes from any text at all."""

from __future__ import annotations

import ast

from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.outcomes import outcome
from tests.selection import cases
from tilelink.codegen.syntax import check_text
from tilelink.errors import TilelinkError
from tilelink.explore.cases import parse_sizes
from tilelink.explore.placements import parse_placement
from tilelink.frontend import parse_signature
from tilelink.frontend.grammar import parse_owner, parse_shape
from tilelink.ir.schedule import CopyEngine, Fused, Library, Sms

WORDS = [
    "M", "N", "K", "R", "e", "s", "M/R", "R/R", "K/R", "M/start", "e+1", "T*K", "...", "->", ",", "/", "*", "+", " ", "\t", "\n",
    "i32", "bf16", "float32", "offsets", "permutation", "<M", "<E", "<", "0", "1", "128", "999999999999", "9" * 40, "_", "M_1",
    "lambda", "__import__", '"""', "'", "\\", "#", "é", "𝟙", "\u2028", "\x00", "(", ")", "%", "//", "-", "m",
    "m -> m // 2 % R", ":",
]  # fmt: skip
TEXT = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(WORDS), max_size=16).map("".join),
                 st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))  # fmt: skip
PIECES = [
    "gather", "matmul", "=", "sms", "copy_engine", "fused", "library", "(", ")", "M=128", "N=", "K=-1", "order", "'ring'",
    '"row"', ",",
    "push=True", "push=1", "('ring', 'group 4')", "**{}", "*()", "lambda: 0", "__import__('os')", "1e9", "None", ".",
    "tilelink.", "count=2",
    "streams=0", "num_warps=3", "[1]", "{1: 2}", "1 if 1 else 2", "\n", "\x00", "#", "é", "x for x in y", "-", "~1", "(" * 300,
]  # fmt: skip


@cases(300)
@given(TEXT)
@example("M/R K, K N -> M N")
@example("(" * 2000)
@example("M+" * 400 + "M")
def test_signatures(text: str) -> None:
    found = outcome(lambda: parse_signature(text))
    if not isinstance(found, TilelinkError):
        assert found.inputs
        assert parse_signature(str(found)).shapes == found.shapes


@cases(60)
@given(TEXT)
def test_shapes(text: str) -> None:
    found = outcome(lambda: parse_shape(text))
    assert isinstance(found, TilelinkError) or parse_shape(str(found)) == found


@cases(100)
@given(TEXT)
@example("m -> " + "(" * 500 + "m" + ")" * 500)
@example("m -> " + "m + " * 800 + "m")
def test_owner_maps(text: str) -> None:
    found = outcome(lambda: parse_owner(text))
    assert isinstance(found, TilelinkError) or all(name.isidentifier() for name in found.variables)


@cases(120)
@given(st.one_of(TEXT, st.lists(st.sampled_from(PIECES), max_size=14).map("".join)))
@example("gather=sms(" + "-" * 3000 + "1)")
@example("gather=sms(" + "(" * 300 + ")" * 300 + ")")
def test_placements(text: str) -> None:
    found = outcome(lambda: parse_placement(text))
    if not isinstance(found, TilelinkError):
        assert isinstance(found[1], (Sms, CopyEngine, Fused, Library))


@cases(60)
@given(st.one_of(TEXT, st.from_regex(r"(M|N|K|[a-z]+)=\d+(,(M|N|K)=\d+)*|\d+x\d+x\d+", fullmatch=True)))
def test_sizes(text: str) -> None:
    found = outcome(lambda: parse_sizes(text))
    assert isinstance(found, TilelinkError) or all(isinstance(n, int) for _, n in found)


@cases(100)
@given(st.one_of(TEXT, st.lists(st.sampled_from(PIECES), max_size=14).map("".join)))
@example("(" * 3000)
def test_text_that_is_to_be_loaded(text: str) -> None:
    """Nothing but kernels is let through, so that nothing of it runs when the file is imported."""
    found = outcome(lambda: check_text(text, "op"))
    if not isinstance(found, TilelinkError):
        assert all(isinstance(n, (ast.Expr, ast.Assign, ast.Import, ast.ImportFrom)) for n in ast.parse(text).body)
