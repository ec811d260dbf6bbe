"""A plan that something is wrong with is refused, with the code of what is wrong; whatever is accepted is right."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.mapping.corrupt import CORRUPTIONS, spoilt
from tests.mapping.oracle import asked, assert_refused, assert_right
from tests.mapping.plans import (
    form,
    forms,
    launched_backwards,
    plan_of,
    unguarded,
    with_axis,
    with_buffer,
    with_channel,
    with_signal,
    with_step,
)
from tests.selection import cases, table
from tilelink import copy_engine, fused, operator, sms
from tilelink.ir import formula as F
from tilelink.ir.plan import CallEntry, Fork, Join, Launch, Plan, Stage
from tilelink.ir.schedule import CopyEngine, Placement, Sms
from tilelink.mapping.judge import judge
from tilelink.mapping.orders import decode
from tilelink.ops import gemm_rs, gemm_rs_ring
from tilelink.ops.programs import gather

SIZES = {"M": 12, "K": 4, "N": 6}
EPILOGUE = "gemm_rs fused, reduced in the epilogue"
CHUNKS = "gemm_rs copy engine, reduced in the epilogue"


def small(name: str, ranks: int = 3) -> Plan:
    plan = form(name, ranks, SIZES, 2)
    assert_right(plan)
    return plan


# --------------------------------------------------------------------------------------------------------------- counts
@table(
    "name, tensor",
    [("ag_gemm pull", "rows"), (EPILOGUE, "dst"), ("gemm_rs push", "matmul_out"), ("gemm_rs_ring", "inbox")],
)
def test_a_target_that_is_one_too_great(name: str, tensor: str) -> None:
    plan = small(name)
    error = assert_refused(with_channel(plan, tensor, target=plan.channel(tensor).target + 1), "TL607")
    assert f"of `{tensor}` on rank 0 is signalled" in error.message


def test_a_target_that_is_too_small() -> None:
    """Chunks of two tiles by two columns of tiles: four notifies a flag."""
    plan = small(CHUNKS)
    target = F.minimum(plan.channel("matmul_out").target, 1)
    assert assert_refused(with_channel(plan, "matmul_out", target=target), "TL607").message == (
        "flag 1 of `matmul_out` on rank 0 is signalled 6 times, and expects 1"  # rank 0 keeps flag 0
    )


@table("to", ["self", "all"])
def test_a_notify_that_goes_to_others_than_the_tile(to: str) -> None:
    assert_refused(with_signal(small(EPILOGUE), "scatter", "dst", "notify", to=to), "TL607")


def test_a_notify_to_everyone_where_one_rank_waits() -> None:
    assert_refused(with_signal(small("ag_gemm push"), "gather", "rows", "notify", to="self"), "TL607")


def test_a_flag_that_is_longer_than_its_target_knows() -> None:
    assert_refused(with_axis(small(EPILOGUE), "dst", 1, span=3), "TL607")


def test_flags_counted_over_all_rows_instead_of_each_part() -> None:
    assert_refused(with_axis(form(EPILOGUE, 3, {"M": 13, "K": 4, "N": 6}, 2), "dst", 1, kind="plain"), "TL607")


def test_a_copy_engine_with_two_tiles_to_a_flag() -> None:
    plan = form("ag_gemm copy engine push", 2, {"M": 16, "K": 4, "N": 4}, 2)
    axis = plan.channel("rows").axes[0]
    wide = replace(axis, span=8)
    assert_refused(with_channel(with_axis(plan, "rows", 0, span=8), "rows", target=F.cdiv(wide.step, 4)), "TL607")


# ---------------------------------------------------------------------------------------------------------------- waits
def test_a_chunk_longer_than_its_flags_waits_for_all_of_them() -> None:
    """Flags of two rows, and chunks of a whole part: no mistake, only more flags to look at."""
    plan = small("gemm_rs push")
    grid = tuple(replace(g, tile=None) if g.kind == "cut" else g for g in plan.step("scatter").grid)
    order, total = decode(grid, ("row",))
    longer = with_step(plan, "scatter", grid=grid, order=order, total=total)
    assert_right(longer)


def test_a_copy_engine_with_two_flags_to_a_tile() -> None:
    """It sets the first of them, and nobody waits for the second."""
    plan = form("gemm_rs copy engine", 2, {"M": 16, "K": 4, "N": 4}, 2)
    assert_right(with_axis(plan, "dst", 1, span=2))


# -------------------------------------------------------------------------------------------------------- dropped signals
@pytest.mark.parametrize("name", sorted(forms()))
def test_no_signal_can_be_left_out(name: str) -> None:
    """Every wait and notify that became flags is needed: the reasons for leaving signals out do not hold for it."""
    plan = small(name)
    kept = [s for s in plan.signals if s.action in ("await", "notify", "ready")]
    assert kept
    for s in kept:
        for reason in ("nobody waits",) if s.action == "notify" else ("worker", "stream", "argument", "magic"):
            without = with_signal(plan, s.path, s.op.param, s.action, action="elided", channel=None, reason=reason)
            assert asked(without).error is not None, (s, reason)


def test_a_signal_that_the_plan_does_not_mention() -> None:
    plan = small("ag_gemm pull")
    for s in plan.signals:
        spoilt = replace(plan, signals=tuple(t for t in plan.signals if t is not s))
        assert asked(spoilt).ok == (s.action == "elided")


def test_kernels_in_the_wrong_order() -> None:
    """The reduction of what was pulled is left to the order of kernels."""
    plan = small("gemm_rs pull")
    assert_refused(launched_backwards(plan), "TL609")


def test_an_argument_that_is_not_staged() -> None:
    plan = small("ag_gemm pull")
    error = assert_refused(replace(plan, host=tuple(h for h in plan.host if not isinstance(h, Stage))), "TL604")
    assert error.message == "`x@stage` is never written, and `gather` reads it"


def test_a_stage_that_is_never_filled() -> None:
    """The argument itself could be read by peers, and they look elsewhere."""
    op = operator("M/R N -> M N", name="alone")(lambda x: gather(x))
    plan = plan_of(op, 2, {"M": 4, "N": 2}, in_place=True, gather=sms(2, M=2, push=False))
    assert_right(plan)
    assert_refused(with_buffer(plan, "x", stage=plan.buffer("x").extents), "TL604")


def test_a_kernel_that_is_never_launched() -> None:
    plan = small("gemm_rs push")
    *first, _ = [h for h in plan.host if isinstance(h, Launch)]
    error = assert_refused(replace(plan, host=(CallEntry(), *first)), "TL604")
    assert error.message == "`reduce_out` is never written, and it is a result"


def test_a_kernel_that_is_launched_twice() -> None:
    plan = small("gemm_rs push")
    assert_refused(replace(plan, host=(*plan.host, plan.host[-1])), "TL604")


def test_the_kernels_of_a_whole_call_begin_and_end_it() -> None:
    plan = small("gemm_rs pull")
    assert plan.whole_call == tuple(h.kernel for h in plan.host[1:] if isinstance(h, Launch))
    assert len(plan.whole_call) == 2
    assert replace(plan, host=(*plan.host, Fork(1), Join(1))).whole_call == ()


@table("moved", [sms(2, M=2, push=False), copy_engine(push=False)], ids=["workers", "stream"])
def test_a_call_without_flags_begins_too(moved: Placement) -> None:
    """What says that an argument is ready is the number of the call."""
    op = operator("M/R N -> M N", name="alone")(lambda x: gather(x))
    plan = plan_of(op, 2, {"M": 4, "N": 2}, gather=moved)
    assert (plan.channels, isinstance(plan.host[0], CallEntry)) == ((), True)
    assert_refused(replace(plan, host=plan.host[1:]), "TL609")


def test_a_copy_engine_that_tells_its_own_rank() -> None:
    """What it has moved is not what this GPU's threads have written."""
    plan = small("ag_gemm copy engine pull")
    assert {s.to for s in plan.signals if s.action == "notify"} == {"self"}
    assert_refused(with_channel(plan, "rows", scope="gpu"), "TL612")


def test_a_side_stream_that_nobody_joins() -> None:
    plan = small(CHUNKS)
    assert any(isinstance(h, Fork) for h in plan.host)
    error = assert_refused(replace(plan, host=tuple(h for h in plan.host if not isinstance(h, Join))), "TL609")
    assert error.message == "side stream 1 is never joined"


# ------------------------------------------------------------------------------------------------------ coverage and bounds
def test_own_tiles_that_are_neither_moved_nor_in_registers() -> None:
    error = assert_refused(with_step(small("gemm_rs push"), "scatter", skip_own=True), "TL604")
    assert error.message == "positions 0 to 1 of axis `R` of `dst` are never written, and `reduce` reads it"


def test_tiles_that_leave_gaps() -> None:
    """A gather of own rows only."""
    plan = form("ag_gemm pull", 2, SIZES, 2)
    grid = tuple(replace(g, kind="mine") if g.kind == "cut" else g for g in plan.step("gather").grid)
    order, total = decode(grid, ("row",))
    error = assert_refused(with_step(plan, "gather", grid=grid, order=order, total=total), "TL604")
    assert error.message == "positions 6 to 12 of axis `M` of `rows` are never written, and `matmul` reads it"


def test_an_order_that_takes_a_tile_twice() -> None:
    plan = small("ag_gemm pull")
    order = tuple((n, F.of(0)) if n == "i1" else (n, v) for n, v in plan.step("matmul").order)
    assert_refused(with_step(plan, "matmul", order=order), "TL604")


def test_a_circle_of_another_length_on_each_rank() -> None:
    """What is right on the first rank is so on all that go round the same circle."""
    plan = form("ag_gemm pull", 2, {"M": 4, "K": 4, "N": 2}, 2)
    assert [name for name, _ in plan.step("gather").order] == ["i1", "i0"]
    turned = (F.Sym("t") + F.Sym("rank")) % F.select(F.Sym("rank"), 1, 2)
    assert_refused(with_step(plan, "gather", order=(("i1", F.of(0)), ("i0", turned))), "TL604")


@table("at, row, column", [(2, -1, 2), (1, 1, -2)])
def test_a_tile_beyond_an_edge_is_no_tile_of_another_row(at: int, row: int, column: int) -> None:
    """Counted row by row, it would be the one that it stands for."""
    plan = form("gemm_rs pull", 1, {"M": 4, "K": 4, "N": 4}, 2)
    t = F.Sym("t")
    here = F.binary("==", t, at)
    order = (("i0", t // 2 + F.select(here, row, 0)), ("i1", t % 2 + F.select(here, column, 0)))
    assert_refused(with_step(plan, "matmul", order=order), "TL604")


def test_an_order_with_tiles_left_over() -> None:
    plan = small("ag_gemm pull")
    error = assert_refused(with_step(plan, "matmul", total=plan.step("matmul").total - 1), "TL604")
    assert error.message == "`matmul` leaves out a tile for which there is something to do"


def test_a_buffer_that_is_too_small() -> None:
    plan = small("ag_gemm pull")
    first, *others = plan.buffer("rows").extents
    assert_refused(with_buffer(plan, "rows", extents=(first - 1, *others)), "TL611")


def test_symmetric_memory_of_two_sizes() -> None:
    plan = small(EPILOGUE)
    slices, rows, columns = plan.buffer("dst").extents
    uneven = with_buffer(plan, "dst", extents=(slices, rows + F.Sym("rank"), columns))
    assert assert_refused(uneven, "TL611").message == "`dst` has another size on each rank"


# -------------------------------------------------------------------------------------------------------------- deadlock
def test_own_rows_first_with_the_reduction_in_the_epilogue() -> None:
    sizes = {"M": 4, "K": 4, "N": 6}
    tile = sms(M=2, N=8, K=4, order="ring")
    plan = plan_of(gemm_rs, 2, sizes, scatter=fused("matmul"), reduce=fused("matmul"), matmul=tile)
    error = assert_refused(plan, "TL605")
    assert error.message == "`reduce` waits in a circle for itself"
    assert error.hint == 'order `matmul` so that what others wait for comes first, such as order="ring+1" (now "ring")'


@table("order", ["ring", "ring+2"])
def test_a_ring_that_runs_against_its_order(order: str) -> None:
    tile = sms(M=2, N=8, K=4, order="ring+1")
    plan = plan_of(gemm_rs_ring, 4, SIZES, ring=sms(4, M=2, N=8, order=order), matmul=tile)
    assert_refused(plan, "TL605")


def test_a_kernel_that_starts_behind_one_that_waits_for_it() -> None:
    """Whatever runs the tiles are in: between kernels that start one behind the other nothing is earlier."""
    tile: dict[str, Any] = {"M": 2, "N": 2, "order": "ring+1", "own_kernel": True}
    plan = plan_of(gemm_rs_ring, 3, SIZES, ring=sms(2, **tile), matmul=sms(K=2, **tile))
    assert_right(plan)
    made, ring = (next(h for h in plan.host if isinstance(h, Launch) and h.kernel == k) for k in ("matmul", "ring"))
    around = [(Fork(h.stream), h, Join(h.stream)) for h in (made, ring)]
    assert_right(replace(plan, host=(plan.host[0], *(s for at in zip(*around, strict=True) for s in at))))
    host = (plan.host[0], *around[1], *around[0])
    assert_refused(replace(plan, host=host), "TL605")


def test_the_cycle_of_many_ranks_is_found() -> None:
    tile = sms(M=128, N=256, K=64, order=("ring", "group 8"))
    sizes = {"M": 64 * 1024, "K": 512, "N": 4096}
    plan = plan_of(gemm_rs, 64, sizes, scatter=fused("matmul"), reduce=fused("matmul"), matmul=tile)
    error = judge(plan).error
    assert error is not None
    assert error.code == "TL605"


def waiting_for_own_rows_first() -> Plan:
    """Own rows stay where they are, the matmul makes them last, when it waits for the others' chunks: were a stream to wait
    for them before it moves any, that would be a circle."""
    tile = sms(M=2, N=8, K=4, order="ring+1")
    return plan_of(gemm_rs, 3, SIZES, scatter=copy_engine(M=4, order="ring"), reduce=fused("matmul"), matmul=tile)


def test_a_copy_engine_does_not_wait_for_own_rows() -> None:
    plan = waiting_for_own_rows_first()
    assert plan.channel("matmul_out").rings is not None
    assert_right(plan)


def test_a_copy_engine_that_waits_for_own_rows_first() -> None:
    plan = waiting_for_own_rows_first()
    plan = with_channel(plan, "matmul_out", rings=None, target=unguarded(plan.channel("matmul_out")))
    assert_refused(plan, "TL605")


@pytest.mark.parametrize("order", ["row", "column"])
def test_part_by_part_is_slow_but_ends(order: str) -> None:
    """Each round of parts waits for the one before: with many tiles, and in one in which each can be looked at."""
    for ranks, sizes, tile in ((3, SIZES, 2), (16, {"M": 16 * 997, "K": 64, "N": 1024}, 64)):
        made = sms(M=tile, N=tile, K=tile, order=order)
        plan = plan_of(gemm_rs, ranks, sizes, scatter=fused("matmul"), reduce=fused("matmul"), matmul=made)
        assert (asked if ranks < 8 else judge)(plan).ok


# ------------------------------------------------------------------------------------------------- whatever is accepted is right
@cases(60)
@given(
    name=st.sampled_from(sorted(forms())),
    ranks=st.integers(2, 4),
    rows=st.integers(1, 15),
    columns=st.integers(1, 4),
    how=st.sampled_from([*CORRUPTIONS]),
    rng=st.randoms(use_true_random=False),
)
def test_a_spoilt_plan_is_refused_or_right(
    name: str, ranks: int, rows: int, columns: int, how: str, rng: random.Random
) -> None:
    made = spoilt(rng, form(name, ranks, {"M": rows, "K": 2, "N": columns}, 2), how)
    assume(made is not None)
    assert made is not None
    error = asked(made).error
    assert error is None or (error.code.startswith("TL6") and error.loc is not None)


@cases(40)
@given(
    ranks=st.integers(1, 4),
    rows=st.integers(1, 15),
    engine=st.sampled_from(["fused", "sms", "stream"]),
    chunk=st.sampled_from([None, 1, 2, 3, 5]),
    first=st.sampled_from(["row", "column", "ring", "ring+1", "ring+2"]),
    then=st.sampled_from(["row", "ring", "ring+1"]),
)
def test_any_schedule_is_refused_or_right(
    ranks: int, rows: int, engine: str, chunk: int | None, first: str, then: str
) -> None:
    """Circles are found, and only circles."""
    tile = () if chunk is None else (("M", chunk),)
    scatter: dict[str, Placement] = {
        "fused": fused("matmul"),
        "sms": Sms(count=2, order=(then,), tile=tile),
        "stream": CopyEngine(order=(then,), tile=tile),
    }
    matmul = sms(M=2, N=2, K=2, order=first)
    sizes = {"M": rows, "K": 2, "N": 3}
    plan = plan_of(gemm_rs, ranks, sizes, scatter=scatter[engine], reduce=fused("matmul"), matmul=matmul)
    error = asked(plan).error
    assert error is None or error.code in ("TL605", "TL608")
