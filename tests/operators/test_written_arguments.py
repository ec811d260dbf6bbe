"""Programs that write to an argument: nothing waits for it, so whoever else reads it comes in an earlier or later kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.operators.against_torch import FEW
from tilelink import Operator, TilelinkError, sms

RANKS = 2
OWN, BESIDE = sms(M=4, N=4), sms(1, M=4, N=4)


@tilelink.program("M N -> M N")
def double(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), 2 * tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def add_one(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + 1)


@tilelink.program("e N -> e N")
def add_the_one_before(x: Any, out: Any) -> None:
    e, n = tl.tile_id(out)
    tl.tile_store(out, (e, n), tl.tile_load(x, (e, n)) + tl.tile_load(x, (e - 1, n)))


@tilelink.operator("M N -> M N")
def written_first(x: Any) -> Any:
    add_one(x, x)
    return double(x)


@tilelink.operator("M N -> M N")
def written_last(x: Any) -> Any:
    out = double(x)
    add_one(x, x)
    return out


@tilelink.operator("M N -> M N")
def of_neighbours(x: Any) -> Any:
    add_the_one_before(x, x)
    return double(x, name="double")


@tilelink.program("M/R N -> M N")
def spread(x: Any, out: Any) -> None:
    m, n = tl.tile_id(x)
    tl.tile_push_data(out, (m, n), 2 * tl.tile_load(x, (m, n)))


@tilelink.operator("M/R N, M N -> M N")
def pushed_to_peers(mine: Any, x: Any) -> Any:
    spread(mine, x)
    return double(x)


SHELF: dict[str, tuple[Operator, int]] = {
    "first": (written_first.schedule(add_one=OWN, double=OWN), 1),
    "last": (written_last.schedule(add_one=OWN, double=OWN), 0),
}


@pytest.mark.parametrize("name", SHELF)
def test_kernels_of_one_stream_follow_one_another(name: str) -> None:
    """And each tile reads what it writes itself, call after call."""
    operator, earlier = SHELF[name]
    assert operator.verify(torch.empty(13, 8), ranks=RANKS).ok

    def main() -> list[torch.Tensor]:
        x = torch.arange(13 * 8.0).view(13, 8)
        return [*(operator(x) for _ in range(3)), x]

    start = torch.arange(13 * 8.0).view(13, 8)
    for *made, x in tilelink.launch(main, RANKS, races=True, device=FEW):
        assert torch.equal(x, start + 3)
        assert all(torch.equal(y, 2 * (start + k + earlier)) for k, y in enumerate(made))


BESIDE_EACH_OTHER = "`add_one` writes to the argument `x`, and `double` reads it"
REFUSED: dict[str, tuple[Operator, str]] = {
    "turns, first": (written_first.schedule(add_one=BESIDE, double=BESIDE), BESIDE_EACH_OTHER),
    "turns, last": (written_last.schedule(add_one=BESIDE, double=BESIDE), BESIDE_EACH_OTHER),
    "two streams": (written_last.schedule(add_one=sms(1, M=4, N=4, own_kernel=True), double=OWN), BESIDE_EACH_OTHER),
    "neighbours": (of_neighbours, "`add_the_one_before` writes to the argument `x`, and reads it at other tiles"),
}


def test_a_kernel_of_this_rank_does_not_end_what_others_push() -> None:
    """Those of one stream follow one another on each rank, and on no two."""
    placed = pushed_to_peers.schedule(spread=OWN, double=OWN)
    error = placed.verify(torch.empty(2, 8), torch.empty(4, 8), ranks=RANKS).error
    assert isinstance(error, TilelinkError)
    assert (error.code, error.message) == ("TL609", "`spread` writes to the argument `x`, and `double` reads it")


@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_orders_is_refused(name: str) -> None:
    operator, message = REFUSED[name]
    error = operator.verify(torch.empty(13, 8), ranks=RANKS).error
    assert isinstance(error, TilelinkError)
    assert (error.code, error.message) == ("TL609", message)
    assert error.why == (
        "an argument counts as there when a call begins, so no wait of it is one for what programs write to it"
    )
    writer = message.split("`")[1]
    assert error.hint == f"let `{writer}` make a tensor of its own, and read that"


# --------------------------------------------------------------------------------------------------- one memory, two names
@tilelink.operator("M N, M N -> M N")
def of_two(x: Any, y: Any) -> Any:
    add_one(x, x)
    return double(y)


BASE = torch.arange(13 * 16.0).view(13, 16)
TOGETHER: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "the same": (BASE[:, :8], BASE[:, :8]),
    "other columns": (BASE[:, :8], BASE[:, 4:12]),
    "behind": (BASE[:, :8], BASE[:, 7:15]),
}
APART = {"halves of rows": (BASE[:, :8], BASE[:, 8:]), "every other": (BASE[:, ::2], BASE[:, 1::2])}


@pytest.mark.parametrize("name", TOGETHER)
def test_an_argument_that_is_written_to_and_shares_memory_is_refused(name: str) -> None:
    """At the first call, of all ranks, and at later ones, which the same plan serves."""
    x, y = (BASE.clone().as_strided(t.shape, t.stride(), t.storage_offset()) for t in TOGETHER[name])
    shared = BASE.clone()
    one, other = (shared.as_strided(t.shape, t.stride(), t.storage_offset()) for t in TOGETHER[name])
    for calls in ([(one, other)], [(x, y), (x, y), (one, other)]):
        with pytest.raises(TilelinkError) as refused:
            tilelink.launch(lambda calls=calls: [of_two(*c) for c in calls], 1, device=FEW)
        assert (refused.value.code, refused.value.message) == (
            "TL240",
            "argument 1 of `of_two` shares memory with argument 2",
        )
        assert refused.value.why == (
            "programs write to `x` during the call, and nothing says when it is read under another name"
        )
        assert refused.value.hint == "pass a copy of one of them"


def test_nor_with_what_results_go_to() -> None:
    x, y = torch.zeros(13, 8), torch.zeros(13, 8)
    with pytest.raises(TilelinkError, match="TL240: argument 1 of `of_two` shares memory with `out` 1"):
        tilelink.launch(lambda: of_two(x, y, out=x), 1, device=FEW)


@pytest.mark.parametrize("name", APART)
def test_views_of_one_tensor_that_share_nothing_are_taken(name: str) -> None:
    whole = BASE.clone()
    x, y = (whole.as_strided(t.shape, t.stride(), t.storage_offset()) for t in APART[name])
    (got,) = tilelink.launch(lambda: of_two(x, y), 1, device=FEW)
    assert torch.equal(got, 2 * APART[name][1])
    assert torch.equal(x, APART[name][0] + 1)


def test_arguments_that_are_only_read_may_be_one_tensor() -> None:
    x = torch.ones(4, 4)

    @tilelink.operator("M N, M N -> M N, M N")
    def twice(x: Any, y: Any) -> Any:
        return double(x), double(y, name="again")

    ((got, again),) = tilelink.launch(lambda: twice(x, x), 1, device=FEW)
    assert torch.equal(got, 2 * x)
    assert torch.equal(again, 2 * x)
