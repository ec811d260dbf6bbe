"""A GPU copies within itself by its SMs: streams that do so beside kernels that wait find one free, or come first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch

import tilelink
from benchmarks.mutants import mappings as m
from tests.mapping.oracle import assert_refused, assert_right
from tests.mapping.plans import emitted, form, forms, plan_of
from tests.mapping.shelf import double
from tests.operators.problems import Problem, assert_solves, each, random, split
from tests.selection import table
from tilelink import Operator, TilelinkError, copy_engine, ops, sms
from tilelink.ir.kernel import Checks
from tilelink.ir.plan import MAIN, Fork, Join, Keep, Launch, Plan, Stage
from tilelink.ir.streams import Copy, Set, actions
from tilelink.ir.topology import Device, Topology
from tilelink.mapping.lower import lower
from tilelink.ops.gemm_rs_ring import ring
from tilelink.ops.programs import gather
from tilelink.pipeline.arguments import bind
from tilelink.pipeline.compiled import Compiled
from tilelink.proof.cycles import crowded
from tilelink.proof.table import Table
from tilelink.runtime.simulated.streams import Multiprocessors

RANKS, ROWS = 2, 10
SMALL = Device(sms=4)


def plans() -> Iterator[tuple[str, Plan]]:
    """Every fifth placement of each operator, and all forms."""
    yield from (
        (f"{n}, {x.name}", x.plan) for n, op in m.operators().items() for x in islice(m.mappings(op), 0, None, 5)
    )
    yield from ((name, form(name, 3, {"M": 40, "K": 3, "N": 5}, 4)) for name in forms())


def _crowded(plan: Plan) -> bool:
    return next(crowded(Table.of(lower(plan))), None) is not None


def _workers(plan: Plan) -> int:
    """The most that there can be at a time: of one kernel of the main stream, and of all on side streams."""
    main = max((k.workers for k in plan.kernels if k.stream == MAIN), default=0)
    return main + sum(k.workers for k in plan.kernels if k.stream != MAIN)


def test_who_needs_an_sm_beside_kernels_finds_one() -> None:
    """And without the one that is left free for them, many would not."""
    needing = 0
    for name, plan in plans():
        assert not _crowded(plan), name
        left = plan.topology.device.sms - _workers(plan)
        fewer = replace(plan.topology.device, sms=plan.topology.device.sms - max(left, 0))
        needing += _crowded(replace(plan, topology=replace(plan.topology, device=fewer)))
    assert needing > 10


def test_streams_that_wait_for_peers_share_an_sm_with_copies() -> None:
    """One stream waits for another rank's flag, on the SM where another one copies what that rank waits for."""
    placed = {
        "gather_0": copy_engine(M=1, push=False),
        "double_1": sms(M=2, N=1, order="ring+2"),
        "ring_2": sms(4, M=2, N=1, order="ring+1"),
        "gather_3": copy_engine(M=2, push=False),
    }

    @tilelink.operator("M/R N -> M N", name="wired", schedule=placed)
    def operator(x: Any) -> Any:
        doubled = double(gather(x, name="gather_0"), name="double_1")
        return gather(ring(doubled, tilelink.symmetric("R/R M N", like=doubled), name="ring_2"), name="gather_3")

    inputs = split(random(16, 3), 4)
    found = tilelink.launch(lambda: operator(inputs[tilelink.rank()], M=16), 4, seed=1)
    assert all(torch.equal(y, found[0]) for y in found)


def test_an_sm_of_small_kernels_is_given_back_by_the_last() -> None:
    processors = Multiprocessors(2)
    taken = [processors.take(small=True) for _ in range(32)]
    assert (taken, processors.free) == ([0.0] * 32, [0.0])
    assert processors.take(small=False) == 0.0
    assert not processors.has_room(small=True)
    processors.give_back(3.0, small=True)
    assert (processors.has_room(small=True), processors.has_room(small=False)) == (True, False)
    for clock in range(31):
        processors.give_back(float(clock), small=True)
    assert processors.free == [30.0]


# ------------------------------------------------------------------------------------------------- own parts that come first
FORMS = {
    "pushed": copy_engine(push=True),
    "pushed in chunks": copy_engine(push=True, M=2, streams=2),
    "pulled": copy_engine(push=False),
}


def gathering(form: str) -> Operator:
    """Tiles cross the parts of ranks, so that nobody can read its own part in place."""
    return ops.ag_gemm.schedule(gather=FORMS[form], matmul=sms(M=4, N=4, K=4))


def assert_right_on_few_sms(operator: Operator) -> None:
    x, w = random(ROWS, 8), random(8, 12, seed=1)
    problem = Problem(each(split(x, RANKS), [w] * RANKS), [(x @ w,)] * RANKS)
    assert_solves(operator, [problem] * 3, policy="priorities-1", device=SMALL)


@table("form", FORMS)
def test_own_parts_come_behind_the_start_of_other_copies_and_before_kernels(form: str) -> None:
    plan = plan_of(gathering(form), RANKS, {"M": ROWS, "K": 8, "N": 12})
    kinds = [type(h) for h in plan.host]
    assert kinds.index(Fork) < kinds.index(Keep) < kinds.index(Launch)
    assert plan.host[kinds.index(Keep)] == Keep("gather")
    for rank in range(RANKS):
        (at_home,), moved = (actions(lower(plan), name, rank) for name in ("gather.keep", "gather"))
        assert {type(a) for a in at_home} == {Copy, Set}
        assert {a.rank for a in at_home if isinstance(a, Set)} == {rank}
        assert all(a.source.rank == a.target.rank == rank for a in at_home if isinstance(a, Copy))
        copies = [a for stream in moved for a in stream if isinstance(a, Copy)]
        assert copies
        assert all(a.source.rank != a.target.rank for a in copies)
    assert_right_on_few_sms(gathering(form))


def test_what_is_read_in_place_or_by_a_stream_is_kept_nowhere() -> None:
    even = {"M": 8, "K": 8, "N": 4}
    assert Keep("gather") not in plan_of(gathering("pushed"), 2, even).host
    by_stream = ops.ag_gemm.schedule(gather=FORMS["pushed"], matmul=tilelink.library("torch.mm", M=4))
    assert Keep("gather") not in plan_of(by_stream, 2, even).host
    made = ops.gemm_rs.schedule(scatter=FORMS["pushed"], matmul=sms(M=4, N=4, K=4), reduce=sms(M=4, N=4))
    assert Keep("scatter") not in plan_of(made, 2, even).host


def test_beside_kernels_they_can_wait_for_ever() -> None:
    """Own parts among the other copies: workers take all SMs, and wait for a copy that needs one. The proof says so."""
    operator = gathering("pushed")
    x, w = random(ROWS, 8), random(8, 12, seed=1)
    inputs = split(x, RANKS)
    topology = Topology(RANKS, device=SMALL)
    bound = bind(operator, (inputs[0], w), {}, topology)
    right = operator.compiled(bound, Checks())
    late = replace(right.plan, host=tuple(h for h in right.plan.host if not isinstance(h, Keep)))
    assert len(late.host) == len(right.plan.host) - 1
    assert (
        assert_refused(late, "TL613").message
        == "`gather` needs an SM while 4 workers, which may wait for it, can have all 4"
    )
    operator.kept[(bound, Checks())] = Compiled(late, lower(late), right.verdict, emitted(late))
    with pytest.raises(TilelinkError, match="TL501") as raised:
        tilelink.launch(lambda: operator(inputs[tilelink.rank()], w), RANKS, policy="priorities-1", device=SMALL)
    assert any("copy within the GPU: it has no SM, all 4 are taken" in str(n) for n in raised.value.notes)


def test_what_is_kept_behind_a_kernel_is_refused() -> None:
    """The kernel waits for it, and it is next on the kernel's own stream."""
    plan = plan_of(gathering("pushed"), RANKS, {"M": ROWS, "K": 8, "N": 12})
    assert_right(plan)
    others = [h for h in plan.host if not isinstance(h, Keep)]
    beside = [
        k
        for h in others
        for k in ((Fork(2), replace(h, stream=2), Keep("gather"), Join(2)) if isinstance(h, Launch) else (h,))
    ]
    for late, code in (((*others, Keep("gather")), "TL605"), (tuple(beside), "TL613")):
        assert_refused(replace(plan, host=late), code)


def test_what_is_kept_before_it_is_staged_is_refused() -> None:
    """Its source is the memory that peers read, which still has the rows of an earlier call."""
    plan = plan_of(gathering("pulled"), RANKS, {"M": ROWS, "K": 8, "N": 12})
    assert_right(plan)
    at = next(k for k, h in enumerate(plan.host) if isinstance(h, Stage))
    early = (*plan.host[:at], Keep("gather"), *(h for h in plan.host[at:] if not isinstance(h, Keep)))
    assert (
        assert_refused(replace(plan, host=early), "TL609").message
        == "`x@stage` is read before it is known to be written"
    )
