"""The space that is derived from what an operator's steps do."""

from __future__ import annotations

import pytest

from tilelink import Operator, TilelinkError, ops
from tilelink.explore.cases import Case
from tilelink.ir.schedule import CopyEngine, Fused, Sms
from tilelink.ir.topology import Device, Topology
from tilelink.tuning import estimate, space_of
from tilelink.tuning.search import complete
from tilelink.tuning.space import coordinates, is_matmul

H200 = Topology(4, "peer", device=Device("NVIDIA H200", 132, capability=90))
SIZES = {"ag_gemm": (8192, 5504, 4096), "gemm_rs": (8192, 4096, 11008), "gemm_rs_ring": (8192, 4096, 11008)}


def case(operator: Operator) -> Case:
    return Case(operator, tuple(zip("MNK", SIZES[operator.name], strict=True)), 4)


@pytest.mark.parametrize("name", SIZES)
def test_what_is_proposed_can_be_planned(name: str) -> None:
    operator: Operator = getattr(ops, name)
    plan = case(operator).stages(H200).plan
    base = complete(plan, operator.schedules)
    space = space_of(plan)
    assert set(space) == {s.path for s in plan.steps}
    refused: list[str] = []
    tried = 0
    for coordinate in coordinates(space, base):
        for option in coordinate.options[::3]:
            tried += 1
            try:
                case(operator.with_schedule(base.merged({coordinate.path: option}))).stages(H200)
            except TilelinkError as error:
                refused.append(str(error).splitlines()[0])
    assert tried >= 8
    assert len(refused) <= tried // 3, refused


def test_kinds_of_steps_get_kinds_of_placements() -> None:
    plan = case(ops.gemm_rs).stages(H200).plan
    space = space_of(plan)
    assert Fused("matmul") in space["scatter"]
    assert Fused("matmul") in space["reduce"]
    chunks = [dict(p.tile)["M"] for p in space["scatter"] if isinstance(p, CopyEngine)]
    assert chunks == [2048, 1024, 512, 256]
    matmuls = [p for p in space["matmul"] if isinstance(p, Sms)]
    assert all(p.order[0] == "ring+1" for p in matmuls)
    assert [is_matmul(s) for s in plan.steps] == [True, False, False]
    gather = space_of(case(ops.ag_gemm).stages(H200).plan)["gather"]
    assert {p.push for p in gather if isinstance(p, CopyEngine)} == {True, False}


def test_the_estimate_knows_better_from_worse() -> None:
    plan = case(ops.ag_gemm).stages(H200).plan
    base = complete(plan, ops.ag_gemm.schedules)
    tiny = Sms(tile=(("M", 16), ("N", 64), ("K", 64)), order=("ring",))
    few = Sms(count=1, tile=(("M", 128),), order=("ring",))
    assert estimate(plan, base) < estimate(plan, base.merged({"gather": few}))
    assert estimate(plan, base) < estimate(plan, base.merged({"matmul": tiny}))
