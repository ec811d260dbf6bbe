"""What `launch`, `group` and `empty` are given: each value that means nothing is refused, in words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilelink
from tests.selection import table
from tilelink import TilelinkError
from tilelink.ops import ag_gemm, gemm_rs


def run(main: Callable[[], Any], ranks: int = 2, **options: Any) -> list[Any]:
    return tilelink.launch(main, ranks=ranks, **options)


def product(operator: Any = ag_gemm) -> torch.Tensor:
    return operator(*(torch.ones(64, 64, dtype=torch.bfloat16, device="cpu") for _ in range(2)))


@table(
    "options, text",
    [
        ({"watchdog": -3}, "watchdog=-3"),
        ({"watchdog": float("nan")}, "watchdog=nan"),
        ({"watchdog": float("inf")}, "watchdog=inf"),
        ({"watchdog": "3"}, "watchdog='3'"),
        ({"watchdog": True}, "watchdog=True"),
        ({"debug": "no"}, "debug='no'"),
        ({"straggler": 9}, "straggler=9"),
        ({"straggler": -1}, "straggler=-1"),
        ({"policy": "straggler-9-1"}, "straggler=9"),
        ({"nodes": 3, "ranks": 4}, "nodes=3"),
        ({"nodes": 0}, "nodes=0"),
        ({"seed": "x"}, "seed='x'"),
        ({"device": "H100"}, "device='H100'"),
        ({"races": "no"}, "races='no'"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_value_that_an_option_cannot_have(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TilelinkError, match="TL464") as refused:
        run(tilelink.rank, **options)
    assert f"`launch` cannot take {text}\n  do:  pass " in str(refused.value)


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(TilelinkError, match="TL464: `launch` has no option `rnaks`") as refused:
        run(tilelink.rank, rnaks=3)
    assert str(refused.value).endswith("did you mean `ranks`?")


def test_what_is_launched_is_a_function() -> None:
    with pytest.raises(TilelinkError, match="TL464: `launch` cannot take main=3"):
        run(3)  # pyright: ignore[reportArgumentType]


def test_axes_are_names() -> None:
    with pytest.raises(TilelinkError, match=r"TL457: `\[2\]` names no axes"):
        run(tilelink.rank, axes=[2])


def test_a_limit_of_zero_is_none() -> None:
    assert run(lambda: product().shape, watchdog=0) == [(128, 64)] * 2


@table("ranks", [[0, 0, 1], [-1, 0, 1], [0, 1, 7], ["0", "1"], [True, 0], [], 1], ids=str)
def test_a_group_is_some_of_the_ranks(ranks: Any) -> None:
    with pytest.raises(TilelinkError, match="TL454") as refused:
        run(lambda: tilelink.group(ranks))
    assert f"{ranks!r} is no list of ranks" in str(refused.value)


@table("shape", [(-4, 8), (4.5, 8), ("4",), (2**40, 2**40)], ids=str)
def test_a_shape_is_whole_numbers(shape: Any) -> None:
    with pytest.raises(TilelinkError, match="TL465") as refused:
        run(lambda: tilelink.empty(*shape))
    assert f"a tensor of shape {list(shape)}" in str(refused.value)


@table("dtype", [torch.bool, torch.complex64, torch.quint8, "bf16", None], ids=str)
def test_memory_has_a_dtype_that_operators_take(dtype: Any) -> None:
    with pytest.raises(TilelinkError, match="TL465") as refused:
        run(lambda: tilelink.empty(4, 8, dtype=dtype))
    assert f"a tensor of {dtype}" in str(refused.value)


def test_a_shape_may_be_one_sequence() -> None:
    assert run(lambda: tilelink.empty([4, 8]).shape) == [(4, 8)] * 2
    assert run(lambda: tilelink.empty(0, 8).shape) == [(0, 8)] * 2


def test_a_rank_that_returns_without_calling() -> None:
    """The report is at the user's line, and says who is gone."""
    with pytest.raises(TilelinkError, match="TL501") as still:
        run(lambda: product() if tilelink.rank() == 0 else None)
    text = str(still.value)
    assert "why: they wait in a call that all ranks make, and rank 1 has returned" in text
    assert "make the same calls on every rank" in text
    assert f"--> {__file__}:" in text
    assert "return operator(*(torch.ones(" in text


def test_ranks_that_call_different_operators() -> None:
    with pytest.raises(TilelinkError, match="TL452") as refused:
        run(lambda: product(ag_gemm if tilelink.rank() else gemm_rs))
    assert str(refused.value).split("\n")[2].strip() == "do:  make the same calls in the same order on all ranks"


def test_threads_that_launch_side_by_side() -> None:
    inside, seen = threading.Event(), threading.Event()

    def first() -> None:
        inside.set()
        assert seen.wait(60)

    beside = threading.Thread(target=run, args=(first, 1))
    beside.start()
    assert inside.wait(60)
    try:
        with pytest.raises(TilelinkError, match="TL450: a simulation is running in this process"):
            run(tilelink.rank)
    finally:
        seen.set()
        beside.join()
    assert run(tilelink.rank) == [0, 1]


def test_a_default_device_is_nothing_to_the_memory_of_a_call() -> None:
    def main() -> bool:
        with torch.device("meta"):
            tilelink.empty(4, 8)
            return bool((product() == 64).all())

    assert run(main, watchdog=30.0) == [True, True]
