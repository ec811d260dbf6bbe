"""What lies past an edge of a block, and which reductions it would change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.frontend.ops import captured
from tests.selection import table
from tilelink import TilelinkError

BODY = """
m = tl.tile_id(out)
x = tl.tile_load(a, m)
said = tl.tile_load(a, m, other=-1.0)
w = tl.tile_load(b)
eight = tl.tile_load(c, m)
mean = tl.sum(x, 1) / tl.size(a, 1)
k = tl.tile_range(a, axis=1)
value = {}
tl.tile_store(out, m, value)
"""

CHANGED = [
    "tl.max(x, 1)",
    "tl.max(x, axis=-1)",
    "x.max(1)",
    "tl.min(x * 2.0, 1)",
    "tl.argmax(x, 1).to(tl.float32)",
    "tl.max(tl.dot(x, w), 1)",
    "tl.max(tl.trans(x), 0)",
    "tl.sum(tl.exp(x), 1)",
    "tl.sum(x + 1.0, 1)",
    "tl.sum((x - mean[:, None]) * (x - mean[:, None]), 1)",
    "tl.sum((x == 0).to(tl.float32), 1)",
    "tl.sum((x >= 0).to(tl.float32), 1)",
    "tl.sum(1.0 / x, 1)",
    "tl.max(tl.max(x, 1, keep_dims=True), 0)[None] + mean",
    "tl.max(x, None) + mean",
    "tl.sum(x, 1) / x.shape[1]",
    "tl.sum(said, 1) / said.shape[1]",
]
ALIKE = [
    "tl.sum(x, 1)",
    "tl.sum(x * x, 1)",
    "tl.sum(-x / 2.0, 1)",
    "tl.sum(tl.abs(x).to(tl.float32), 1)",
    "tl.sum((x > 0).to(tl.float32), 1)",
    "tl.sum(tl.exp(x) * x, 1)",
    "tl.sum(x * k[None, :], 1)",
    "tl.sum(x - x, 1)",
    "tl.max(said, 1)",
    "tl.max(eight, 1)",
    "tl.cumsum(mean, 1)",  # there is no such axis, as Triton says
    "tl.max(tl.where(k[None, :] < tl.size(a, 1), x, -1e30), 1)",
    "tl.sum(tl.where(k[None, :] < tl.size(a, 1), x - mean[:, None], 0.0), 1)",
    "tl.max(x + tl.where(k < tl.size(a, 1), 0.0, -1e30)[None, :], 1)",
]


def program(expression: str) -> Any:
    return captured("M K, K N, M 8 -> M", "a, b, c, out", BODY.format(expression))


@table("expression", CHANGED)
def test_what_lies_past_an_edge_would_change_it(expression: str) -> None:
    with pytest.raises(TilelinkError, match="TL143"):
        program(expression)


@table("expression", ALIKE)
def test_what_lies_past_an_edge_does_not_count(expression: str) -> None:
    assert program(expression)


@table(
    "line, changed",
    [
        ("tl.tile_store(out, (to, k), x)", True),
        ("tl.tile_push_data(out, (to + 1, k), x)", True),
        ("tl.tile_store(out, (tl.where(to > 2, to, 0), k), x)", False),
        ("tl.tile_store(out, (said, k), x)", False),
        ("tl.tile_store(out, (tl.tile_range(a, m), k), x)", False),
        ("tl.tile_store(out, (to, k), x, mask=tl.tile_mask(a, m)[:, None])", False),
        ("tl.tile_store(out, (m, k), tl.tile_load(a, (to, k)))", False),
    ],
)
def test_positions_past_an_edge_are_none_of_what_is_stored(line: str, changed: bool) -> None:
    body = f"""
m, k = tl.tile_id(a)
x = tl.tile_load(a, (m, k))
to = tl.tile_load(order, m)
said = tl.tile_load(order, m, other=-1)
{line}
"""

    def program() -> Any:
        return captured("M K, M i32 -> M K partial", "a, order, out", body)

    if changed:
        with pytest.raises(TilelinkError, match="TL143"):
            program()
    else:
        assert program()


@tilelink.program("M K -> M K")
def soften(x: Any, out: Any) -> None:
    m = tl.tile_id(out)
    tl.consumer_tile_wait(x, m)
    rows = tl.tile_load(x, m, other=float("-inf"))
    weight = tl.exp(rows - tl.max(rows, 1)[:, None])
    tl.tile_store(out, m, weight / tl.sum(weight, 1)[:, None])


def test_as_the_hint_says_it_is_right() -> None:
    """48 columns in a block of 64."""
    x = -1 - torch.rand(6, 48)
    operator = tilelink.operator("M K -> M K", name="softmax")(lambda x: soften(x))
    torch.testing.assert_close(operator(x), x.softmax(1))
