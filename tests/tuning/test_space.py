"""The space that is derived from what an operator's steps do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilelink.language as tl
from tests.mapping.plans import plan_of
from tests.operators import language
from tests.selection import table
from tilelink import Operator, TilelinkError, operator, ops, program, sms
from tilelink.cost import predict
from tilelink.explore.cases import Case
from tilelink.ir.program import has_dot
from tilelink.ir.schedule import PART, CopyEngine, Fused, Library, Placement, Schedule, Sms
from tilelink.ir.topology import Device, Topology
from tilelink.mapping.lower import lower
from tilelink.tuning.search import complete
from tilelink.tuning.space import changed, space_of, ways

H200 = Topology(4, "peer", device=Device("NVIDIA H200", 132, capability=90))
MATMULS = {"ag_gemm": (8192, 5504, 4096), "gemm_rs": (8192, 4096, 11008), "gemm_rs_ring": (8192, 4096, 11008)}
OTHERS = {
    "ag_moe": {"T": 8192, "H": 2048, "k": 2, "e": 32, "I": 3072},
    "moe_rs": {"T": 8192, "H": 2048, "k": 2, "e": 32, "I": 1536},
    "ag_attention": {"S": 16384, "h": 32, "g": 8, "D": 128, "causal": 0},
    "flash_decode": {"b": 8, "g": 8, "Q": 4, "D": 128, "S": 131072},
    "ep_dispatch": {"T": 512, "H": 7168, "k": 8, "experts": 256, "capacity": 128},
    "all_reduce_one_shot": {"M": 32, "N": 2048},
}
SIZES = {name: dict(zip("MNK", sizes, strict=True)) for name, sizes in MATMULS.items()} | OTHERS


def case(operator: Operator) -> Case:
    return Case(operator, tuple(SIZES[operator.name].items()), 4)


@pytest.mark.parametrize("name", SIZES)
def test_what_is_proposed_can_be_planned(name: str) -> None:
    operator: Operator = getattr(ops, name)
    plan = case(operator).compiled(H200).plan
    base = complete(plan, operator.schedules)
    space = space_of(plan)
    assert set(space) == {s.path for s in plan.steps}
    refused: list[str] = []
    tried = 0
    for path, option in [(p, o) for p in space for way in ways(space, base, p) for o in way[::3]]:
        tried += 1
        try:
            case(operator.with_schedule(changed(space, base, path, option))).compiled(H200)
        except TilelinkError as error:
            refused.append(str(error).splitlines()[0])
    assert tried >= 5
    assert len(refused) <= tried // 3, refused


def test_the_search_begins_with_what_inlined_operators_bring_along() -> None:
    plan = Case(ops.gemm_ar, (("M", 8192), ("N", 4096), ("K", 11008)), 4).compiled(H200).plan
    begun = complete(plan, ops.gemm_ar.schedules)
    prefix = "gemm_ar_two_shot.gemm_rs."
    for name, placement in ops.gemm_rs.schedules.entries:
        within = replace(placement, into=prefix + placement.into) if isinstance(placement, Fused) else placement
        assert begun.get(prefix + name) == within
    again = Case(ops.gemm_ar.with_schedule(begun), (("M", 8192), ("N", 4096), ("K", 11008)), 4).compiled(H200).plan
    assert [(s.path, s.engine, s.into, s.workers) for s in again.steps] == [
        (s.path, s.engine, s.into, s.workers) for s in plan.steps
    ]


def test_kinds_of_steps_get_kinds_of_placements() -> None:
    plan = case(ops.gemm_rs).compiled(H200).plan
    space = space_of(plan)
    assert Fused("matmul") in space["scatter"]
    assert Fused("matmul") in space["reduce"]
    engines = [p for p in space["scatter"] if isinstance(p, CopyEngine)]
    assert [dict(p.tile)["M"] for p in engines if p.streams == 1] == [2048, 1024, 512, 256]
    assert {p.streams for p in engines} == {1, 2, 3}
    assert {Fused("matmul", (("N", n),)) for n in (32, 64, 128, 256)} < set(space["reduce"])
    matmuls = [p for p in space["matmul"] if isinstance(p, Sms)]
    assert all(p.order[0] == "ring+1" for p in matmuls)
    assert [has_dot(s.step.program) for s in plan.steps] == [True, False, False]
    libraries = [p for p in space["matmul"] if isinstance(p, Library)]
    assert [(p.name, dict(p.tile).get("M", "all"), p.streams) for p in libraries] == [
        *(("torch.mm", rows, n) for n in (1, 2) for rows in (PART, 1024, 512)),
        ("torch.mm", "all", 1),
    ]
    gather = space_of(case(ops.ag_gemm).compiled(H200).plan)["gather"]
    assert {p.push for p in gather if isinstance(p, CopyEngine)} == {True, False}


BY_COLUMNS = ops.moe_rs.schedule(
    grouped_down=sms(P=128, H=256, I=64, order="column", num_warps=8),
    combine=sms(12, T=16, H=256, order=("column", "ring+1"), num_warps=8),
)


def test_steps_of_other_kinds_are_varied_around_what_the_operator_comes_with() -> None:
    """Its own placement first; what it leaves whole stays whole; tile, warps and stages, and SMs, each by itself."""
    plan = case(BY_COLUMNS).compiled(H200).plan
    own = BY_COLUMNS.schedules.get("combine")
    options = [p for p in space_of(plan)["combine"] if isinstance(p, Sms)]
    assert isinstance(own, Sms)
    assert options[0] == own
    assert {p.order for p in options} == {own.order}
    assert {p.count for p in options} == {3, 6, 9, 12, 18, 24, 48}
    assert {dict(p.tile)["T"] for p in options} == {4, 8, 16, 32, 64}
    base = complete(plan, BY_COLUMNS.schedules)
    groups = ways(space_of(plan), base, "combine")
    varied = [
        {f for f in ("tile", "warps", "stages", "count") if len({getattr(p, f) for p in group}) > 1}
        for group in groups
        if all(isinstance(p, Sms) for p in group)
    ]
    assert varied == [{"tile"}, {"warps"}, {"count"}]
    flash = [p for p in space_of(case(ops.ag_attention).compiled(H200).plan)["flash"] if isinstance(p, Sms)]
    assert (flash[0].tile, flash[0].order, flash[0].stages) == ((("S", 128), ("T", 128)), ("group 32",), 3)
    assert {frozenset(dict(p.tile)) for p in flash} == {frozenset({"S", "T"})}
    assert {p.stages for p in flash} == {2, 3, 4}
    rows = space_of(case(ops.all_reduce_one_shot).compiled(H200).plan)["exchange"]
    assert {dict(p.tile)["M"] for p in rows if isinstance(p, Sms)} == {1, 2, 4}


@pytest.mark.parametrize("operator", [ops.ag_attention, ops.ring_attention])
def test_attention_is_tried_by_a_library_too(operator: Operator) -> None:
    """Run by run of keys, over all rows and over some."""
    sizes = tuple(SIZES["ag_attention"].items())
    options = space_of(Case(operator, sizes, 4).compiled(H200).plan)["flash"]
    found = [p for p in options if isinstance(p, Library)]
    assert [(p.name, p.runs, dict(p.tile), p.streams) for p in found] == [
        ("tilelink.libraries.attention", True, {"T": PART}, 1),
        *(("tilelink.libraries.attention", True, {"S": n, "T": PART}, k) for n in (2048, 1024) for k in (1, 2)),
    ]
    for option in found:
        case(ops.ag_attention.schedule(flash=option)).compiled(H200)


@program("M K, K N, K N -> M N")
def without_constants(rows: Any, left: Any, right: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(left, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(left, (k, n)) + tl.tile_load(right, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@program("M K, K N -> M N")
def of_two_tensors(rows: Any, left: Any, out: Any, *, causal: bool = False, scale: float = 1.0) -> None:
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(left, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(left, (k, n)), acc)
    tl.tile_store(out, (m, n), acc * scale)


@program("M K, K N, K N -> M N")
def without_a_walk(rows: Any, left: Any, right: Any, out: Any, *, causal: bool = False, scale: float = 1.0) -> None:
    m, n = tl.tile_id(out)
    both = tl.tile_load(left) + tl.tile_load(right)
    acc = tl.dot(tl.tile_load(rows, m), both)
    tl.tile_store(out, (m, n), scale * acc)


@operator("M K, K N, K N -> M N")
def of_three(x: Any, left: Any, right: Any) -> Any:
    return without_constants(x, left, right)


@operator("M K, K N -> M N")
def of_two(x: Any, left: Any) -> Any:
    return of_two_tensors(x, left)


@operator("M K, K N, K N -> M N")
def at_once(x: Any, left: Any, right: Any) -> Any:
    return without_a_walk(x, left, right)


@table("op", [of_three, of_two, at_once])
def test_what_attention_does_not_take_is_not_offered_to_it(op: Operator) -> None:
    """Other constants, fewer tensors, no axis that is walked; all leave columns whole, as attention does a head's elements."""
    sizes = {"M": 64, "K": 64, "N": 64}
    (step,) = plan_of(op, 2, sizes).steps
    plan = plan_of(op, 2, sizes, **{step.path: sms(M=16, K=16)})  # pyright: ignore[reportArgumentType]
    (options,) = space_of(plan).values()
    assert any(isinstance(p, Sms) for p in options)
    assert not any(isinstance(p, Library) and p.runs for p in options)


def test_what_is_no_attention_is_not() -> None:
    plan = case(ops.flash_decode).compiled(H200).plan
    assert not any(isinstance(p, Library) for options in space_of(plan).values() for p in options)


def test_a_matmul_is_tried_in_its_own_order_first() -> None:
    """The columns of `moe_rs` go out one after the other."""
    down = [p for p in space_of(case(BY_COLUMNS).compiled(H200).plan)["grouped_down"] if isinstance(p, Sms)]
    assert down[0].order == ("column",)
    assert len({p.tile for p in down if p.order == ("column",)}) > 8


def test_only_a_plain_matmul_is_offered_to_a_library() -> None:
    """A gated one takes two weights."""
    plan = plan_of(language.mlp, 2, {"M": 64, "K": 64, "I": 64, "N": 64})
    offered = {path for path, options in space_of(plan).items() if any(isinstance(p, Library) for p in options)}
    assert offered == {"matmul"}
    assert {s.path for s in plan.steps if has_dot(s.step.program)} == {"glu", "matmul"}


def test_every_kind_of_choice_is_varied() -> None:
    """Around the schedule as it comes and around the best with a library; nothing that is proposed is out of reach."""
    plan = case(ops.gemm_rs).compiled(H200).plan
    space = space_of(plan)
    base = complete(plan, ops.gemm_rs.schedules)

    def reached(best: Schedule) -> dict[str, set[Placement]]:
        return {path: {option for way in ways(space, best, path) for option in way} for path in space}

    first = reached(base)
    assert first["reduce"] == set(space["reduce"])
    assert {p.streams for p in first["scatter"] if isinstance(p, CopyEngine)} == {1, 2, 3}
    assert any(isinstance(p, Library) for p in first["matmul"])
    best = changed(space, base, "matmul", Library("torch.mm", (("M", PART),)))
    assert isinstance(best.get("reduce"), Sms)
    case(ops.gemm_rs.with_schedule(best)).compiled(H200)
    assert any(isinstance(p, Sms) for p in reached(best)["matmul"])
    assert all(p in reached(best)["matmul"] for p in space["matmul"] if isinstance(p, Library))


def us(operator: Operator, schedule: Schedule) -> float:
    """Of a call with a schedule, as a search has it."""
    return predict(lower(case(operator.with_schedule(schedule)).compiled(H200).plan)).us


def test_a_library_is_estimated_by_its_work_and_its_calls() -> None:
    plan = case(ops.ag_gemm).compiled(H200).plan
    base = complete(plan, ops.ag_gemm.schedules)
    few, many = (base.merged({"matmul": Library("torch.mm", (("M", n),))}) for n in (PART, 64))
    assert us(ops.ag_gemm, few) < us(ops.ag_gemm, many)
    assert 0.8 < us(ops.ag_gemm, few) / us(ops.ag_gemm, base) < 1.25


def test_the_estimate_knows_better_from_worse() -> None:
    plan = case(ops.ag_gemm).compiled(H200).plan
    base = complete(plan, ops.ag_gemm.schedules)
    tiny = Sms(tile=(("M", 16), ("N", 64), ("K", 64)), order=("ring",))
    few = Sms(count=1, tile=(("M", 128),), order=("ring",))
    assert us(ops.ag_gemm, base) < us(ops.ag_gemm, base.merged({"gather": few}))
    assert us(ops.ag_gemm, base) < us(ops.ag_gemm, base.merged({"matmul": tiny}))
