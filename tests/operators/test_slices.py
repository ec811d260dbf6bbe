"""Slices that are sent under a test of whose they are: who reads a slice reads what every rank has written there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.against_torch import FEW
from tests.selection import table
from tilelink import Operator, TilelinkError
from tilelink.frontend.program import Program

RANKS, N = 3, 8


@tilelink.program("N, R R/R N -> R R/R N i32", name="send")
def to_others(x: Any, box: Any, mine: Any) -> None:
    s, r, n = tl.tile_id(mine)
    if s != r:
        tl.tile_push_data(box, (r, s, n), tl.tile_load(x, n))
    tl.producer_tile_notify(box, (r, s, n))


@tilelink.program("N, R R/R N -> R R/R N i32", name="send")
def to_itself(x: Any, box: Any, mine: Any) -> None:
    s, r, n = tl.tile_id(mine)
    if s == r:
        tl.tile_push_data(box, (r, s, n), tl.tile_load(x, n))
    tl.producer_tile_notify(box, (r, s, n))


@tilelink.program("N, R R/R N -> R R/R N i32", name="send")
def not_to_the_first(x: Any, box: Any, mine: Any) -> None:
    s, r, n = tl.tile_id(mine)
    if s > 0:
        tl.tile_push_data(box, (r, s, n), tl.tile_load(x, n))
    tl.producer_tile_notify(box, (r, s, n))


@tilelink.program("N, R R/R N -> R R/R N i32", name="send")
def to_all(x: Any, box: Any, mine: Any) -> None:
    s, r, n = tl.tile_id(mine)
    tl.tile_push_data(box, (r, s, n), tl.tile_load(x, n))
    tl.producer_tile_notify(box, (r, s, n))


@tilelink.program("R N, R/R N i32 -> N", name="take")
def of_others(box: Any, mine: Any, out: Any) -> None:
    r, n = tl.tile_id(mine)
    acc = tl.zeros(tl.tile_shape(mine), tl.float32)
    for s in tl.tiles(box, axis=0):
        tl.consumer_tile_wait(box, (s, n))
        if s != r:
            acc += tl.tile_load(box, (s, n))
    tl.tile_store(out, n, acc)


@tilelink.program("R N, R/R N i32 -> N", name="take")
def of_all(box: Any, mine: Any, out: Any) -> None:
    _, n = tl.tile_id(mine)
    acc = tl.zeros(tl.tile_shape(mine), tl.float32)
    for s in tl.tiles(box, axis=0):
        tl.consumer_tile_wait(box, (s, n))
        acc += tl.tile_load(box, (s, n))
    tl.tile_store(out, n, acc)


@tilelink.program("R N -> N", name="take")
def of_all_but_the_first(box: Any, out: Any) -> None:
    n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(box, axis=0):
        tl.consumer_tile_wait(box, (s, n))
        if s > 0:
            acc += tl.tile_load(box, (s, n))
    tl.tile_store(out, n, acc)


def along_all(send: Program, take: Program) -> Operator:
    def body(x: Any) -> Any:
        box = tilelink.symmetric("R R/R N", like=x)
        send(x, box, tilelink.symmetric("R R/R N i32", like=x))
        return take(box, tilelink.symmetric("R/R N i32", like=x))

    return tilelink.operator("N -> N", name="exchange")(body)


def along_gpus(send: Program, take: Program) -> Operator:
    def body(x: Any) -> Any:
        box = tilelink.symmetric("GPU GPU/GPU N", like=x)
        send(x, box, tilelink.symmetric("GPU GPU/GPU N i32", like=x), over="GPU")
        return take(box, tilelink.symmetric("GPU/GPU N i32", like=x), over="GPU")

    return tilelink.operator("N -> N", axes="NODE GPU", name="exchange")(body)


@pytest.mark.parametrize(
    ("send", "take"), [(to_others, of_others), (to_all, of_others), (to_all, of_all)], ids=["skipped", "unread", "all"]
)
def test_what_everyone_reads_is_sent(send: Program, take: Program) -> None:
    x, operator = torch.randn(RANKS, N), along_all(send, take)
    assert operator.verify(x[0], ranks=RANKS).ok
    for rank, got in enumerate(tilelink.launch(lambda: operator(x[tilelink.rank()].clone()), RANKS, device=FEW)):
        torch.testing.assert_close(got, x.sum(0) - (x[rank] if take is of_others else 0))


def test_of_a_line_too() -> None:
    x, operator = torch.randn(2, RANKS, N), along_gpus(to_others, of_others)
    results = tilelink.launch(
        lambda: operator(x.view(-1, N)[tilelink.rank()].clone()), 2 * RANKS, axes={"NODE": 2, "GPU": RANKS}, device=FEW
    )
    torch.testing.assert_close(torch.stack(results).view(2, RANKS, N), x.sum(1, keepdim=True) - x)


@table(
    "send, gap",
    [
        (to_others, "positions 0 to 1 of axis"),
        (to_itself, "positions 1 to 3 of axis"),
        (not_to_the_first, "all elements of"),
    ],
    ids=lambda v: str(v),
)
@table("axes", [None, {"NODE": 2, "GPU": RANKS}], ids=["R", "GPU"])
def test_what_is_not_sent_is_not_read(send: Program, gap: str, axes: dict[str, int] | None) -> None:
    """All are told, and nothing has come."""
    operator = along_all(send, of_all) if axes is None else along_gpus(send, of_all)

    def refused() -> TilelinkError | None:
        return operator.verify(torch.empty(N)).error

    error = tilelink.launch(refused, RANKS if axes is None else 2 * RANKS, axes=axes, device=FEW)[0]
    assert isinstance(error, TilelinkError)
    name = "R" if axes is None else "GPU"
    assert error.code == "TL604"
    where = f"{gap} `{name}` of `box`" if gap.endswith("axis") else f"{gap} `box`"
    assert error.message.endswith(f"{where} are never written, and `take` reads it")


def test_what_no_source_sends() -> None:
    """Whichever of them is read: on the first rank nothing has come of any."""

    @tilelink.operator("N -> N")
    def operator(x: Any) -> Any:
        box = tilelink.symmetric("R R/R N", like=x)
        not_to_the_first(x, box, tilelink.symmetric("R R/R N i32", like=x))
        return of_all_but_the_first(box)

    error = operator.verify(torch.empty(N), ranks=RANKS).error
    assert isinstance(error, TilelinkError)
    assert error.message.endswith("positions 1 to 3 of axis `R` of `box` are never written, and `take` reads it")
