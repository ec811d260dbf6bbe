"""Placements from text: read as literals, and refused on the spot where they are wrong."""

from __future__ import annotations

import pytest

import tilelink
from tests.selection import table
from tilelink.errors import TilelinkError
from tilelink.explore.placements import parse_placement, parse_placements
from tilelink.ir.schedule import Placement

RUNS = tilelink.library("tilelink.libraries.attention", T="T/R")


@table(
    "text, path, placement",
    [
        ("gather=copy_engine(M=128,push=True)", "gather", tilelink.copy_engine(M=128, push=True)),
        ("gather = tilelink.sms(4, M=64)", "gather", tilelink.sms(4, M=64)),
        (
            "a.matmul=sms(N=32, order=('ring+1', 'group 8'))",
            "a.matmul",
            tilelink.sms(N=32, order=("ring+1", "group 8")),
        ),
        (
            "m=sms(num_warps=8, num_stages=2, maxnreg=168, own_kernel=True)",
            "m",
            tilelink.sms(num_warps=8, num_stages=2, maxnreg=168, own_kernel=True),
        ),
        ("gather=sms(0.25, M=64)", "gather", tilelink.sms(0.25, M=64)),
        ("merge=sms(Q=1, joins='partial')", "merge", tilelink.sms(Q=1, joins="partial")),
        ("scatter=fused('matmul')", "scatter", tilelink.fused("matmul")),
        ("matmul=library(function='torch.mm', M=512)", "matmul", tilelink.library("torch.mm", M=512)),
        ("flash=library('tilelink.libraries.attention', T='T/R')", "flash", RUNS),
        ("gather=sms(push=None)", "gather", tilelink.sms()),
    ],
)
def test_a_placement_is_what_the_same_python_makes(text: str, path: str, placement: Placement) -> None:
    assert parse_placement(text) == (path, placement)


@table(
    "text, marked, why",
    [
        ("gather", "gather", "no step is named"),
        ("=sms()", "=sms()", "no step is named"),
        ("gather=", "", "this is no Python"),
        ("gather=sms(M=1", "(", "this is no Python"),
        ("gather=3", "3", "a placement is one of sms, copy_engine, fused, library"),
        ("gather=os.system('ls')", "os.system", "a placement is one of sms, copy_engine, fused, library"),
        ("gather=sms(M=__import__('os'))", "__import__('os')", "arguments are literals"),
        ("gather=sms(M=n)", "n", "arguments are literals"),
        ("gather=sms(**{'M': 2})", "{'M': 2}", "`**` has no meaning here"),
        ("gather=sms(*[2])", "*[2]", "arguments are literals"),
        ("gather=fused()", "fused()", "fused: missing a required argument: 'into'"),
        ("gather=copy_engine(2)", "copy_engine(2)", "copy_engine: too many positional arguments"),
        ("gather=fused(3)", "3", "`into` is the name of a step"),
        ("gather=sms('2')", "'2'", "`count` is a number of SMs, or a part of all"),
        ("gather=sms(push=1)", "1", "`push` is True or False"),
        ("gather=sms(M=True)", "True", "`M` is a number of elements"),
        ("gather=sms(M=1.5)", "1.5", "`M` is a number of elements"),
        ("matmul=sms(order=('ring', 2))", "('ring', 2)", "`order` is "),
    ],
)
def test_what_is_wrong_is_marked(text: str, marked: str, why: str) -> None:
    with pytest.raises(TilelinkError) as caught:
        parse_placement(text)
    error = caught.value
    assert error.code == "TL703"
    assert (error.why or "").startswith(why)
    assert error.loc is not None
    assert text[error.loc.column : error.loc.end_column] == marked


def test_a_step_is_placed_once() -> None:
    assert list(parse_placements(["a=sms(1)", "b=sms(1)"])) == ["a", "b"]
    with pytest.raises(TilelinkError, match=r"^TL703"):
        parse_placements(["a=sms(1)", "a=sms(2)"])
