"""Workers that wait stay on their SMs: kernels that run side by side have to fit, numbered or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_refused, assert_right
from tests.selection import table
from tilelink import TilelinkError, sms
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Sms
from tilelink.ir.topology import Device, Topology

SMS = 4


@tilelink.program("M N -> M N")
def doubled(x: Any, rows: Any) -> None:
    m, n = tl.tile_id(rows)
    tl.tile_store(rows, (m, n), 2 * tl.tile_load(x, (m, n)))
    tl.producer_tile_notify(rows, (m, n))


@tilelink.program("M N -> M N")
def kept(rows: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(rows, (m, n)))


@tilelink.operator("M N -> M N")
def two_kernels(x: Any) -> Any:
    return kept(doubled(x))


def own(count: int | None = None) -> Sms:
    return sms(*() if count is None else (count,), M=2, N=8, own_kernel=True)


def shared(count: int | None = None) -> Sms:
    return sms(*() if count is None else (count,), M=2, N=8)


def planned(first: Sms, second: Sms, device: int = SMS) -> Plan:
    placed = two_kernels.schedule(doubled=first, kept=second)
    return placed.plan(torch.empty(16, 8), topology=Topology(2, device=Device(sms=device)))


@pytest.mark.parametrize(
    ("first", "second", "workers"),
    [
        (own(), own(), (2, 2)), (own(), shared(), (2, 2)), (own(1), shared(), (1, 3)), (own(3), own(), (3, 1)),
        (shared(), own(), (2, 2)), (own(), shared(3), (1, 3)),
    ],
)  # fmt: skip
def test_whoever_has_no_number_shares(first: Sms, second: Sms, workers: tuple[int, int]) -> None:
    """What one of them left over the other may need: both fit, and neither stands still."""
    plan = planned(first, second)
    assert {path: count for k in plan.kernels for path, count in k.roles} == dict(
        zip(("doubled", "kept"), workers, strict=True)
    )
    x, placed = torch.randn(16, 8), two_kernels.schedule(doubled=first, kept=second)
    for got in tilelink.launch(lambda: placed(x), 2, straggler=0, device=Device(sms=SMS)):
        assert torch.equal(got, 2 * x)


@table(
    "first, second, asked",
    [(own(3), own(2), 5), (own(4), own(), 5), (own(2), shared(3), 5), (own(4), shared(), 5)],
)
def test_more_than_there_are(first: Sms, second: Sms, asked: int) -> None:
    with pytest.raises(TilelinkError) as caught:
        planned(first, second)
    assert caught.value.code == "TL313"
    assert caught.value.message.endswith(f"asks for {asked} SMs and the device has 4")


def test_the_proof_counts_them() -> None:
    plan = planned(own(2), own(2))
    assert_right(plan)
    error = assert_refused(replace(plan, topology=replace(plan.topology, device=Device(sms=3))), "TL613")
    assert error.message == "`kept` waits in kernels that have 4 workers side by side, and there are 3 SMs"
