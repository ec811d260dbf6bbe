# pyright: reportArgumentType=false
"""Library functions instead of kernels: which programs can have them, what streams do, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import assert_right
from tests.mapping.plans import emitted, plan_of, verify
from tests.operators.problems import AG, RS, Kind, Problem, alone, assert_as_torch, assert_solves, each, random, split
from tests.selection import table
from tilelink import Operator, TilelinkError, copy_engine, fused, library, operator, program, sms
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Join, Launch, Plan, Transfer
from tilelink.ir.schedule import Placement
from tilelink.ir.streams import Action, Actions, Compute, Wait, actions
from tilelink.ir.topology import Device
from tilelink.mapping.lower import lower
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring
from tilelink.ops.programs import gather, matmul

SIZES = {"M": 64, "K": 16, "N": 24}
PARTS = library("torch.mm", M="M/R")
TILE = {"M": 16, "N": 16, "K": 16}


def summed(inbox: torch.Tensor, *, out: torch.Tensor) -> None:
    """The reduction of GEMM+RS, written by a user."""
    torch.sum(inbox, 0, out=out)


AG_FORMS: dict[str, Operator] = {
    "push": ag_gemm.schedule(gather=copy_engine(push=True), matmul=PARTS),
    "pull in chunks": ag_gemm.schedule(gather=copy_engine(M=8, push=False), matmul=PARTS),
    "chunks of chunks, two streams": ag_gemm.schedule(
        gather=copy_engine(M=8, push=True), matmul=library("torch.mm", M=12, streams=2)
    ),
    "SMs": ag_gemm.schedule(gather=sms(2, M=16, push=True), matmul=PARTS),
    "all at once": ag_gemm.schedule(gather=copy_engine(push=True), matmul=library("torch.mm")),
}
RS_FORMS: dict[str, Operator] = {
    "scatter by copy engine": gemm_rs.schedule(
        scatter=copy_engine(M=8), matmul=library("torch.mm", M=8), reduce=sms(M=16, N=16)
    ),
    "scatter pulls": gemm_rs.schedule(scatter=copy_engine(push=False), matmul=PARTS, reduce=sms(M=16, N=16)),
    "scatter by SMs": gemm_rs.schedule(scatter=sms(2, M=8), matmul=PARTS, reduce=sms(M=16, N=16)),
    "reduction": gemm_rs.schedule(
        scatter=copy_engine(), matmul=sms(order="ring+1", **TILE), reduce=library(summed, M=8)
    ),
    "all of it": gemm_rs.schedule(scatter=copy_engine(), matmul=PARTS, reduce=library(summed)),
}
FORMS = [(AG, name, op) for name, op in AG_FORMS.items()] + [(RS, name, op) for name, op in RS_FORMS.items()]


@pytest.mark.parametrize(("kind", "name", "op"), FORMS, ids=[f"{k.name} {n}" for k, n, _ in FORMS])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_against_torch(kind: Kind, name: str, op: Operator, ranks: int) -> None:
    """Three calls with data of their own: ragged parts, and a rank without rows."""
    for rows in (33, 2) if ranks > 2 else (33,):
        calls = [kind.call(rows, 24, 16, ranks, torch.float32, salt=s) for s in range(3)]
        assert_solves(op, calls, seed=ranks, straggler=0)


def test_a_weight_that_is_turned_and_wants_gradients() -> None:
    calls = [AG.call(32, 24, 16, 2, torch.float32, turned=True)]
    for _, weight in calls[0].inputs:
        weight.requires_grad_()
    try:
        assert_solves(AG_FORMS["push"], calls)
    finally:
        for _, weight in calls[0].inputs:
            weight.requires_grad_(False)


# ------------------------------------------------------------------------------------------------------ what streams do
def done(plan: Plan, step: str, rank: int) -> list[Action]:
    (found,) = actions(lower(plan), step, rank)
    return list(found)


def test_own_rows_first_read_where_they_lie_then_each_part_behind_its_flag() -> None:
    plan = plan_of(ag_gemm, 4, SIZES, gather=copy_engine(push=True), matmul=PARTS)
    first, *rest = done(plan, "matmul", 1)
    assert isinstance(first, Compute)
    assert first.output is not None
    assert [(p.buffer, p.box[0]) for p in (*first.inputs, first.output)] == [
        ("x", (0, 16)),
        ("weight", (0, 16)),
        ("out", (16, 32)),
    ]
    for wait, call, part in zip(rest[::2], rest[1::2], (2, 3, 0), strict=True):
        assert wait == Wait("rows", part, "epoch")
        assert isinstance(call, Compute)
        lies = (16 * part, 16 * part + 16), (0, 16)
        assert (call.inputs[0].buffer, call.inputs[0].box) == ("rows", lies)
        assert call.output is not None
        assert call.output.box == (lies[0], (0, 24))


@program("M K, N K -> M N")
def against(rows: Any, others: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    tl.consumer_tile_wait(others, n)
    tl.tile_store(out, (m, n), tl.dot(tl.tile_load(rows, m), tl.trans(tl.tile_load(others, n))))


@program("M K, M K -> M K")
def times(rows: Any, others: Any, out: Any) -> None:
    m, k = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    tl.consumer_tile_wait(others, m)
    tl.tile_store(out, (m, k), tl.tile_load(rows, (m, k)) * tl.tile_load(others, (m, k)))


@operator("M/R K -> M M")
def gram(x: Any) -> Any:
    return against(*[gather(x)] * 2)


@operator("M/R K -> M K")
def squares(x: Any) -> Any:
    return times(*[gather(x)] * 2)


@table("step", [sms(M=4, N=4), library("torch.mm", M="M/R")], ids=["SMs", "library"])
def test_a_tensor_that_is_read_at_two_tiles_is_not_read_in_place(step: Placement) -> None:
    """Whose own part it is would have two answers."""
    plan = plan_of(gram, 3, {"M": 12, "K": 4}, gather=copy_engine(push=True), against=step)
    assert not any(s.in_place for s in plan.steps)
    assert verify(plan).ok


@operator("M/R K -> M K, M K")
def squares_and_rows(x: Any) -> Any:
    rows = gather(x)
    return times(rows, rows), rows


@pytest.mark.parametrize("step", [sms(M=4, K=4), library("torch.mul", M="M/R")], ids=["SMs", "library"])
def test_what_is_a_result_too_is_not_read_in_place(step: Placement) -> None:
    """The caller gets all of it, and what is read in place is not moved."""
    placed = {"gather": copy_engine(push=False), "times": step}
    plan = plan_of(squares_and_rows, 3, {"M": 12, "K": 4}, **placed)
    assert not any(s.in_place for s in plan.steps)
    x = random(12, 4)
    assert_as_torch(squares_and_rows.schedule(placed), Problem(each(split(x, 3)), [(x * x, x)] * 3))


@pytest.mark.parametrize("step", [sms(M=4, K=4), library("torch.mul", M="M/R")], ids=["SMs", "library"])
def test_rows_that_lie_apart_are_not_read_in_place(step: Placement) -> None:
    """They have other strides than what is gathered of them."""
    x = random(12, 4)
    apart = [torch.nn.functional.pad(part, (0, 4))[:, :4] for part in split(x, 3)]
    assert not any(part.is_contiguous() for part in apart)
    placed = squares.schedule(gather=copy_engine(push=False), times=step)
    assert_as_torch(placed, Problem(each(apart), [(x * x,)] * 3))


@pytest.mark.parametrize("step", [sms(M=4, K=4), library("torch.mul", M="M/R")], ids=["SMs", "library"])
def test_a_tensor_that_is_read_twice_at_a_tile_is_read_in_place(step: Placement) -> None:
    plan = plan_of(squares, 3, {"M": 12, "K": 4}, gather=copy_engine(push=True), times=step)
    assert [(i.tensor, i.source) for i in plan.step("times").in_place] == [("rows", "x")]
    assert_right(plan)
    x = random(12, 4)
    assert_as_torch(
        squares.schedule(gather=copy_engine(push=True), times=step), Problem(each(split(x, 3)), [(x * x,)] * 3)
    )


def test_a_kernel_that_waits_for_a_library_starts_behind_it() -> None:
    """Its workers would stay, and leave the function no room; the copies go on beside."""
    plan = plan_of(gemm_rs, 4, SIZES, scatter=copy_engine(M=8), matmul=PARTS, reduce=sms(M=16, N=16))
    kinds = [h for h in plan.host if isinstance(h, (Transfer, Join, Launch))]
    assert kinds == [
        Transfer("matmul", 1),
        Transfer("scatter", 2),
        Join(1),
        Launch("reduce", 0),
        Join(2),
    ]
    assert plan.step("reduce").workers == 63  # of 64: a stream that waits for the function's flags has one


def test_on_a_device_with_two_sms() -> None:
    """The simulation gives a library function no room that a kernel's workers have."""
    call = RS.call(33, 24, 16, 3, torch.float32)
    assert_solves(RS_FORMS["scatter by copy engine"], [call], device=Device(sms=2))


def without_waits(step: str) -> Callable[[Lowered, str, int], Actions]:
    """`actions`, of which the streams of this step's function wait for nothing."""

    def careless(lowered: Lowered, name: str, rank: int) -> Actions:
        streams = actions(lowered, name, rank)
        if name != step:
            return streams
        return tuple(tuple(a for a in stream if not isinstance(a, Wait)) for stream in streams)

    return careless


def test_a_missing_wait_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """The detector sees what the function reads."""
    monkeypatch.setattr("tilelink.pipeline.compiled.actions", without_waits("matmul"))
    op = AG_FORMS["push"].with_schedule(AG_FORMS["push"].schedules)
    with pytest.raises(TilelinkError, match="TL507"):
        assert_solves(op, [AG.call(33, 24, 16, 2, torch.float32)], seed=0, straggler=1)


def test_the_emitted_file_says_what_is_called() -> None:
    plan = plan_of(ag_gemm, 4, SIZES, gather=copy_engine(push=True), matmul=library("torch.mm", M="M/R", streams=2))
    source = emitted(plan)
    assert (
        "    matmul  library torch.mm(rows[M by M/R, K], weight[K, N], out=out[M by M/R, N]), order 'ring', over 2 streams"
        in (source.text.splitlines())
    )
    assert [k.name for k in source.kernels] == ["call_entry", "await_flag"]


def test_a_trace_shows_the_library() -> None:
    call = AG.call(32, 24, 16, 2, torch.float32)
    trace = AG_FORMS["push"].trace(*call.listed)
    lanes = [lane for lane in trace.lanes if lane.label == "library"]
    assert [lane.rank for lane in lanes] == [0, 1]
    for lane in lanes:
        assert [(s.kind, s.name, s.detail) for s in lane.spans if s.kind == "compute"] == [
            ("compute", "matmul", "torch.mm")
        ] * 2


# ---------------------------------------------------------------------------------------------------------- functions
def test_an_operator_of_a_users_functions_alone() -> None:
    """A function of two inputs and a constant behind one of a library: streams wait for one another by flags."""

    @program("M N, M N -> M N")
    def gated(gate: Any, up: Any, out: Any, *, power: int = 1) -> None:
        m, n = tl.tile_id(out)
        tl.consumer_tile_wait(gate, (m, n))
        g, u = tl.tile_load(gate, (m, n)), tl.tile_load(up, (m, n))
        tl.tile_store(out, (m, n), g * u * power)

    def gating(gate: torch.Tensor, up: torch.Tensor, *, out: torch.Tensor, power: int) -> None:
        out.copy_(gate * up * power)

    @operator("M K, K N, M N -> M N")
    def gated_matmul(x: Any, weight: Any, up: Any) -> Any:
        return gated(matmul(x, weight), up, power=3)

    x, weight, up = torch.randn(20, 8), torch.randn(8, 12), torch.randn(20, 12)
    op = gated_matmul.schedule(matmul=library("torch.mm", M=8), gated=library(gating, M=8, order="row"))
    (got,) = tilelink.launch(lambda: op(x, weight, up), 1)
    torch.testing.assert_close(got, (x @ weight) * up * 3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rows, weight, *, out: torch.mm(rows, weight),
        lambda rows, weight, *, out: out.add_(torch.mm(rows, weight)),
        lambda rows, weight, *, out: out[1:].copy_(torch.mm(rows, weight)[1:]),
    ],
    ids=["leaves its result elsewhere", "adds to what is there", "leaves out a row"],
)
def test_functions_that_do_not_write_their_tile_are_found_out(wrong: Callable[..., Any]) -> None:
    """The simulation gives them poison to write to."""
    with pytest.raises(AssertionError, match="relative error nan"):
        assert_solves(
            AG_FORMS["push"].schedule(matmul=library(wrong, M="M/R")), [AG.call(32, 24, 16, 2, torch.float32)]
        )


def test_a_function_that_refuses_its_views_is_named_with_them() -> None:
    with pytest.raises(TilelinkError) as caught:
        assert_solves(
            AG_FORMS["push"].schedule(matmul=library("torch.add", M="M/R")), [AG.call(32, 24, 16, 2, torch.float32)]
        )
    error = caught.value
    assert error.code == "TL409"
    assert error.message.startswith("`torch.add` does not compute a tile of `matmul`: ")
    assert error.why == "it is called as torch.add(float32[16, 16], float32[16, 24], out=float32[16, 24])"


@table("name", ["torch.no_such_thing", "no_such_module.mm", "torch", "", "mm"])
def test_functions_that_are_not_there(name: str) -> None:
    with pytest.raises(TilelinkError, match="TL408"):
        library(name, M="M/R")


# ------------------------------------------------------------------------------------------------- what cannot be placed
@program("M N -> M N")
def branching(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    if tl.tile_begin(out, m) > 4:
        value = value * 2
    tl.tile_store(out, (m, n), value)


@program("M N -> M N")
def masked(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)), mask=tl.tile_load(x, (m, n)) > 0)


@program("M N -> M N, M N")
def doubled(x: Any, out: Any, twice: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))
    tl.tile_store(twice, (m, n), 2 * tl.tile_load(x, (m, n)))


@program("h N -> h N")
def walked(x: Any, out: Any) -> None:
    h, n = tl.tile_id(out)
    tl.tile_store(out, (h, n), tl.tile_load(x, (h, n)))


@program("M M -> M M")
def turned(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)) + tl.tile_load(x, (n, m)))


@table(
    "op, step, placement, why",
    [
        (ag_gemm, "gather", PARTS, "it only moves: there is nothing to compute"),
        (
            gemm_rs_ring,
            "ring",
            PARTS,
            "a library function makes one tensor, tile by tile, and this program is not made so",
        ),
        (
            ag_gemm,
            "matmul",
            library("torch.mm", K=16),
            "the function gets all of `K`, which is no axis of what it makes, unless it says how to merge what parts give "
            "(tilelink.by_panels)",
        ),
        (
            alone(branching),
            "branching",
            PARTS,
            "it branches or loops, and a function takes each tile whole",
        ),
        (alone(masked), "masked", PARTS, "it does not store each tile once, as a whole and at home"),
        (
            alone(doubled),
            "doubled",
            PARTS,
            "a library function makes one tensor, tile by tile, and this program is not made so",
        ),
        (alone(walked), "walked", library("torch.abs"), "it walks `h` one at a time"),
        (
            alone(turned),
            "turned",
            PARTS,
            "it reads `x` at two tiles, and the function gets one view of it",
        ),
    ],
    ids=["copy_program", "pushes", "depth", "branch", "mask", "two results", "single", "two tiles"],
)
def test_what_cannot_be_placed_in_a_library_says_why(op: Operator, step: str, placement: Any, why: str) -> None:
    with pytest.raises(TilelinkError) as caught:
        plan_of(op, 2, {"M": 16, "K": 16, "N": 16, "h": 4}, **{step: placement})
    error = caught.value
    assert error.code == "TL312"
    assert error.message == f"`{step}` cannot be placed in a library function"
    assert error.why == why


def test_nothing_is_fused_into_a_library_function() -> None:
    with pytest.raises(TilelinkError, match="TL312: `scatter` cannot be placed so: fused") as caught:
        plan_of(gemm_rs, 2, SIZES, scatter=fused("matmul"), matmul=PARTS, reduce=sms(M=16, N=16))
    assert caught.value.why == "a library function ends without giving its tile away"


def test_tiles_that_do_not_exist() -> None:
    with pytest.raises(TilelinkError, match=r"TL329: the tile along `M` is 'K/R'"):
        library("torch.mm", M="K/R")
    with pytest.raises(TilelinkError, match="TL315"):
        plan_of(ag_gemm, 2, SIZES, gather=copy_engine(push=True), matmul=library("torch.mm", Q=4))


def test_the_proof_covers_it() -> None:
    plan = plan_of(gemm_rs, 4, SIZES, scatter=copy_engine(M=8), matmul=PARTS, reduce=sms(M=16, N=16))
    said = {p.rule: p.text for p in verify(plan).proofs}
    assert "`matmul_out`" in said["coverage"]
