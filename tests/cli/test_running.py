"""Running a case: simulated from outside, or as one rank among others, which is how torchrun has it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tilelink
import tilelink.language as tl
from tests.selection import table
from tilelink import ops
from tilelink.explore.cases import Case
from tilelink.explore.comparison import PLAIN, PRODUCT, against
from tilelink.explore.running import Outcome, run_case
from tilelink.runtime.session import current

CASE = Case(ops.ag_gemm, (("M", 65), ("N", 32), ("K", 16)), ranks=3)


def test_every_rank_hears_all_errors() -> None:
    outcomes = tilelink.launch(lambda: run_case(CASE, current(), calls=2), ranks=3)
    assert len({o.errors for o in outcomes}) == 1
    assert len(outcomes[0].errors) == 3
    assert outcomes[0].within(CASE.tolerance)
    assert outcomes[0].errors == run_case(CASE, calls=2, seed=1).errors


@tilelink.program("M N -> M N")
def double(product, out):
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(product, (m, n))
    tl.tile_store(out, (m, n), tl.tile_load(product, (m, n)) * 2)
    tl.producer_tile_notify(out, (m, n))


@tilelink.operator("M/R K, K N -> M N")
def doubled(x, weight):
    return double(ops.ag_gemm(x, weight))


def test_a_wrong_result_is_seen() -> None:
    outcome = run_case(replace(CASE, operator=doubled))
    assert outcome.worst == pytest.approx(1, abs=0.01)
    assert not outcome.within(CASE.tolerance)


@table("errors, worst", [((), 0.0), ((0.1, 0.3, 0.2), 0.3)])
def test_the_worst_rank_decides(errors: tuple[float, ...], worst: float) -> None:
    assert Outcome(errors, 1.0).worst == worst


def test_nan_is_never_within() -> None:
    assert math.isnan(Outcome((0.0, float("nan"), 0.0), 1.0).worst)
    assert not Outcome((0.0, float("nan"), 0.0), 1.0).within(1e9)


@tilelink.operator("M N -> M N")
def doubled_sum(x):
    return double(ops.all_reduce(x))


SUM = Case(ops.all_reduce, (("M", 6), ("N", 8)), ranks=3)


def test_a_wrong_sum_is_seen() -> None:
    """By the unfused form, once the operator has one."""
    assert run_case(SUM).within(SUM.tolerance)
    assert run_case(replace(SUM, operator=doubled_sum)).against is None
    plain = ops.all_reduce.reference_fn
    assert plain is not None
    doubled_sum.reference(plain)
    assert run_case(replace(SUM, operator=doubled_sum)).worst == pytest.approx(1, abs=0.01)


@table(
    "name, sizes, there",
    [("ag_attention", {"S": 6, "h": 2, "g": 2, "D": 16}, True), ("ag_attention", {"S": 7, "h": 2, "g": 2, "D": 16}, False),
     ("all_reduce", {"M": 7, "N": 3}, True), ("reduce_scatter", {"M": 7, "N": 3}, False)],
)  # fmt: skip
def test_a_plain_form_takes_parts_of_one_length(name: str, sizes: dict[str, int], there: bool) -> None:
    assert against(Case(getattr(ops, name), tuple(sizes.items()), ranks=3)) == (PLAIN if there else None)


@tilelink.operator("M/R K, K N -> M N")
def twice(x, weight):
    return double(ops.ag_gemm(x, weight))


@twice.reference
def twice_in_torch(x, weight, *, group=None):
    rows = x.new_empty(len(x) * dist.get_world_size(group), x.shape[1])
    dist.all_gather_into_tensor(rows, x, group=group)
    return 2 * (rows @ weight)


EVEN = replace(CASE, sizes=(("M", 66), ("N", 32), ("K", 16)))


def test_a_plain_form_that_is_declared_counts_and_not_the_signature() -> None:
    outcome = run_case(replace(EVEN, operator=twice))
    assert (outcome.against, outcome.within(CASE.tolerance)) == (PLAIN, True)
    outcome = run_case(replace(EVEN, operator=doubled))
    assert (outcome.against, outcome.within(CASE.tolerance)) == (PRODUCT, False)


def exchange(x, group):
    """By all that simulated ranks have: what each rank gets is the sum of all ranks' `x`."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    listed = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(listed, x, group=group)
    sent = torch.cat([listed[rank]] * ranks)
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent, group=group)
    summed = torch.empty_like(x)
    dist.reduce_scatter_tensor(summed, sent, group=group)
    dist.barrier(group)
    first = listed[0].clone()
    dist.broadcast(first, 0, group)
    assert torch.equal(first, came[: len(x)])
    total = x.clone()
    dist.all_reduce(total, group=group)
    assert torch.equal(summed, total)
    return came.unflatten(0, (ranks, -1)).sum(0)


def one_after_the_other(x, group):
    listed = [None] * dist.get_world_size(group)
    dist.all_gather_object(listed, x, group=group)


def largest(x, group):
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)


@pytest.mark.parametrize(
    ("plain", "said"),
    [(exchange, ""), (one_after_the_other, "all_gather_object(object_list=…, obj=…)"), (largest, "all_reduce(tensor=…, op=…)")],
)  # fmt: skip
def test_what_a_plain_form_does_on_simulated_ranks(plain: Any, said: str) -> None:
    mine = tilelink.operator("M N -> M N", name="mine")(lambda x: ops.all_reduce(x))
    mine.reference(lambda x, *, group=None: plain(x, group))
    case = replace(SUM, operator=mine)
    assert against(case) == PLAIN
    if not said:
        assert run_case(case).within(case.tolerance)
        return
    with pytest.raises(tilelink.TilelinkError, match="TL717") as refused:
        run_case(case)
    assert f"`torch.distributed.{said}`, which simulated ranks do not have" in str(refused.value)
    assert "by get_rank, get_world_size, all_reduce, all_gather, all_gather_into_tensor" in str(refused.value)
    assert run_case(case, check=False).against is None
