"""Axes of a program's tiles that it has no name for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import Problem, assert_as_torch
from tilelink import sms
from tilelink.frontend.program import Program


@tilelink.program("e N, R/R N i32 -> N", name="sums")
def of_a_coordinate(x: Any, mine: Any, out: Any) -> None:
    _, n = tl.tile_id(mine)
    acc = tl.zeros(tl.tile_shape(mine), tl.float32)
    for e in tl.tiles(x, axis=0):
        acc += tl.tile_load(x, (e, n))
    tl.tile_store(out, n, acc)


@tilelink.program("e N, M N i32 -> N", name="sums")
def of_a_tile(x: Any, mine: Any, out: Any) -> None:
    m, n = tl.tile_id(mine)
    acc = tl.full(tl.tile_shape(mine), 0.0, tl.float32)
    for e in tl.tiles(x, axis=0):
        acc += tl.tile_load(x, (e, n))[None, :]
    tl.tile_store(out, n, tl.sum(tl.where((tl.tile_range(mine, m) < tl.size(mine, 0))[:, None], acc, 0.0), 0))


@pytest.mark.parametrize(("program", "declared"), [(of_a_coordinate, "R/R N i32"), (of_a_tile, "M N i32")])
def test_the_shape_of_a_tile(program: Program, declared: str) -> None:
    """A coordinate has no place in it, a tile has its own."""

    @tilelink.operator("e N -> N", schedule={"sums": sms(M=2, N=4) if program is of_a_tile else sms(N=4)})
    def operator(x: Any) -> Any:
        sizes: dict[str, Any] = {"M": 1} if program is of_a_tile else {}
        return program(x, tilelink.symmetric(declared, like=x, **sizes))

    x = torch.randn(3, 8)
    assert_as_torch(operator, Problem([(x,)] * 2, [(x.sum(0),)] * 2))
