"""What arguments are to a call beside their numbers: gradients and truth values, bytes that wrap, memory that peers read, one
rank's or all ranks'; and what of it is said once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import alone, told
from tests.selection import table
from tilelink.nn import functional
from tilelink.ops import ag_gemm
from tilelink.ops.programs import reduce
from tilelink.runtime.refusals import warn_once


# ------------------------------------------------------------------------------------------------- what is said in passing
@pytest.fixture
def anew() -> None:
    """As a process that has said nothing so far."""
    warn_once.cache_clear()


@pytest.mark.usefixtures("anew")
def test_arguments_that_require_a_gradient_get_none_which_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    x, w = torch.ones(8, 16, requires_grad=True), torch.ones(16, 8, requires_grad=True)

    def main() -> tuple[bool, bool]:
        first, second = ag_gemm(x, w), ag_gemm(x[:4], w)
        return first.requires_grad, second.requires_grad

    assert tilelink.launch(main, 2) == [(False, False)] * 2
    message = "results of `ag_gemm` have no gradient: operators and layers with gradients are in tilelink.nn.functional"
    assert caplog.messages.count(message) == 1


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(
    "call", [functional.ag_gemm, lambda x, w: ag_gemm(x.detach(), w.detach())], ids=["nn", "detached"]
)
def test_nothing_is_said_of_gradients_where_there_are_some_or_none_are_asked_for(
    caplog: pytest.LogCaptureFixture, call: Any
) -> None:
    x, w = torch.ones(8, 16, requires_grad=True), torch.ones(16, 8, requires_grad=True)

    def main() -> None:
        out = call(x, w)
        if out.requires_grad:
            out.sum().backward()

    tilelink.launch(main, 2)
    assert not [m for m in caplog.messages if "gradient" in m]


@pytest.mark.usefixtures("anew")
def test_tensors_outside_launch_are_of_one_rank_which_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert ag_gemm(torch.ones(8, 16), torch.ones(16, 8)).shape == (8, 8)
    (message,) = [m for m in caplog.messages if "outside tilelink.launch" in m]
    assert "one rank alone: to simulate several, pass a list with one tensor per rank for each" in message


# ------------------------------------------------------------------------------------------------------- dtypes
@tilelink.program("M N u8, M N -> M N")
def where(mask: Any, x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    kept = tl.tile_load(mask, (m, n)) != 0
    tl.tile_store(out, (m, n), tl.where(kept, tl.tile_load(x, (m, n)), 0))
    tl.producer_tile_notify(out, (m, n))


def test_truth_values_are_bytes_to_a_program() -> None:
    mask, x = torch.rand(5, 7) < 0.5, torch.randn(5, 7)
    assert 0 < mask.sum() < mask.numel()
    for given in (mask, mask.byte(), mask.t().contiguous().t()):
        for out in alone(where)([given] * 2, [x] * 2):
            assert torch.equal(out, torch.where(mask, x, 0))


def test_products_of_bytes_wrap_as_those_of_torch() -> None:
    x, w = torch.full((16, 64), 3, dtype=torch.int8), torch.full((64, 16), 3, dtype=torch.int8)
    for found in ag_gemm([x] * 2, [w] * 2):
        assert torch.equal(found, torch.cat([x, x]) @ w)
        assert found[0, 0] == 3 * 3 * 64 - 512


@table("shape, strides", [((4, 1), (1, 7)), ((1, 1), (3, 7)), ((0, 8), (0, 0)), ((4, 0), (5, 5))])
def test_what_torch_calls_contiguous_needs_no_copy(shape: tuple[int, int], strides: tuple[int, int]) -> None:
    """An axis of one element has any stride, and an empty tensor any strides, as of a row that was turned."""
    x, w = torch.empty_strided(shape, strides).fill_(2), torch.ones(shape[1], 3)
    for found in ag_gemm([x] * 2, [w] * 2):
        assert torch.equal(found, torch.cat([x, x]) @ w)


# ------------------------------------------------------------------------------------------------------- plans in a rank
def test_a_plan_says_of_an_argument_that_peers_read_in_place_that_it_is_not_copied() -> None:
    def main() -> list[bool]:
        mine = tilelink.empty(8, 16, dtype=torch.float32)
        w = torch.ones(16, 8)
        return ["copied to a symmetric slot" in str(ag_gemm.plan(x, w)) for x in (mine, torch.ones(8, 16))]

    assert tilelink.launch(main, 2) == [[False, True]] * 2


# ------------------------------------------------------------------------------------------------------- a push that is none
@tilelink.program("R/R M N -> R M N")
def kept(src: Any, dst: Any) -> None:
    tile = tl.tile_id(src)
    tl.tile_store(dst, tile, tl.tile_load(src, tile))
    tl.producer_tile_notify(dst, tile)


@tilelink.operator("M N -> M N")
def summed(x: Any) -> Any:
    return reduce(kept(x))


def test_a_store_where_a_push_was_meant() -> None:
    code, _, why, hint = told(summed.verify(torch.ones(8, 8), ranks=2).error)
    assert (code, hint) == ("TL604", "push what other ranks are to have: `tl.tile_push_data(dst, ...)`")
    assert str(why).endswith("on rank 0; other ranks store that, each in memory of its own")
