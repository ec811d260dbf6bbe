"""Positions that programs work out: where they lie, who raises their flags, and from where they count."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import Problem, assert_as_torch, each, split
from tilelink import Operator, TilelinkError, sms
from tilelink.frontend.program import Program

RANKS, ROWS = 2, 4


@tilelink.program("e N -> e N")
def turned(x: Any, rows: Any) -> None:
    e, n = tl.tile_id(x)
    to = (e + 3) % 4
    tl.tile_store(rows, (to, n), 2 * tl.tile_load(x, (e, n)))
    tl.producer_tile_notify(rows, (to, n))


@tilelink.program("e N -> e N", name="turned")
def turned_below_zero(x: Any, rows: Any) -> None:
    e, n = tl.tile_id(x)
    to = (e - 1) % 4
    tl.tile_store(rows, (to, n), 2 * tl.tile_load(x, (e, n)))
    tl.producer_tile_notify(rows, (to, n))


@tilelink.program("e N -> e N")
def kept(rows: Any, out: Any) -> None:
    e, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (e, n))
    tl.tile_store(out, (e, n), tl.tile_load(rows, (e, n)))


def rotation(program: Program) -> Operator:
    def body(x: Any) -> Any:
        return kept(program(x))

    placed = {"turned": sms(1, N=4), "kept": sms(2, N=8)}
    return tilelink.operator("e N -> e N", name="rotation", schedule=placed)(body)


def test_notifies_of_places_that_are_worked_out() -> None:
    """A place does not say how often it is named: one flag serves them all."""
    x = torch.randn(ROWS, 8)
    operator = rotation(turned)
    assert operator.verify(x, ranks=RANKS).ok
    assert_as_torch(operator, Problem([(x,)] * RANKS, [(2 * x.roll(-1, 0),)] * RANKS))


def test_below_zero_triton_rounds_towards_it() -> None:
    """Where `(e - 1) % 4` is -1 nothing would be stored, and the last row would be whatever was there."""
    with pytest.raises(TilelinkError, match=r"TL147: `\(e - 1\) % 4` is of a negative number"):
        rotation(turned_below_zero).verify(torch.empty(ROWS, 8), ranks=RANKS)


LESS = -3


@tilelink.program("e N -> e N")
def down(x: Any, rows: Any, *, less: int) -> None:
    """Row `e`: the compiler computes with constants as Python does."""
    e, n = tl.tile_id(x)
    to = e + less // 2 - LESS // 2 + less % 5 + tl.cdiv(less, -2) - 5
    tl.tile_store(rows, (to, n), 2 * tl.tile_load(x, (e, n)))
    tl.producer_tile_notify(rows, (to, n))


@tilelink.program("e N -> e N", name="down")
def chosen(x: Any, rows: Any, *, less: int) -> None:
    e, n = tl.tile_id(x)
    if less % 2 == 1:
        tl.tile_store(rows, (e, n), 2 * tl.tile_load(x, (e, n)))
        tl.producer_tile_notify(rows, (e, n))


@pytest.mark.parametrize("program", [down, chosen], ids=["place", "test"])
def test_of_constants_alone_the_compiler_rounds_down(program: Program) -> None:
    @tilelink.operator("e N -> e N")
    def operator(x: Any) -> Any:
        return kept(program(x, less=LESS))

    x = torch.randn(ROWS, 8)
    assert operator.verify(x, ranks=RANKS).ok
    assert_as_torch(operator, Problem([(x,)] * RANKS, [(2 * x,)] * RANKS))


# ------------------------------------------------------------------------------------------------------ from where they count
@tilelink.program("M/R N -> M/R N")
def to_its_owner(x: Any, rows: Any) -> None:
    """Own rows, and so to this rank itself."""
    m, n = tl.tile_id(x)
    tl.tile_push_data(rows, (m, n), 2 * tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(rows, (m, n))


@tilelink.program("T N, U -> U")
def counted_from_its_part(rows: Any, like: Any, out: Any) -> None:
    u = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (3,))
    tl.tile_store(out, u, tl.tile_load(like, u) + tl.sum(tl.tile_load(rows, (3,)), 0))


@tilelink.program("M/R N, U -> U")
def counted_from_the_first(rows: Any, like: Any, out: Any) -> None:
    u = tl.tile_id(out)
    at = tl.rank() * tl.cdiv(tl.size(rows, 0), tl.num_ranks()) + 3
    tl.consumer_tile_wait(rows, (at,))
    tl.tile_store(out, u, tl.tile_load(like, u) + tl.sum(tl.tile_load(rows, (at,)), 0))


@tilelink.program("M/R N, T N, U -> U")
def counted_both_ways(rows: Any, same: Any, like: Any, out: Any) -> None:
    """Row 3 of all is row 3 of the first rank's part only."""
    u = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (3,))
    tl.tile_store(out, u, tl.tile_load(like, u) + tl.sum(tl.tile_load(same, (3,)), 0))


PLACED = {"to_its_owner": sms(1, M=1, N=4)}


@tilelink.operator("M/R N, U -> U", schedule=PLACED)
def local(x: Any, like: Any) -> Any:
    return counted_from_its_part(to_its_owner(x), like)


@tilelink.operator("M/R N, U -> U", schedule=PLACED)
def of_all(x: Any, like: Any) -> Any:
    return counted_from_the_first(to_its_owner(x), like)


@tilelink.operator("M/R N, U -> U", schedule=PLACED)
def of_both(x: Any, like: Any) -> Any:
    rows = to_its_owner(x)
    return counted_both_ways(rows, rows, like)


@pytest.mark.parametrize("operator", [local, of_all], ids=lambda o: o.name)
def test_what_a_rank_sends_to_itself(operator: Operator) -> None:
    """It is raised once, by this rank and not by each."""
    x, like = torch.randn(8, 8), torch.zeros(4)
    shards = split(x, RANKS)
    assert operator.verify(shards[0], like, ranks=RANKS, M=8).ok
    wanted = [(2 * shard[3].sum()).expand(4) for shard in shards]
    assert_as_torch(operator, Problem(each(shards, [like] * RANKS), each(wanted), {"M": 8}))


def test_one_tensor_counted_in_two_ways() -> None:
    error = of_both.verify(torch.empty(4, 8), torch.empty(4), ranks=RANKS, M=8).error
    assert isinstance(error, TilelinkError)
    assert error.code == "TL602"
    assert error.message == "`same` is read at another tile than the one waited for"
