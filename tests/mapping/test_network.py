"""Ranks that reach one another over a network only: puts from memory, and nothing else."""

from __future__ import annotations

import pytest

from tests.mapping.plans import forms, verify, wiring_of
from tests.selection import table
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Layout, Plan
from tilelink.ir.schedule import Sms
from tilelink.ir.topology import Device, Topology
from tilelink.mapping import make_plan
from tilelink.ops import ag_gemm

SIZES = {"M": 64, "K": 32, "N": 48}
FORMS = forms()


def planned(name: str, ranks: int = 2, reach: str = "network") -> Plan:
    operator, placements = FORMS[name]
    scheduled = operator.schedule(placements)
    wiring = wiring_of(scheduled, ranks, SIZES)
    layouts = {n: Layout(len(wiring.tensor(n).axes) - 1, True) for n in wiring.arguments}
    topology = Topology(ranks, "nvshmem", reach, Device(sms=64))
    return make_plan(wiring, topology, scheduled.schedules, SIZES, layouts)


REFUSED = {
    "ag_gemm pull": "`gather` pulls from ranks that are reached over a network only",
    "ag_gemm copy engine pull": "`gather` pulls from ranks that are reached over a network only",
    "gemm_rs pull": "`scatter` pulls from ranks that are reached over a network only",
    "gemm_rs fused": "`scatter` pushes tiles of `matmul` out of registers to ranks that are reached over a network only",
    "gemm_rs_ring": "`ring` stores to ranks that are reached over a network only",
    "gemm_rs_ring fused": "`ring` stores to ranks that are reached over a network only",
}


@table("name", REFUSED)
def test_what_a_network_cannot_do(name: str) -> None:
    with pytest.raises(TilelinkError) as caught:
        planned(name)
    assert (caught.value.code, caught.value.message) == ("TL330", REFUSED[name])
    assert caught.value.why == "a network takes puts: contiguous memory of this rank, copied to another"
    assert planned(name, ranks=1)
    assert planned(name, reach="peer")


@table("name", ["ag_gemm push", "ag_gemm copy engine push", "gemm_rs push", "gemm_rs copy engine"])
def test_what_it_can(name: str) -> None:
    assert verify(planned(name)).ok


def test_without_a_schedule_movements_push() -> None:
    wiring = wiring_of(ag_gemm, 2, SIZES)
    layouts = {n: Layout(1, True) for n in wiring.arguments}
    plan = make_plan(wiring, Topology(2, "nvshmem", "network"), ag_gemm.schedules, SIZES, layouts)
    gather = plan.step("gather")
    assert (gather.engine.name, gather.push, isinstance(gather.workers, int)) == ("workers", True, True)
    assert Sms().push is None
