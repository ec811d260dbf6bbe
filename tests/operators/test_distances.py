"""Peers at a distance that a step's constant says, so that one program serves every round of an exchange."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl

N = 24


@tilelink.program("R/R N -> R/R N")
def send(x: Any, box: Any, *, away: int) -> None:
    r, n = tl.tile_id(x)
    tl.tile_push_data(box, (r + away, n), tl.tile_load(x, (r, n)))
    tl.peer_tile_notify(box, (r + away, n), r + away)


@tilelink.program("R/R N, R/R N -> R/R N")
def add(x: Any, box: Any, total: Any, *, away: int) -> None:
    r, n = tl.tile_id(x)
    tl.peer_tile_wait(box, (r, n), r - away)
    tl.tile_store(total, (r, n), tl.tile_load(x, (r, n)) + tl.tile_load(box, (r, n)))


@tilelink.operator("R/R N -> R/R N")
def neighbour(x: Any, *, away: int = 1, heard: int = 1) -> Any:
    """What this rank has and what the rank so far before it has."""
    box = tilelink.symmetric("R/R N", like=x)
    send(x, box, away=away)
    return add(x, box, away=heard)


@pytest.mark.parametrize(("away", "heard"), [*((k, k) for k in (0, 1, 2, 5, -1, -3)), (1, 2), (-1, 1), (3, 2)])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_distance_goes_round(away: int, heard: int, ranks: int) -> None:
    """Also where a wait names somebody else: a tile of this rank's has one flag, which its only writer signals."""
    x = torch.randn(ranks, N)
    assert neighbour.verify(x[0], ranks=ranks, away=away, heard=heard).error is None
    for total, want in zip(neighbour(list(x), away=away, heard=heard), x + x.roll(away, 0), strict=True):
        assert torch.equal(total, want)


@tilelink.program("R/R N -> R/R N")
def hand_on(x: Any, box: Any, *, away: int) -> None:
    r, n = tl.tile_id(x)
    tl.consumer_tile_wait(x, (r, n))
    if r < tl.num_ranks() - away:
        tl.tile_push_data(box, (r + away, n), tl.tile_load(x, (r, n)))
        tl.peer_tile_notify(box, (r + away, n), r + away)


@tilelink.program("R/R N, R/R N -> R/R N")
def take_up(x: Any, box: Any, total: Any, *, away: int) -> None:
    r, n = tl.tile_id(x)
    tl.consumer_tile_wait(x, (r, n))
    value = tl.tile_load(x, (r, n))
    if r >= away:
        tl.peer_tile_wait(box, (r, n), r - away)
        value += tl.tile_load(box, (r, n))
    tl.tile_store(total, (r, n), value)
    tl.producer_tile_notify(total, (r, n))


@tilelink.operator("R/R N -> R/R N")
def scan(x: Any) -> Any:
    """The sums of the ranks up to this one, for eight ranks at most, in three rounds (Hillis and Steele)."""
    for away in (1, 2, 4):
        box = tilelink.symmetric("R/R N", like=x)
        hand_on(x, box, away=away, name=f"hand_on_{away}")
        x = take_up(x, box, away=away, name=f"take_up_{away}")
    return x


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_rounds_of_doubling_distance(ranks: int) -> None:
    x = torch.randint(-9, 9, (ranks, N)).float()
    for total, want in zip(scan(list(x)), x.cumsum(0), strict=True):
        assert torch.equal(total, want)


@tilelink.program("N, R/R N -> R/R N i32")
def send_across(x: Any, box: Any, mine: Any) -> None:
    """From the first half of the ranks to the second."""
    r, n = tl.tile_id(mine)
    if r < tl.num_ranks() // 2:
        tl.tile_push_data(box, (r + tl.num_ranks() // 2, n), tl.tile_load(x, n))
        tl.peer_tile_notify(box, (r + tl.num_ranks() // 2, n), r + tl.num_ranks() // 2)


@tilelink.program("R/R N, R/R N i32 -> N")
def take_across(box: Any, mine: Any, out: Any) -> None:
    r, n = tl.tile_id(mine)
    if r < tl.num_ranks() // 2:
        tl.tile_store(out, n, 0)
    else:
        tl.peer_tile_wait(box, (r, n), r - tl.num_ranks() // 2)
        tl.tile_store(out, n, tl.tile_load(box, (r, n)))


@tilelink.operator("N -> N")
def across(x: Any) -> Any:
    box, mine = tilelink.symmetric("R/R N", like=x), tilelink.symmetric("R/R N i32", like=x)
    send_across(x, box)
    return take_across(box, mine)


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_a_distance_that_the_number_of_ranks_says(ranks: int) -> None:
    x = torch.randn(ranks, N)
    assert across.verify(x[0], ranks=ranks).error is None
    for rank, y in enumerate(across(list(x))):
        assert torch.equal(y, x[rank - ranks // 2] if rank >= ranks // 2 else torch.zeros(N))


@tilelink.operator("N -> N", axes="NODE GPU")
def across_gpus(x: Any) -> Any:
    box = tilelink.symmetric("GPU/GPU N", like=x)
    mine = tilelink.symmetric("GPU/GPU N i32", like=x)
    send_across(x, box, over="GPU")
    return take_across(box, mine, over="GPU")


def test_half_of_the_ranks_of_an_axis() -> None:
    x = torch.randn(8, N)
    got = tilelink.launch(lambda: across_gpus(x[tilelink.rank()].clone()), 8, axes={"NODE": 2, "GPU": 4})
    for rank, y in enumerate(got):
        assert torch.equal(y, x[rank - 2] if rank % 4 >= 2 else torch.zeros(N))
