"""Operators on ranks with several axes, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.cli.commands import alone, command, error_of
from tests.selection import table
from tilelink.errors import TilelinkError
from tilelink.explore.cases import Case, parse_ranks, ranks_text
from tilelink.explore.naming import operator_named
from tilelink.explore.replay import recipe

__all__ = ["alone"]  # in force here, too
ROOT = Path(__file__).parents[2]
LEVELS, LINEAR = f"{ROOT}/examples/two_levels.py:GATHER", f"{ROOT}/examples/data_and_tensor_parallel.py:linear"
GATHER = (LEVELS, "--shape", "n=2,g=2,M=24,K=32", "--ranks", "NODE=2,GPU=2")
RAGGED = "S=11,K=21,N=18"


def test_every_command_that_takes_ranks_takes_axes() -> None:
    assert "4 ranks along NODE=2,GPU=2" in command("plan", *GATHER).output
    assert "verdict  proved" in command("verify", *GATHER).output
    text = command("emit", *GATHER, "--target", "h200").stdout
    compile(text, "emitted", "exec")
    assert "along NODE, " in text
    assert "4 ranks along NODE=2,GPU=2" in command("run", *GATHER).output
    assert "2, without race or deadlock, results not compared" in command("stress", *GATHER, "--runs", "2").output
    command("trace", *GATHER)
    assert {e["pid"] for e in json.loads(Path("trace.json").read_text())["traceEvents"]} >= {0, 1, 2, 3}
    command("tune", *GATHER[:3], "--ranks", "NODE=1,GPU=2", "--budget", "0")


@pytest.mark.parametrize("ranks", ["DP=1,TP=1", "DP=2,TP=2", "DP=2,TP=1", "DP=1,TP=3"])
def test_products_are_compared_along_axes(ranks: str) -> None:
    assert 0 < error_of(command("run", LINEAR, "--shape", RAGGED, "--ranks", ranks, "--calls", "2")) < 2e-2


def test_the_expected_is_of_the_ranks_own_lines() -> None:
    """Rows come from the ranks along TP, the weight from all: what other lines along DP hold of the rows is theirs."""
    case = Case(operator_named(LINEAR), (("S", 4), ("K", 2), ("N", 2)), (("DP", 2), ("TP", 2)), "f32")
    own = [case.arguments(rank) for rank in range(4)]
    rows = torch.cat([own[2][0], own[3][0]])
    weight = torch.cat([own[1][1], own[3][1]])
    torch.testing.assert_close(case.expected(3), rows @ weight)


def test_operators_of_one_axis_run_along_all_ranks() -> None:
    assert 0 < error_of(command("run", "ag_gemm", "--shape", "64x32x32", "--ranks", "NODE=2,GPU=2")) < 2e-2


def test_a_run_comes_again_with_its_axes() -> None:
    case = Case(operator_named(LEVELS), (("n", 2), ("g", 3), ("M", 8), ("K", 16)), (("NODE", 2), ("GPU", 3)))
    made = recipe(case, 1, "random-0", False)
    assert made is not None
    assert made.ranks == "NODE=2,GPU=3"
    assert "6 ranks along NODE=2,GPU=3" in command("replay", made.token, "--file", LEVELS.partition(":")[0]).output


@table("ranks", ["4", "NODE=4", "GPU=2,NODE=2"])
def test_ranks_with_other_axes(ranks: str) -> None:
    said = command("plan", *GATHER[:4], ranks, code=1).output.splitlines()
    assert said[0] == "TL704: the ranks of `all_gather` lie along NODE and GPU"
    assert said[-1] == "  do:  say how many lie along each: --ranks NODE=2,GPU=2"


@table("text", ["", "0", "-1", "x", "2.0", "NODE=", "NODE=2;GPU=2", "NODE=2,NODE=2"])
def test_ranks_that_do_not_read(text: str) -> None:
    with pytest.raises(TilelinkError, match=r"^TL713: ranks that do not read\n"):
        parse_ranks(text)


def test_ranks_that_read() -> None:
    assert parse_ranks("8") == 8
    assert parse_ranks("NODE=2,GPU=4") == (("NODE", 2), ("GPU", 4))
    assert [ranks_text(parse_ranks(text)) for text in ("8", "NODE=2,GPU=4")] == ["8", "NODE=2,GPU=4"]
    for text in ("node=2", "NODE=0"):
        with pytest.raises(TilelinkError, match=r"^TL457: "):
            parse_ranks(text)
