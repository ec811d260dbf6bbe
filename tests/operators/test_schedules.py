# pyright: reportArgumentType=false
"""The programs stay as they are: engine, direction, tiles, order, fusion, flags and slots are the schedule's alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis.vendor.pretty import pretty

import tilelink
from tests.operators.placements import PLACEMENTS, Placed
from tests.operators.problems import AG, RS, Kind, assert_solves
from tests.selection import table
from tilelink import Operator, copy_engine, fused, library, sms
from tilelink.frontend.program import Program
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Placement
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring, programs
from tilelink.ops.gemm_rs_ring import ring

PROGRAMS: dict[str, Program] = {
    "gather": programs.gather,
    "matmul": programs.matmul,
    "reduce": programs.reduce,
    "ring": ring,
    "scatter": programs.scatter,
}
CAPTURED = {name: program.captured for name, program in PROGRAMS.items()}
"""Taken once, before any schedule."""

Walk = list[tuple[str, Placement]]
FAST = {"M": 16, "N": 16, "K": 16}


def gathers() -> Walk:
    """From the copy engine to SMs, from pull to push, over tiles that neither divide nor are powers of two."""
    return [
        ("copy engine, 2 streams", copy_engine(streams=2)),
        ("copy engine, push", copy_engine(push=True)),
        ("copy engine, pull", copy_engine(push=False)),
        *((f"copy engine, M={m}", copy_engine(M=m, push=True)) for m in (1, 5, 8, 64)),
        ("SMs", sms(1)),
        *((f"SMs, pull, M={m}", sms(2, M=m, order="ring")) for m in (3, 16, 64)),
        *((f"SMs, push, M={m}", sms(2, M=m, order="ring+1", push=True)) for m in (3, 16, 64)),
        ("own kernel", sms(3, M=8, own_kernel=True)),
    ]


def matmuls() -> Walk:
    """Every tile size on its own and all together, every order, warps and stages."""
    sizes = [{**FAST, dim: size} for dim in FAST for size in (32, 64)] + [{"M": 32, "N": 32, "K": 64}]
    return [
        *((f"tiles of {s}", sms(**s)) for s in sizes),
        *(
            (f"order {order}", sms(order=order, **FAST))
            for order in ("row", "column", "group 2", "ring", "ring+1", ("ring+1", "group 2"), ("ring", "column"))
        ),
        ("8 warps, 4 stages", sms(num_warps=8, num_stages=4, **FAST)),
        ("5 SMs", sms(5, **FAST)),
    ]


def scatters() -> Walk:
    return [
        ("fused", fused("matmul")),
        ("copy engine", copy_engine(order="ring+1")),
        ("copy engine, pull", copy_engine(M=8, push=False)),
        *((f"copy engine, M={m}", copy_engine(M=m, order="ring+1")) for m in (16, 32)),
        *((f"SMs, push, M={m}", sms(2, M=m, order="ring+1")) for m in (5, 16)),
        *((f"SMs, pull, M={m}", sms(2, M=m, push=False)) for m in (5, 16)),
    ]


def reductions() -> Walk:
    return [("fused", fused("matmul")), *((f"M={m} N={n}", sms(M=m, N=n)) for m, n in ((4, 32), (32, 8)))]


def schedules() -> Iterator[Placed]:
    """One thing at a time is changed."""
    ag = ag_gemm.schedule(gather=sms(2, M=16), matmul=sms(order="ring", **FAST))
    rs = gemm_rs.schedule(scatter=sms(2, M=16), reduce=sms(M=16, N=16), matmul=sms(order="ring+1", **FAST))
    around = gemm_rs_ring.schedule(ring=sms(4, M=16, N=16, order="ring+1"), matmul=sms(order="ring+1", **FAST))
    walks: list[tuple[Kind, Operator, str, Walk]] = [
        (AG, ag, "gather", gathers()),
        (AG, ag, "matmul", matmuls()),
        (RS, rs, "scatter", scatters()),
        (RS, rs, "reduce", [w for w in reductions() if w[0] != "fused"]),
        (RS, rs.schedule(scatter=fused("matmul")), "reduce", reductions()),
        (RS, rs, "matmul", matmuls()),
        (
            RS,
            around,
            "ring",
            [("fused", fused("matmul")), *((f"M={m}", sms(3, M=m, N=32, order="ring+1")) for m in (4, 32))],
        ),
    ]
    for kind, operator, step, walk in walks:
        for name, placement in walk:
            yield Placed(f"{operator.name} {step}: {name}", kind, operator.schedule({step: placement}))
    for slots in (1, 4):
        yield Placed(f"ag_gemm: {slots} slots", AG, ag.schedule(slots=slots))
    for span in (32, 64):
        yield Placed(f"ag_gemm: {span} rows per flag", AG, ag.schedule(channels={"rows": span}))


SCHEDULES = tuple(schedules())


def plan_of(placed: Placed, rows: int = 33) -> Plan:
    call = placed.kind.call(rows, 40, 24, 3, torch.float32)
    return placed.operator.plan(*call.inputs[0], ranks=3, **call.given)


@pytest.mark.parametrize("placed", SCHEDULES, ids=str)
def test_each_schedule_runs_the_same_programs(placed: Placed) -> None:
    plan = plan_of(placed)
    for step in plan.steps:
        assert step.step.program is CAPTURED[step.path]
    assert_solves(placed.operator, [placed.kind.call(33, 40, 24, 3, torch.float32)], seed=1, straggler=0)
    assert {name: program.captured for name, program in PROGRAMS.items()} == CAPTURED


@pytest.mark.parametrize("placed", PLACEMENTS, ids=str)
def test_every_placement_is_one_of_the_same_programs(placed: Placed) -> None:
    plan = plan_of(placed)
    assert [s.step.program for s in plan.steps] == [CAPTURED[s.path] for s in plan.steps]
    assert all(s.step.program is CAPTURED[s.path] for s in plan.steps)


def test_a_schedule_changes_how_it_runs() -> None:
    """No two of them are one plan under two names."""
    plans = [plan_of(p) for p in SCHEDULES if p.kind is AG]
    hows = {(p.steps, p.kernels, p.host, p.channels, p.schedule.slots) for p in plans}
    assert len(hows) == len(plans)


def test_a_scheduled_operator_is_another_object() -> None:
    before = ag_gemm.schedules
    scheduled = ag_gemm.schedule(gather=copy_engine(M=64))
    assert scheduled is not ag_gemm
    assert ag_gemm.schedules == before
    assert scheduled.schedule(matmul=sms(M=64)).schedules.get("gather") == copy_engine(M=64)


# -------------------------------------------------------------------------------------------------- how schedules are shown
def by_row(tile: tuple[int, ...], rank: int, ranks: int) -> tuple[int, ...]:
    return tile


@table(
    "placement",
    [
        sms(),
        sms(4, M=128, N=64, order=("ring", by_row), push=True, num_warps=8, num_stages=4, own_kernel=True),
        sms(0.5, order="ring+1", joins="matmul"),
        copy_engine(),
        copy_engine(M=2048, order="ring", push=False, streams=2),
        fused("matmul"),
        fused("matmul", N=64, deferred=None),
        library("torch.mm", M="M/R", N=8, order="ring", streams=2, fallback=sms(M=16)),
    ],
    ids=repr,
)
def test_a_placement_is_shown_as_the_call_that_makes_it(placement: Placement) -> None:
    assert eval(repr(placement), {**vars(tilelink), "by_row": by_row}) == placement


def test_an_operator_is_shown_in_a_line() -> None:
    placed = ag_gemm.schedule(gather=copy_engine(M=64, push=True), matmul=sms(M=16, order=("ring", "group 4")), slots=3)
    wanted = (
        "<operator ag_gemm `M/R K, K N -> M N` scheduled gather=copy_engine(M=64, push=True), "
        "matmul=sms(M=16, order=('ring', 'group 4')), slots=3>"
    )
    assert repr(placed) == wanted
    assert pretty(placed) == wanted
    assert repr(ag_gemm) == "<operator ag_gemm `M/R K, K N -> M N`>"
    more = ag_gemm.schedule(channels={"rows": 64}, unfused=True)
    assert repr(more) == "<operator ag_gemm `M/R K, K N -> M N` scheduled channels={'rows': 64}, unfused=True>"
