"""Orders that signals make and others make too, and slots that nobody needs, whatever data says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.mutants.bodies import with_body
from benchmarks.mutants.mappings import mappings
from tests.mapping.plans import form, forms
from tilelink import ops
from tilelink.ir.plan import Plan, Signal
from tilelink.ir.program import Store, walk
from tilelink.mapping import NotExact, equivalent, implied, reused
from tilelink.mapping.judge import judge
from tilelink.pipeline.operator import Operator

SIZES = {"M": 7, "K": 3, "N": 4}


def elided(plan: Plan, signal: Signal) -> Plan:
    gone = replace(signal, action="elided", channel=None, to="self", reason="worker")
    return replace(plan, signals=tuple(gone if s is signal else s for s in plan.signals))


def without(plan: Plan, path: str, param: str) -> Plan:
    """The plan without one wait or notify."""
    [signal] = [s for s in plan.signals if s.path == path and s.op.param == param and s.action in ("await", "notify")]
    return elided(plan, signal)


def plan_of(operator: Operator) -> Plan:
    return next(mappings(operator)).plan


@pytest.mark.parametrize(("name", "waits"), [("means", True), ("logs", False)])
def test_one_of_several_words_of_a_tile_tells_of_all(name: str, waits: bool) -> None:
    """Means and their weights are stored before any of them is announced, and the weights are announced last."""
    plan = plan_of(ops.flash_decode)
    assert (implied(plan, without(plan, "merge", name)) is not None) == waits


def test_what_is_behind_a_loop_that_data_ends_is_known() -> None:
    """The scales are announced last and waited for first, so the rows need no word of their own; the counts do."""
    plan = plan_of(ops.ep_dispatch_fp8)
    assert implied(plan, without(plan, "arrive_fp8", "inbox")) is not None
    assert implied(plan, without(plan, "arrive_fp8", "counts")) is None
    assert implied(plan, without(plan, "arrive_fp8", "scales")) is None
    assert implied(plan, without(plan, "dispatch_fp8", "counts")) is None


def test_what_data_decides_is_not_decided_here() -> None:
    """A wait for the ranks that an index vector names, and what its words are raised by."""
    plan = plan_of(ops.ag_moe)
    for path in ("grouped", "gather"):
        with pytest.raises(NotExact, match="data decides which words"):
            implied(plan, without(plan, path, "rows"))


def test_where_everything_is_known_both_graphs_agree() -> None:
    for name in sorted(forms()):
        plan = form(name, 3, SIZES, 2)
        waits = [s for s in plan.signals if s.action == "await"]
        for signal in waits:
            changed = elided(plan, signal)
            assert (implied(plan, changed) is None) == (equivalent(plan, changed) is None), signal


def test_a_word_of_too_narrow_a_scope_tells_nobody() -> None:
    plan = form("ag_gemm push", 3, SIZES, 2)
    assert implied(plan, plan) is not None
    assert implied(plan, replace(plan, channels=tuple(replace(c, scope="gpu") for c in plan.channels))) is None


def single(plan: Plan, tensor: str) -> Plan:
    return replace(plan, buffers=tuple(replace(b, slots=1) if b.tensor == tensor else b for b in plan.buffers))


def test_what_the_next_call_writes_only_when_everybody_is_through_needs_no_second_slot() -> None:
    """Rows are sent by a kernel that begins when all choices of the call are there, which nobody makes before he is through
    with the last call. Scores are sent at once, but to where sums of the sender's own rows were made, which he has had. Who
    gathers rows for a product hears nothing of those who multiply them."""
    plan = plan_of(ops.moe_layer)
    assert reused(plan, single(plan, "gather_rows")) is not None
    assert reused(plan, single(plan, "gather_score_rows")) is not None
    assert reused(plan, replace(plan, schedule=replace(plan.schedule, slots=1))) is None
    gathering = form("ag_gemm push", 3, SIZES, 2)
    assert reused(gathering, single(gathering, "rows")) is None


def test_fewer_slots_are_proven_only_where_the_exact_graph_agrees() -> None:
    shown = 0
    for name in ("ag_gemm push", "ag_gemm pull"):
        plan = form(name, 3, SIZES, 2)
        shown += _agreed(plan, [b.tensor for b in plan.buffers if b.slots > 1])
    plan = plan_of(ops.all_reduce_two_shot)
    assert shown + _agreed(plan, [b.tensor for b in plan.buffers if b.slots > 1]) > 0


def _agreed(plan: Plan, tensors: list[str]) -> int:
    proven = [single(plan, t) for t in tensors if reused(plan, single(plan, t)) is not None]
    assert all(equivalent(plan, fewer) is not None for fewer in proven)
    return len(proven)


def test_a_table_that_splits_an_axis_is_read() -> None:
    """Kernels read where segments begin before their first tile."""
    plan = plan_of(ops.ag_moe)
    assert judge(plan).ok
    body = plan.step("place").step.program.body
    kept = tuple(op for op in body if not any(isinstance(o, Store) and o.param == "start" for o in walk((op,))))
    error = judge(with_body(plan, "place", kept)).error
    assert error is not None
    assert error.code == "TL604"
    assert "is never written" in error.message
