"""Waits for positions that are worked out, past the edges of what is waited for, and of tensors that have no elements."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import FEW, Problem, assert_solves, random
from tilelink import Operator, sms

RANKS, COLUMNS = 2, 8


@tilelink.program("e N -> e N")
def doubled(x: Any, rows: Any) -> None:
    e, n = tl.tile_id(x)
    tl.tile_store(rows, (e, n), 2 * tl.tile_load(x, (e, n)))
    tl.producer_tile_notify(rows, (e, n))


doubled_in_tiles = tilelink.program("M N -> M N", name="doubled")(doubled.function)


@tilelink.program("e N, a b N -> a b N")
def of_two_tiles(rows: Any, like: Any, out: Any, *, apart: int, first: int) -> None:
    """Positions that two axes of tiles make together."""
    a, b, n = tl.tile_id(out)
    at = a * apart + b + first
    tl.consumer_tile_wait(rows, (at, n))
    tl.tile_store(out, (a, b, n), tl.tile_load(rows, (at, n)))


@tilelink.program("e N -> N")
def counted(rows: Any, out: Any, *, times: int) -> None:
    n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for at in range(times):
        tl.consumer_tile_wait(rows, (at, n))
        acc += tl.tile_load(rows, (at, n))
    tl.tile_store(out, n, acc)


@tilelink.program("M N, e i32 -> e N")
def one_of_data(rows: Any, at: Any, out: Any) -> None:
    e, n = tl.tile_id(out)
    where = tl.tile_load(at, e)
    tl.consumer_tile_wait(rows, (where, n))
    tl.tile_store(out, (e, n), tl.tile_load(rows, (where, n)))


@tilelink.program("M N, T i32 -> T N")
def many_of_data(rows: Any, at: Any, out: Any) -> None:
    t, n = tl.tile_id(out)
    where = tl.tile_load(at, t, other=-1)
    tl.consumer_tile_wait(rows, (where, n))
    tl.tile_store(out, (t, n), tl.tile_load(rows, (where, n)))


def assert_right(operator: Operator, inputs: tuple[torch.Tensor, ...], wanted: torch.Tensor) -> None:
    """Proved, and right under two schedules; there are flags of others next to those that are waited for."""
    assert operator.verify(*inputs, ranks=RANKS).ok
    for seed in range(2):
        assert_solves(operator, [Problem([inputs] * RANKS, [(wanted,)] * RANKS)], seed=seed, device=FEW)


def rows_at(x: torch.Tensor, at: list[int]) -> torch.Tensor:
    return torch.stack([2 * x[i] if 0 <= i < len(x) else torch.zeros(COLUMNS) for i in at])


@pytest.mark.parametrize(("apart", "first"), [(2, 0), (2, -1), (2, 1), (4, 0), (-1, 0), (-400, 0), (4000, 0)])
@pytest.mark.parametrize("rows", [0, 6])
def test_of_two_tiles(rows: int, apart: int, first: int) -> None:
    x = random(rows, COLUMNS)

    def body(x: Any, like: Any) -> Any:
        return of_two_tiles(doubled(x), like, apart=apart, first=first)

    placed = {"doubled": sms(1, N=4), "of_two_tiles": sms(2, N=4)}
    operator = tilelink.operator("e N, a b N -> a b N", name="flat", schedule=placed)(body)
    at = [a * apart + b + first for a in range(3) for b in range(2)]
    assert_right(operator, (x, torch.zeros(3, 2, COLUMNS)), rows_at(x, at).reshape(3, 2, COLUMNS))


@pytest.mark.parametrize("times", [0, 3, 6, 9])
@pytest.mark.parametrize("rows", [0, 6])
def test_counted(rows: int, times: int) -> None:
    x = random(rows, COLUMNS)

    def body(x: Any) -> Any:
        return counted(doubled(x), times=times)

    placed = {"doubled": sms(1, N=4), "counted": sms(2, N=4)}
    operator = tilelink.operator("e N -> N", name="counting", schedule=placed)(body)
    assert_right(operator, (x,), 2 * x[:times].sum(0))


@tilelink.operator("M N, e i32 -> e N", schedule={"doubled": sms(1, M=2, N=4), "one_of_data": sms(2, N=4)})
def taken_singly(x: Any, at: Any) -> Any:
    return one_of_data(doubled_in_tiles(x), at)


@tilelink.operator("M N, T i32 -> T N", schedule={"doubled": sms(1, M=2, N=4), "many_of_data": sms(2, T=2, N=4)})
def taken_together(x: Any, at: Any) -> Any:
    return many_of_data(doubled_in_tiles(x), at)


@pytest.mark.parametrize("operator", [taken_singly, taken_together], ids=lambda o: o.name)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_of_data(operator: Operator, rows: int) -> None:
    x, at = random(rows, COLUMNS), [0, -1, 4, 300]
    assert_right(operator, (x, torch.tensor(at, dtype=torch.int32)), rows_at(x, at))
