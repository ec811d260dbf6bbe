# pyright: reportArgumentType=false
"""A host hands over what a load would give, past the edges too; what it does not hand over is not fused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.mapping.shelf import double
from tests.operators.language import ring_gather
from tests.selection import table
from tilelink import Operator, TilelinkError, copy_engine, fused, sms
from tilelink.codegen.memory import lanewise
from tilelink.ir.topology import Device, Topology
from tilelink.ops.all_reduce import spread
from tilelink.ops.programs import keep, scatter, share

TILE = sms(M=2, N=8)


@tilelink.program("M N -> M N")
def plus(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + 1)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def plus_or_minus(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    if tl.tile_begin(out, m) < 2:
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + 1)
    else:
        tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) - 1)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def plus_some(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), value + 1, mask=value > 0)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("M N -> M N")
def less_sums(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    value = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), value - tl.sum(value, 1)[:, None])


@tilelink.program("M N -> M N")
def less_maxima(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x, (m, n))
    value = tl.tile_load(x, (m, n), other=-float("inf"))
    tl.tile_store(out, (m, n), value - tl.max(value, 1)[:, None])


@tilelink.program("M N -> M N")
def with_mirrored(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(x)
    rows = tl.size(x, 0) - 1 - tl.tile_range(out, m)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + tl.tile_load(x, (rows, n)))


@tilelink.program("s M N -> M N")
def of_all(inbox: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(inbox)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(inbox, axis=0):
        acc += tl.tile_load(inbox, (s, m, n))
    tl.tile_store(out, (m, n), acc)


# -------------------------------------------------------------------------------------------------------- past the edges
@pytest.mark.parametrize("then", [less_sums, less_maxima])
def test_a_fused_program_sees_nothing_past_the_edges(then: Any) -> None:
    """The host adds 1 in lanes of a tile that are no elements, too."""

    @tilelink.operator("M N -> M N")
    def both(x: Any) -> Any:
        return then(plus(x, name="host"), name="then")

    x = torch.arange(-7.0, 8).view(3, 5)
    want = x + 1 - ((x + 1).sum(1, keepdim=True) if then is less_sums else (x + 1).amax(1, keepdim=True))
    for placed in (TILE, fused("host")):
        (got,) = both.schedule(host=TILE, then=placed)([x])
        assert torch.equal(got, want), placed


def test_programs_that_compute_lane_by_lane_need_no_mask() -> None:
    assert lanewise(double.captured)
    assert not lanewise(less_sums.captured)
    assert not lanewise(less_maxima.captured)


# ------------------------------------------------------------------------------------------------------ what is not handed
def _then(host: Any, then: Any) -> Operator:
    return tilelink.operator("M N -> M N", name="both")(lambda x: then(host(x, name="host"), name="then"))


@tilelink.operator("M/R N -> R M N", name="ring_of")
def ring_shared(x: Any) -> Any:
    return tilelink.symmetric("R M N", like=x) if x is None else share(ring_gather(x, name="host"), name="then")


@tilelink.operator("R M/R N -> M N", name="spread_of")
def spread_kept(inbox: Any) -> Any:
    return keep(spread(inbox, tilelink.symmetric("M/R N", like=inbox), name="host"), name="then")


@tilelink.operator("M N -> M/R N", name="scattered")
def scattered(x: Any) -> Any:
    return of_all(scatter(plus(x, name="host"), name="moved"), name="then")


REFUSED: dict[str, tuple[Operator, str]] = {
    "under a test": (
        _then(plus_or_minus, double),
        "`host` stores `out` under a test or in a loop, and not once in each turn",
    ),
    "under a mask": (_then(plus_some, double), "`host` stores `out` under a mask, and not all of the tile"),
    "elsewhere": (_then(plus, with_mirrored), "it reads `x` at other places than its host's tile"),
    "what comes round": (
        ring_shared,
        "`host` stores `rows` under a test or in a loop, and not once in each turn",
    ),
    "what it pushes": (spread_kept, "it moves `host_rows`, and `host` hands over none of it"),
    "all slices": (scattered, "it waits for all slices of `inbox`, of which one is its host's"),
}


@table("name", REFUSED)
def test_what_a_host_does_not_hand_over_cannot_be_fused(name: str) -> None:
    op, why = REFUSED[name]
    shape = (2, 4, 4) if name == "what it pushes" else (4, 4)
    tile = sms(M=2, K=4) if name == "what comes round" else sms(M=2, N=4, order="ring+1")
    placed = {"host": tile, "then": fused("host")} | ({"moved": copy_engine(M=2)} if name == "all slices" else {})
    with pytest.raises(TilelinkError, match="TL316") as refused:
        op.schedule(placed).plan(torch.empty(shape), topology=Topology(2, device=Device(sms=8)))
    assert why in str(refused.value)
