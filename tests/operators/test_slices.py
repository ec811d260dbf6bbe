"""Slices that are sent under a test of whose they are: who reads a slice reads what every rank has written there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import FEW, Problem, assert_as_torch, each
from tests.selection import table
from tilelink import Operator, TilelinkError
from tilelink.frontend.program import Program
from tilelink.ir.topology import RankAxis, Topology

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


def along(axis: str, send: Program, take: Program) -> Operator:
    over: dict[str, Any] = {} if axis == "R" else {"over": axis}

    def body(x: Any) -> Any:
        box = tilelink.symmetric(f"{axis} {axis}/{axis} N", like=x)
        send(x, box, tilelink.symmetric(f"{axis} {axis}/{axis} N i32", like=x), **over)
        return take(box, tilelink.symmetric(f"{axis}/{axis} N i32", like=x), **over)

    return tilelink.operator("N -> N", axes="NODE GPU" if over else None, name="exchange")(body)


@pytest.mark.parametrize(
    ("send", "take"), [(to_others, of_others), (to_all, of_others), (to_all, of_all)], ids=["skipped", "unread", "all"]
)
def test_what_everyone_reads_is_sent(send: Program, take: Program) -> None:
    x, operator = torch.randn(RANKS, N), along("R", send, take)
    assert operator.verify(x[0], ranks=RANKS).ok
    wanted = x.sum(0) - (x if take is of_others else 0 * x)
    assert_as_torch(operator, Problem(each(list(x)), each(list(wanted))))


def test_of_a_line_too() -> None:
    x, operator = torch.randn(2, RANKS, N), along("GPU", to_others, of_others)
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
@table(
    "axis, topology",
    [("R", Topology(RANKS)), ("GPU", Topology(2 * RANKS, axes=(RankAxis("NODE", 2), RankAxis("GPU", RANKS))))],
    ids=str,
)
def test_what_is_not_sent_is_not_read(send: Program, gap: str, axis: str, topology: Topology) -> None:
    """All are told, and nothing has come."""
    error = along(axis, send, of_all).verify(torch.empty(N), topology=topology).error
    assert isinstance(error, TilelinkError)
    assert error.code == "TL604"
    where = f"{gap} `{axis}` of `box`" if gap.endswith("axis") else f"{gap} `box`"
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
