# pyright: reportArgumentType=false
"""Tile programs contain Triton: its loops and Python's, branches, helpers; whatever moves beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.language import where

import tilelink
import tilelink.language as tl
from tests.operators.problems import Problem, alone, assert_as_torch, each, part, split
from tests.selection import table
from tilelink import copy_engine, sms
from tilelink.ir.schedule import Placement
from tilelink.ops.programs import gather

pytestmark = pytest.mark.each_triton

RANKS = 3


@tilelink.program("M K -> M K")
def halved(x: Any, out: Any, *, times: int, least: float) -> None:
    """Doubles `times + 2` times, then halves what is larger than `least`, three times at most, unless `times` is odd."""
    m, k = tl.tile_id(out)
    tl.consumer_tile_wait(x, m)
    value = tl.tile_load(x, (m, k)).to(tl.float32)
    for _ in range(times):
        value += value
    for _ in tl.static_range(2):
        value += value
    left = 3
    while left > 0:
        value = tl.where(value > least, value / 2, value)
        left -= 1
    if times % 2 == 1:
        value = -value
    tl.tile_store(out, (m, k), value)


@tilelink.operator("M/R K -> M K")
def halving(x: Any, *, times: int = 1, least: float = 1.0) -> Any:
    return halved(gather(x), times=times, least=least)


@pytest.mark.parametrize("times", [0, 1, 4])
def test_loops_and_branches(times: int) -> None:
    x = torch.randn(29, 10, generator=torch.Generator().manual_seed(0))
    want = x * 2 ** (times + 2)
    for _ in range(3):
        want = torch.where(want > 1.5, want / 2, want)
    given = {"M": 29, "times": times, "least": 1.5}
    problem = Problem(each(split(x, RANKS)), [(-want if times % 2 else want,)] * RANKS, given)
    assert_as_torch(halving.schedule(gather=sms(1, M=8), halved=sms(M=8, K=16)), problem)


@tilelink.operator("M/R e k -> M e k")
def gathered(x: Any) -> Any:
    return gather(x)


@pytest.mark.parametrize(
    "placement", [sms(2, M=4), copy_engine(M=4), copy_engine(push=False)], ids=["SMs", "copy engine", "whole parts"]
)
def test_axes_that_are_walked_singly_move_too(placement: Placement) -> None:
    x = torch.randn(11, 2, 3)
    assert_as_torch(gathered.schedule(gather=placement), Problem(each(split(x, RANKS)), [(x,)] * RANKS, {"M": 11}))


@tilelink.program("M K -> M K")
def moved_down(x: Any, out: Any, *, by: int) -> None:
    """A name of positions gets another value, always; a name of a tile's begin, sometimes."""
    m, k = tl.tile_id(out)
    at = tl.tile_range(out, m)
    at = tl.where(at >= by, at - by, -1)
    begin = tl.tile_begin(out, m)
    if by > 2:
        begin = begin + 100
    tl.tile_store(out, (m, k), tl.tile_load(x, (at, k)) + begin)


@table("by", [1, 3])
def test_a_name_of_positions_may_change(by: int) -> None:
    x = torch.arange(50.0).view(10, 5)
    want = torch.cat([torch.zeros(by, 5), x[:-by]]) + (torch.arange(10) // 4 * 4 + (100 if by > 2 else 0))[:, None]
    assert torch.equal(alone(moved_down).schedule(moved_down=sms(M=4, K=8))(x, by=by), want)


LIMIT, NAMED = 3, "far"


@tilelink.program("e N -> e N")
def by_constants(x: Any, out: Any, *, least: int) -> None:
    """A constant of the module to the left of what the kernel works out."""
    e, n = tl.tile_id(out)
    at = e + 1
    value = tl.where(LIMIT - at < 0, at, 0) + (LIMIT - at) % 4 + tl.where(least < at, 10, 20)
    if NAMED == "far" and LIMIT - at <= 0:
        value += 100
    tl.tile_store(out, (e, n), tl.tile_load(x, (e, n)) + value)


@tilelink.program("e N -> e N")
def by_bits(x: Any, out: Any) -> None:
    """Which of the stores is executed hangs on what Triton makes of two truth values."""
    e, n = tl.tile_id(out)
    if (e > 1) + (e > 3) == 1:
        tl.tile_store(out, (e, n), tl.tile_load(x, (e, n)))
    if (e > 1) - (e > 3) == 0:
        tl.tile_store(out, (e, n), -tl.tile_load(x, (e, n)))


@tilelink.program("M N -> M N")
def tenfold(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    tl.tile_store(out, (m, n), 10 * tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def by_numbers(x: Any, out: Any, *, which: str) -> None:
    """Waits for the row, and for its flag, that numbers made of truth values name."""
    m, n = tl.tile_id(out)
    at = tl.tile_begin(out, m)
    row = 0
    if which == "chosen":
        row = tl.where(at > 1, 1, 0) + tl.where(at > 3, 1, 0)
    if which == "multiplied":
        row = (at > 1) * 1 + (at > 3) * 1
    if which == "negated":
        row = 2 + ~tl.where(at > 1, 1, 0)
    if which == "bits":
        row = tl.minimum(at > 1, at > 0) * (at > 2) + (not at > 3) + 0
    tl.consumer_tile_wait(x, (row, n))
    tl.tile_store(out, (m, n), tl.tile_load(x, (row, n))[None, :] + tl.zeros(tl.tile_shape(out), tl.float32))


@tilelink.operator("M/R N -> M N")
def named_by_numbers(x: Any, *, which: str) -> Any:
    return by_numbers(tenfold(gather(x)), which=which)


@pytest.mark.parametrize(
    ("which", "rows"),
    [
        ("chosen", [0, 0, 1, 1, 2, 2]),
        ("multiplied", [0, 0, 1, 1, 2, 2]),
        ("negated", [1, 1, 0, 0, 0, 0]),
        ("bits", [1, 1, 1, 0, 1, 1]),
    ],
)
def test_numbers_made_of_truth_values(which: str, rows: list[int]) -> None:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    placed = named_by_numbers.schedule(gather=sms(1, M=1), tenfold=sms(1, M=1), by_numbers=sms(1, M=1))
    results = tilelink.launch(lambda: placed(x[part(6, tilelink.rank(), RANKS)], which=which), RANKS, races=True)
    for got in results:
        torch.testing.assert_close(got, 10 * x[rows])


@tilelink.operator("e N -> e N, e N")
def constants_and_bits(x: Any, *, least: int = 2) -> Any:
    return by_constants(x, least=least), by_bits(x)


def test_constants_to_the_left_and_sums_of_truth_values() -> None:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    at = torch.arange(1, 7)
    more = torch.where(at > 3, at, 0) + torch.fmod(3 - at, 4) + torch.where(at > 2, 10, 20) + 100 * (at >= 3)
    sign = torch.tensor([-1, -1, 1, 1, -1, -1])
    wanted = (x + more[:, None], x * sign[:, None])
    assert_as_torch(constants_and_bits, Problem([(x,)] * RANKS, [wanted] * RANKS))


@tilelink.program("M N -> M N")
def positive(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), where(value > 0, value, 0.0))


def test_a_function_that_was_imported_by_name() -> None:
    """Simulated ranks have others in its module while they run."""
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(alone(positive)(x), x.relu())
