"""What a prediction says beside its time: a timeline that adds up, resources that are shared, and the bound."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cost.test_model import OTHERS, lowered
from tests.mapping.plans import form, forms
from tilelink import Operator, copy_engine, ops, sms
from tilelink.cost import H200, Machine, Prediction, predict
from tilelink.cost.bounds import bound
from tilelink.explore import model
from tilelink.explore.cases import Case
from tilelink.ir.lowered import Lowered
from tilelink.ir.topology import Topology
from tilelink.mapping.lower import lower

SMALL = {"M": 2048, "N": 1024, "K": 1024}


def all_of_them() -> dict[str, Lowered]:
    found = {
        name: lowered(getattr(ops, name), sizes=OTHERS[name]) for name in ("ag_moe", "all_reduce_ring", "flash_decode")
    }
    found |= {f"form {name}": lower(form(name, 3, {"M": 57, "K": 48, "N": 50})) for name in sorted(forms())[::4]}
    return found | {"ag_gemm": lowered(ops.ag_gemm, sizes=SMALL), "gemm_rs": lowered(ops.gemm_rs, sizes=SMALL)}


@pytest.fixture(scope="module")
def everything() -> dict[str, Lowered]:
    return all_of_them()


def test_nothing_does_two_things_at_once_and_the_last_ends_the_call(everything: dict[str, Lowered]) -> None:
    for name, found in everything.items():
        predicted = predict(found)
        for (rank, resource), some in itertools.groupby(predicted.timeline, lambda i: (i.rank, i.resource)):
            if resource.startswith("link"):
                continue
            edges = [(i.start_us, i.end_us) for i in some]
            assert all(a < b for a, b in edges), (name, rank, resource)
            assert all(b <= c + 1e-6 for (_, b), (c, _) in itertools.pairwise(edges)), (name, rank, resource)
        if predicted.timeline:
            assert max(i.end_us for i in predicted.timeline) == pytest.approx(predicted.us, abs=0.01), name


def test_every_tile_is_there_once() -> None:
    found = predict(lowered(ops.ag_gemm, 2, {"M": 1024, "N": 1024, "K": 512}))
    tiles = [i.tile for i in found.timeline if i.rank == 0 and i.name == "matmul" and i.kind == "work"]
    assert len({*tiles}) == len(tiles) == 16 * 4
    assert {i.resource.split()[0] for i in found.timeline} <= {"SM", "gather", "link", "host"}


def test_what_goes_out_of_one_rank_comes_into_another(everything: dict[str, Lowered]) -> None:
    for name, found in everything.items():
        ways = {"link out": 0.0, "link in": 0.0}
        for i in predict(found).timeline:
            if i.kind == "transfer":
                ways[i.resource] += i.nbytes
        assert ways["link out"] == ways["link in"], name


def test_a_gathers_links_carry_all_rows_of_others() -> None:
    found = predict(lowered(ops.ag_gemm, 4))
    carried = sum(i.nbytes for i in found.on(1, "link in"))
    assert carried == 3 / 4 * 8192 * 4096 * 2


def test_waits_end_when_what_is_waited_for_is_there() -> None:
    """Over a slow link workers wait, and none for longer than until the last copy has come."""
    slow = replace(H200, link=H200.link / 100, peer_link=H200.peer_link / 100)
    found = predict(lowered(ops.ag_gemm, 2), slow)
    waits = [i for i in found.timeline if i.kind == "wait" and i.name == "matmul"]
    copied = max(i.end_us for i in found.timeline if i.kind == "copy")
    assert waits
    assert copied < max(i.end_us for i in waits) < copied + 5
    assert not [i for i in predict(lowered(ops.ag_gemm, 1)).timeline if i.kind == "wait"]


def test_loops_that_use_a_link_at_once_slow_one_another_down() -> None:
    """Two gathers side by side over a link that each of them could fill."""
    machine = replace(H200, link=H200.link / 16, peer_link=H200.peer_link / 16)
    sizes = {"S": 8192, "h": 8, "g": 8, "D": 128}
    found = lowered(ops.ag_attention, 2, sizes)
    alone = sizes["S"] // 2 * 8 * 128 * 2 / machine.peer_link
    ends = predict(found, machine).ends
    assert min(float(ends["gather_k"].max()), float(ends["gather_v"].max())) > 1.8 * alone


def test_few_workers_push_slower_than_many_until_the_link_is_full() -> None:
    def us(workers: int) -> float:
        gather = sms(workers, M=128, order="ring", push=True, num_warps=8)
        return float(predict(lowered(ops.ag_gemm.schedule(gather=gather), 2)).ends["gather"].max())

    assert us(4) > 1.6 * us(8)
    assert us(16) > us(32) > 8192 // 2 * 4096 * 2 / H200.link


# --------------------------------------------------------------------------------------------------------------- bounds
def test_no_plan_is_predicted_to_be_faster_than_its_bound(everything: dict[str, Lowered]) -> None:
    for name, found in everything.items():
        for machine in ("8xH200", "8xMI300X"):
            told = bound(found, Machine.load(machine))
            assert 0 < told.us <= told.prediction.us * (1 + 1e-9), (name, machine, str(told))
            assert told.gap >= -1e-9
            assert [limit.us for limit in told.limits] == sorted((limit.us for limit in told.limits), reverse=True)


def test_the_bound_is_that_of_the_data_not_of_the_schedule() -> None:
    """Engines, chunks and directions move the same bytes."""
    schedules: list[dict[str, Any]] = [
        {"gather": copy_engine(push=True)},
        {"gather": copy_engine(M=512)},
        {"gather": sms(8, M=128, push=True)},
        {"gather": sms(8, M=128, push=False)},
    ]
    found = [bound(lowered(ops.ag_gemm.schedule(**s))) for s in schedules]
    assert len({round(b.us, 6) for b in found}) == 1
    assert len({round(b.prediction.us, 2) for b in found}) > 1


def limit(machine: Machine, operator: Operator = ops.ag_gemm, **sizes: int) -> tuple[str, float]:
    found = bound(lowered(operator, 4, {"M": 8192, "N": 4096, "K": 4096} | sizes), machine)
    return found.binds.resource, found.us


def test_what_binds_follows_the_machine_and_the_sizes() -> None:
    assert limit(H200)[0] == "compute"
    assert limit(H200)[1] == pytest.approx(H200.launch + 2 * 8192 * 4096 * 4096 / H200.flops_limit)
    slow = replace(H200, link_limit=H200.link_limit / 100)
    assert limit(slow)[0].startswith("link")
    assert limit(slow)[1] == pytest.approx(3 / 4 * 8192 * 4096 * 2 / slow.link_limit)
    assert limit(replace(H200, memory_limit=H200.memory_limit / 1000))[0] == "memory"
    assert limit(H200, M=4, N=256, K=64)[0] == "critical path"
    assert limit(replace(H200, gpus=2, nodes=2, network=H200.network / 100))[0].startswith("network")


def test_a_bound_says_where_the_time_goes() -> None:
    found = bound(lowered(ops.ag_gemm, 4))
    assert "the compute of rank 0 binds from" in str(found)
    begin, end = found.binds.busy[0][0], found.binds.busy[-1][1]
    assert 0 < begin < end <= found.prediction.us
    link = next(limit for limit in found.limits if limit.resource == "link in")
    assert sum(b - a for a, b in link.busy) >= link.us * 0.99


# ------------------------------------------------------------------------------------------------------------- the door
def test_the_door_takes_plans_as_well() -> None:
    plan = Case(ops.ag_gemm, tuple(SMALL.items()), 2).compiled(Topology(2, "peer", device=H200.device())).plan
    assert isinstance(model.predict(plan), Prediction)
    assert model.predict(plan).us == model.predict(lower(plan)).us == model.bound(plan).prediction.us
    assert model.Machine.load("8xH200") is model.H200
    assert np.isfinite(model.predict(plan, model.Machine.load("8xMI300X")).us)
