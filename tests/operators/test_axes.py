"""Operators of two axes of ranks, run on simulated ranks against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilelink
from examples.data_and_tensor_parallel import LINEAR
from examples.two_levels import GATHER, SCATTER
from tests.frontend.harness import message
from tests.selection import table
from tilelink import Operator, copy_engine, sms

K = 16
PUTS, TILES = sms(2, M=4, push=True), sms(M=4, K=16)
ROWS = GATHER.schedule(across=PUTS, inside=PUTS, keep=TILES)
SUMS = SCATTER.schedule(to_gpus=PUTS, to_nodes=PUTS, add_inside=sms(3, M=4, K=16), add_across=TILES)
CALLS = 3


def launched(main: Callable[[], float], axes: dict[str, int], seed: int = 0, **options: Any) -> float:
    sizes = list(axes.values())
    return max(tilelink.launch(main, ranks=sizes[0] * sizes[1], axes=axes, seed=seed, nodes=sizes[0], **options))


def gathered(operator: Operator, a: int, b: int, n: int, g: int, rows: int) -> Callable[[], float]:
    """`n` by `g` blocks of `rows` rows: the last ranks of an axis have fewer, or none."""

    def main() -> float:
        x = torch.randn(CALLS, n, g, rows, K, generator=torch.Generator().manual_seed(1))
        node, gpu = divmod(tilelink.rank(), b)
        mine = x.tensor_split([-(-n // a) * i for i in range(1, a)], 1)[node]
        mine = mine.tensor_split([-(-g // b) * i for i in range(1, b)], 2)[gpu]
        made = [operator(part.contiguous(), n=n, g=g) for part in mine]
        return float((torch.stack(made) - x).abs().max())

    return main


@pytest.mark.parametrize(("shape", "blocks"), [((2, 2), (2, 2)), ((2, 2), (3, 3)), ((3, 2), (4, 1)), ((1, 2), (1, 2))])
def test_an_all_gather_in_two_levels(shape: tuple[int, int], blocks: tuple[int, int]) -> None:
    main = gathered(ROWS, *shape, *blocks, rows=6)
    assert launched(main, dict(zip(("NODE", "GPU"), shape, strict=True)), straggler=shape[0] * shape[1] - 1) == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_of_events(seed: int) -> None:
    assert launched(gathered(ROWS, 2, 2, 2, 2, 6), {"NODE": 2, "GPU": 2}, seed, delayed_stores=True) == 0.0


@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
def test_a_reduce_scatter_in_two_levels(shape: tuple[int, int]) -> None:
    a, b = shape

    def main() -> float:
        rank = tilelink.rank()
        x = torch.randn(CALLS, a * b, a, b, 6, K, generator=torch.Generator().manual_seed(2))
        made = torch.stack([SUMS(part[rank]) for part in x])
        wanted = x.sum(1).view(CALLS, a * b, 6, K)[:, rank]
        return float((made.view(CALLS, 6, K) - wanted).abs().max())

    assert launched(main, {"NODE": a, "GPU": b}) < 1e-5


def test_copy_engines_of_both_levels() -> None:
    engines = ROWS.schedule(across=copy_engine(M=4, push=True), inside=copy_engine(M=4, push=True))
    assert launched(gathered(engines, 2, 2, 2, 2, 6), {"NODE": 2, "GPU": 2}) == 0.0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("moving", [sms(2, M=4), sms(2, M=4, push=True), copy_engine(M=8), copy_engine(M=8, push=True)])
def test_weights_along_one_axis_and_rows_along_the_other(moving: Any, shared: bool) -> None:
    """Arguments that peers of a line read: copied to slots, or where they lie."""
    operator = LINEAR.schedule(gather_rows=moving, gather_weight=moving, matmul=sms(M=16, N=16, K=16))

    def main() -> float:
        data, tensor = divmod(tilelink.rank(), 2)
        make = torch.Generator().manual_seed(3)
        x, weight = torch.randn(2, 24, 32, generator=make), torch.randn(32, 24, generator=make)
        mine, part = x[data].chunk(2)[tensor], weight.chunk(2)[data].chunk(2, 1)[tensor].contiguous()
        if shared:
            both = [tilelink.empty(*t.shape, dtype=t.dtype) for t in (mine, part)]
            mine, part = (at.copy_(t) for at, t in zip(both, (mine, part), strict=True))
        wanted = x[data] @ weight.chunk(2, 1)[tensor]
        return max(float((operator(mine, part) - wanted).abs().max()) for _ in range(CALLS))

    sizes = {"DP": 2, "TP": 2}
    assert max(tilelink.launch(main, ranks=4, axes=sizes)) < 1e-4


# ------------------------------------------------------------------------------------------------------------------- groups
def test_a_group_may_be_laid_out_and_so_may_all_ranks() -> None:
    """Beside it, an operator of one axis runs along all of them."""
    main = gathered(ROWS, 2, 2, 2, 2, 6)

    def outer() -> float:
        found = [tilelink.group(axes={"NODE": 2, "GPU": 2})] if tilelink.ranks() == 4 else []
        if not found and tilelink.rank() in (0, 2, 3, 5):
            found = [tilelink.group([0, 2, 3, 5], axes={"NODE": 2, "GPU": 2})]
        for grid in found:
            rank = tilelink.rank(grid)
            x = torch.arange(4.0 * 6 * K).view(2, 2, 6, K)
            made = ROWS(x.view(4, 1, 1, 6, K)[rank].clone(), group=grid)
            assert torch.equal(made, x)
        return 0.0

    assert tilelink.launch(outer, ranks=4) == [0.0] * 4
    assert tilelink.launch(outer, ranks=6) == [0.0] * 6
    assert launched(main, {"NODE": 2, "GPU": 2}) == 0.0


@table(
    "axes, said",
    [
        (None, "TL234: `all_gather` runs on ranks along NODE and GPU"),
        ({"GPU": 2, "NODE": 2}, "TL234: `all_gather` runs on ranks along NODE and GPU"),
        ({"NODE": 2, "GPU": 3}, "TL457: 4 ranks cannot be laid out as NODE=2 x GPU=3"),
        ({"node": 4}, "TL457: `node=4` is no axis of ranks"),
    ],
)
def test_ranks_that_do_not_have_these_axes(axes: dict[str, int] | None, said: str) -> None:
    def main() -> str:
        def call() -> object:
            return ROWS(torch.zeros(1, 1, 6, K), group=None if axes is None else tilelink.group(axes=axes))

        return message(call).splitlines()[0]

    assert set(tilelink.launch(main, ranks=4)) == {said}


def test_the_network_is_between_the_nodes() -> None:
    def main() -> str:
        pull = ROWS.schedule(across=sms(2, M=4, push=False))
        return message(lambda: pull(torch.zeros(1, 1, 6, K))).splitlines()[0]

    said = "TL330: `across` pulls from ranks that are reached over a network only"
    assert set(tilelink.launch(main, ranks=4, nodes=2, axes={"NODE": 2, "GPU": 2})) == {said}
