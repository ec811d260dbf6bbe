"""Reductions of drawn expressions along axes that are no power of two: what is accepted is what torch makes of the elements."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, note
from hypothesis import strategies as st

from tests.frontend.harness import run_cell
from tilelink import TilelinkError

SOURCE = """
import triton
import tilelink
import tilelink.language as tl

@triton.jit
def squashed(x):
    return x / (1.0 + tl.abs(x))

@triton.jit
def greatest(x):
    return tl.max(x, 1)

@triton.jit
def larger(a, b):
    return tl.maximum(a, b)

@tilelink.program("M N, N -> M")
def reduced(x, y, out):
    m = tl.tile_id(out)
    v, low, w = tl.tile_load(x, m), tl.tile_load(x, m, other=float("-inf")), tl.tile_load(y)[None, :]
    n, k = tl.size(x, 1), tl.tile_range(x, axis=1)[None, :]
    mean = (tl.sum(v, 1) / n)[:, None]
    tl.tile_store(out, m, EXPRESSION)

@tilelink.operator("M N, N -> M")
def operator(x, y):
    return reduced(x, y)
"""
LEAVES = ("v", "v", "v", "low", "(w + v * 0.0)", "(mean + v * 0.0)", "(k + v * 0.0)", "(v * 0.0 - 0.5)")
ONE = ("tl.exp({})", "tl.abs({})", "-({})", "tl.sigmoid({})", "tl.cos({})", "({} > 0.5).to(tl.float32)", "squashed({})",
       "tl.log(tl.abs({}) + 1.0)", "({} + 1.0)", "({} * w)", "({} - mean)", "({} / n)", "tl.maximum({}, 0.0)", "tl.floor({})",
       "tl.where(k < n, {}, 0.0)", "tl.where(k < n, {}, -1e30)", "tl.where(k < n, {}, 1e30)", "tl.where(k >= n, 0.0, {})",
       "tl.where(k % 2 == 0, {}, 0.0)", "tl.where(k < 2, {}, -2.0)", "tl.where((k < n) & (v > 0), {}, -1.0)",
       "tl.cumsum({}, 1)")  # fmt: skip
TWO = ("({} + {})", "({} - {})", "({} * {})", "tl.maximum({}, {})", "tl.minimum({}, {})", "tl.where(v > 0, {}, {})",
       "tl.where(mean > 0, {}, {})", "tl.where(k < n, {}, {})", "({} / (tl.abs({}) + 1.0))",
       "({} - tl.max({}, 1)[:, None])")  # fmt: skip
REDUCTIONS = ("tl.sum({}, 1)", "tl.max({}, 1)", "tl.min({}, 1)", "greatest({})", "tl.max(tl.softmax({}, 1), 1)",
              "tl.argmax({}, 1).to(tl.float32)", "tl.sum(tl.sort({}, 1) * k, 1)", "tl.reduce({}, 1, larger)")  # fmt: skip
EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: (
        st.builds(str.format, st.sampled_from(ONE), inner) | st.builds(str.format, st.sampled_from(TWO), inner, inner)
    ),
    max_leaves=5,
)
DATA = {"any": (6.0, -3.0), "negative": (-2.0, -0.2), "positive": (3.0, 0.2)}


class OfElements:
    """What functions of `tl` make of the elements alone."""

    float32 = torch.float32
    exp, abs, sigmoid, cos, log, floor = torch.exp, torch.abs, torch.sigmoid, torch.cos, torch.log, torch.floor
    cumsum, sum, softmax, argmax = torch.cumsum, torch.sum, torch.softmax, torch.argmax

    @staticmethod
    def where(test: Any, a: Any, b: Any) -> torch.Tensor:
        return torch.where(test, *(torch.as_tensor(x, dtype=torch.float32) for x in (a, b)))

    @staticmethod
    def maximum(a: torch.Tensor, b: Any) -> torch.Tensor:
        return torch.maximum(a, torch.as_tensor(b, dtype=torch.float32))

    minimum = torch.minimum

    @staticmethod
    def max(x: torch.Tensor, axis: int) -> torch.Tensor:
        return x.amax(axis)

    @staticmethod
    def min(x: torch.Tensor, axis: int) -> torch.Tensor:
        return x.amin(axis)

    @staticmethod
    def sort(x: torch.Tensor, axis: int) -> torch.Tensor:
        return x.sort(axis).values

    @staticmethod
    def reduce(x: torch.Tensor, axis: int, _larger: object) -> torch.Tensor:
        return x.amax(axis)


def of_elements(expression: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    names = {"v": x, "low": x, "w": y[None], "n": n, "k": torch.arange(n)[None], "mean": (x.sum(1) / n)[:, None]}
    helpers = {"squashed": lambda a: a / (1.0 + a.abs()), "greatest": lambda a: a.amax(1), "larger": None}
    return eval(expression, {"tl": OfElements, **names, **helpers})


@given(
    st.builds(str.format, st.sampled_from(REDUCTIONS), EXPRESSIONS),
    st.sampled_from([1, 2, 3, 5, 6, 7, 9, 13]),
    st.sampled_from([*DATA]),
    st.integers(0, 9),
)
def test_what_is_accepted_is_right(expression: str, n: int, kind: str, seed: int) -> None:
    note(f"{expression}, N={n}, {kind}, seed {seed}")
    drawn = torch.rand(4, n, generator=torch.Generator().manual_seed(seed))
    x, y = ((DATA[kind][0] * u + DATA[kind][1]) for u in (drawn[:3], drawn[3]))
    made: Any = run_cell(SOURCE.replace("EXPRESSION", expression))["operator"]
    try:
        (got,) = made([x], [y])
    except TilelinkError as refused:
        found = refused.code
    else:
        found, want = "", of_elements(expression, x, y).float()
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert found in ("", "TL143")
