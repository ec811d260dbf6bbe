"""Operators that are no chains: the proof and the oracle say the same of them; what they differed about stays settled."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import plan_of, unguarded, with_signal, with_step
from tests.mapping.shelf import double, local
from tests.mapping.shelf_graphs import both, sound_plan
from tests.operators.language import gemm_rs_epilogue
from tests.selection import table
from tilelink import copy_engine, fused, library, operator, sms
from tilelink.errors import TilelinkError
from tilelink.ir.plan import CallExit, Keep, Plan, Stage, Transfer
from tilelink.ir.program import Tiles, walk
from tilelink.ir.schedule import Sms
from tilelink.ops import gemm_rs
from tilelink.ops.programs import gather, keep, matmul, reduce, scatter, share
from tilelink.ops.ulysses import to_heads


def _features(plan: Plan) -> set[str]:
    """What chains have not."""
    found: set[str] = {type(h).__name__ for h in plan.host}
    readers = Counter(t for s in plan.wiring.steps for t in {*s.takes})
    for s in plan.steps:
        loops = [op for op in walk(s.step.program.body) if isinstance(op, Tiles)]
        copy_program, placement = s.step.program.copy_program, s.step.placement
        has = {
            "deferred": s.deferred,
            "joins": isinstance(placement, Sms) and placement.joins is not None,
            "by panels": s.by_panels,
            "sort key": s.sort_key is not None,
            "own kernel": isinstance(placement, Sms) and placement.own_kernel and copy_program is None,
            "two parts in place": len(s.in_place) > 1,
            "pinned": copy_program is not None and copy_program.pinned,
            "a part of a loop": any(op.stop is not None for op in loops),
            "two outputs": len(s.step.makes) > 1,
            "inside": "." in s.path,
        }
        found |= {name for name, there in has.items() if there}
    has = {
        "several readers": any(n > 1 for t, n in readers.items() if plan.wiring.producers(t)),
        "several results": len(plan.wiring.results) > 1,
        "owner map": any(t.owned is not None for t in plan.wiring.tensors),
    }
    return found | {name for name, there in has.items() if there}


def test_the_plans_have_what_chains_have_not() -> None:
    """Otherwise the test above would show little."""
    seen = Counter(
        f for k in range(400) if (made := sound_plan(random.Random(k))) is not None for f in _features(made[1])
    )
    wanted = {
        "joins", "by panels", "sort key", "own kernel", "pinned", "a part of a loop", "two outputs", "inside",
        "several readers", "several results", "owner map", "two parts in place", "deferred", "Keep", "Stage", "CallExit",
    }  # fmt: skip
    assert {f: seen[f] for f in wanted if seen[f] < 3} == {}


# --------------------------------------------------------------------------------------- what the two once differed about
def kept(push: bool) -> Plan:
    """What rows of a rank's own are made of, moved within the rank and taken again."""
    op = operator("M/R N", name="kept")(lambda x: local(keep(local(x, name="first")), name="last"))
    tiles = sms(M=2, N=2)
    return plan_of(op, 2, {"M": 4, "N": 2}, first=tiles, keep=sms(2, M=2, push=push), last=tiles)


def test_what_stays_within_a_rank_has_no_direction() -> None:
    """A push of one's own part would be to all ranks of the line, each of which has a part of its own."""
    plan = kept(push=True)
    assert plan.steps == kept(push=False).steps
    assert_right(plan)


def test_what_is_seen_as_ones_own_part_is_pushed_to_nobody() -> None:
    op = operator("M/R N", name="returned")(lambda x: keep(local(x)))
    made = plan_of(op, 2, {"M": 4, "N": 2}, local=sms(M=2, N=2), keep=sms(2, M=2))
    assert_right(made)
    plan = with_step(made, "keep", push=True)
    assert_refused(plan, "TL604")


def test_a_rank_without_rows_has_no_tile_to_wait_for() -> None:
    """A stream sets no word for nothing, and whoever waited for it would wait forever."""
    op = operator("M/R N", name="few")(lambda x: keep(local(x)))
    made = library("torch.mm", M=1)
    for moved in (copy_engine(push=False), copy_engine(push=True, streams=2), sms(2)):
        plan = plan_of(op, 3, {"M": 2, "N": 2}, local=made, keep=moved)
        assert_right(plan)


@table("pulled", [copy_engine(push=False), sms(2, S=2, push=False)], ids=["stream", "workers"])
@table("made", [sms(M=2, N=2), library("torch.mm", M=2, N=2)], ids=["kernel", "library"])
def test_who_takes_columns_of_what_is_held_by_rows_hears_of_it(pulled: Any, made: Any) -> None:
    """The holder of a tile is not who waits for it: all ranks are told."""
    op = operator("M/R N", name="turned")(lambda x: to_heads(local(x)))
    plan = plan_of(op, 2, {"M": 4, "N": 4}, local=made, to_heads=pulled)
    assert {s.to for s in plan.signals if s.action == "notify"} == {"all"}
    assert_right(plan)


def test_what_peers_pull_and_this_rank_reads() -> None:
    op = operator("M N", name="both_ways")(lambda x: (keep(share(made := double(x, name="first"))), double(made)))
    tiles = sms(M=2, N=2)
    plan = plan_of(op, 2, {"M": 4, "N": 2}, first=library("torch.mm", M=2), share=sms(2, M=2, push=False), double=tiles)
    assert_right(plan)


def test_a_function_waits_once_for_what_it_takes_twice() -> None:
    """Its stream's doorbell is rung once, and waited for once."""
    op = operator("M N", name="itself")(lambda x: both(made := double(x), made))
    plan = plan_of(op, 1, {"M": 4, "N": 2}, double=sms(M=2, N=2), both=library("torch.add", M=4))
    assert any(c.doorbells for c in plan.channels)
    assert_right(plan)


def test_ranks_that_own_no_row_send_none() -> None:
    """Sources differ in the slice that they write, whether or not their rows differ as well."""
    plan = plan_of(gemm_rs_epilogue, 2, {"M": 1, "K": 2, "N": 3}, matmul_rs=sms(M=4, N=4, K=2, order="row"))
    assert_right(plan)


def test_ranks_that_have_no_row_tell_nobody() -> None:
    """The only tile is the first rank's, who is also the owner of the first row: to tell the owner is to tell itself."""
    op = operator("M K/R, K/R N -> M/R N", name="few")(lambda x, weight: keep(reduce(scatter(matmul(x, weight)))))
    placements = {"scatter": copy_engine(M=1), "reduce": library("torch.mm", M=1), "keep": sms(2, M=2, push=False)}
    plan = plan_of(op, 3, {"M": 1, "K": 2, "N": 2}, matmul=sms(M=1, N=2, K=2), **placements)
    told = next(s for s in plan.signals if s.path == "reduce" and s.action == "notify")
    assert told.to == "self"
    assert_right(with_signal(plan, "reduce", told.op.param, "notify", to="owner"))


def test_a_step_takes_from_registers_what_its_host_has_there() -> None:
    op = operator("M/R N", name="through")(lambda x: double(gather(local(x))))
    with pytest.raises(TilelinkError) as info:
        plan_of(op, 2, {"M": 4, "N": 2}, local=sms(M=2, N=2), gather=copy_engine(push=True), double=fused("local"))
    assert info.value.code == "TL316"


def behind(order: str = "ring+1") -> Plan:
    placements = {"scatter": copy_engine(M=2), "reduce": fused("matmul", deferred=None)}
    return plan_of(gemm_rs, 2, {"M": 8, "K": 2, "N": 2}, matmul=sms(M=2, N=2, K=2, order=order), **placements)


def test_work_indices_stand_for_own_rows() -> None:
    """Tiles that come behind their host's are the host's last ones: another order makes them others."""
    plan, other = behind(), behind("row")
    assert_right(plan)
    assert plan.step("reduce").deferred
    assert not other.step("reduce").deferred
    spoilt = with_step(other, "reduce", deferred=True)
    assert_refused(spoilt, "TL604")


def test_work_indices_are_drawn_by_workers_of_their_host() -> None:
    tiles = sms(M=2, N=2, K=2, order="ring+1")
    plan = plan_of(gemm_rs, 2, {"M": 8, "K": 2, "N": 2}, matmul=tiles, scatter=sms(2, M=2), reduce=fused("matmul"))
    assert len(plan.kernels) == 1
    assert_right(plan)
    spoilt = with_step(plan, "reduce", deferred=True)
    assert_refused(spoilt, "TL609")


@table("waits", ["others", "the host"])
def test_what_comes_behind_where_somebody_waits(waits: str) -> None:
    """It could hold up those whom it waits for, and here it does not."""

    def body(x: Any, weight: Any) -> Any:
        made = reduce(scatter(matmul(gather(x) if waits == "the host" else x, weight)))
        return gather(made, name="back") if waits == "others" else made

    signature = "M K/R, K/R N -> M N" if waits == "others" else "M/R K, K N -> M/R N"
    tiles, moved = sms(M=2, N=2, K=2, order="ring+1"), sms(2, M=2, push=False, own_kernel=True)
    placements = {"matmul": tiles, "scatter": copy_engine(M=2), "reduce": fused("matmul")}
    placements["back" if waits == "others" else "gather"] = moved
    plan = plan_of(operator(signature, name="whole")(body), 2, {"M": 8, "K": 2, "N": 2}, **placements)
    assert_right(with_step(plan, "reduce", deferred=True))


@table("kind", [Stage, Keep])
def test_what_is_copied_before_kernels_is_copied_once(kind: type) -> None:
    op = operator("M/R N", name="twice")(lambda x: double(gather(x)))
    moved = copy_engine(M=2, push=True) if kind is Keep else sms(2, M=2, push=False)
    plan = plan_of(op, 2, {"M": 4, "N": 2}, gather=moved, double=sms(M=4, N=2))
    (step,) = [h for h in plan.host if isinstance(h, kind)]
    at = plan.host.index(step)
    spoilt = replace(plan, host=(*plan.host[:at], step, *plan.host[at:]))
    assert_right(plan)
    assert_refused(spoilt, "TL604")


def test_a_stream_that_waits_for_a_flag_needs_an_sm() -> None:
    """A doorbell is waited for without: so the matmul may have all SMs, and may not where there are flags instead."""
    plan = behind()
    flags = (replace(c, doorbells="", target=unguarded(c)) for c in plan.channels)
    spoilt = replace(plan, channels=tuple(flags))
    assert plan.kernels[0].workers == plan.topology.device.sms
    assert_right(plan)
    assert_refused(spoilt, "TL613")


def test_steps_that_take_turns_have_the_same_workers() -> None:
    """All SMs but the one that the stream needs, and not as many for each."""

    @operator("M/R N -> M N, M N", name="turns")
    def op(x: Any) -> Any:
        rows = gather(x)
        return double(rows, name="one"), double(rows, name="other")

    placed: dict[str, Any] = {"one": sms(M=2, N=2), "other": sms(M=2, N=2, joins="one")}
    plan = plan_of(op, 2, {"M": 8, "N": 4}, gather=copy_engine(M=2, push=False), **placed)
    assert [k.in_turn for k in plan.kernels] == [("one", "other")]
    assert plan.kernels[0].workers == plan.topology.device.sms - 1
    assert_right(plan)


def test_a_rank_leaves_a_call_once() -> None:
    op = operator("M/R N", name="ends")(lambda x: double(gather(x)))
    moved = sms(2, M=2, push=False)
    plan = plan_of(op, 2, {"M": 4, "N": 2}, in_place=True, gather=moved, double=sms(M=4, N=2))
    assert isinstance(plan.host[-1], CallExit)
    spoilt = replace(plan, host=(*plan.host[:1], plan.host[-1], *plan.host[1:]))
    assert_right(plan)
    assert_refused(spoilt, "TL607")


def test_what_is_kept_comes_before_all_else_on_the_main_stream() -> None:
    op = operator("M/R N", name="begins")(lambda x: reduce(scatter(gather(x))))
    moved: dict[str, Any] = {"gather": copy_engine(M=2, push=False), "scatter": copy_engine(M=2)}
    plan = plan_of(op, 2, {"M": 4, "N": 2}, **moved, reduce=sms(M=2, N=2))
    assert Keep("gather") in plan.host
    found = next(h for h in plan.host if isinstance(h, Transfer) and h.path == "scatter")
    spoilt = replace(plan, host=tuple(replace(h, stream=0) if h is found else h for h in plan.host))
    assert_right(plan)
    assert_refused(spoilt, "TL605")
