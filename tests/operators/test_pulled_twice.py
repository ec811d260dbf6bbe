# pyright: reportArgumentType=false
"""What a pull has brought, others pull on: the rank whose part of the result it is hears of each tile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink
from tests.mapping.oracle import assert_right
from tests.mapping.plans import plan_of
from tests.operators.language import ring_gather
from tests.selection import table
from tilelink import copy_engine, sms
from tilelink.ir.streams import Set, actions
from tilelink.mapping.lower import lower
from tilelink.ops import ag_gemm
from tilelink.ops.programs import gather, keep, scatter

RANKS = 3


@tilelink.operator("M N -> R M/R N")
def kept_and_scattered(x: Any) -> Any:
    return scatter(keep(x, name="first"), name="then")


@tilelink.operator("M/R N -> R M/R N")
def gathered_and_scattered(x: Any) -> Any:
    return scatter(gather(x, name="first"), name="then")


@tilelink.operator("M/R N -> M N")
def round_and_kept(x: Any) -> Any:
    return keep(ring_gather(x, name="first"), name="then")


FIRST = {"SMs": sms(2, M=2, order="ring", push=False), "copy engine": copy_engine(M=2, push=False)}
THEN = {"SMs": sms(2, M=2, order="ring", push=False), "copy engine": copy_engine(M=2, push=False)}


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("rows", [10, 3])
def test_who_pulls_from_a_pull_is_told(rows: int, first: str, then: str) -> None:
    """With 3 rows no tile of two may reach into two parts."""
    placed = {"first": FIRST[first], "then": THEN[then]}
    own = [torch.randn(rows, 3) for _ in range(RANKS)]
    part = -(-rows // RANKS)
    shards = own[0].split(part)

    def main() -> tuple[torch.Tensor, torch.Tensor]:
        rank = tilelink.rank()
        kept = kept_and_scattered.schedule(placed)(own[rank])
        return kept, gathered_and_scattered.schedule(placed)(shards[rank], M=rows)

    for rank, (kept, gathered) in enumerate(tilelink.launch(main, RANKS, seed=rows, straggler=1)):
        mine = slice(part * rank, part * (rank + 1))
        assert torch.equal(kept, torch.stack([w[mine] for w in own]))
        assert torch.equal(gathered, torch.stack([own[0][mine]] * RANKS))


@table("then", THEN)
def test_a_movement_out_of_this_ranks_slice_pulls_nothing(then: str) -> None:
    """The rows of a ring all-gather lie in a slice of this rank's: nobody else is told of them."""
    plan = plan_of(round_and_kept, RANKS, {"M": 7, "N": 3}, first=sms(4, M=2, K=2, order="ring"), then=THEN[then])
    assert_right(plan)


def test_of_what_has_no_parts_an_owner_is_whoever_pulled() -> None:
    """A plan that no planner makes can be played through too: nobody pulls on what this copy engine has pulled."""
    plan = plan_of(ag_gemm, RANKS, {"M": 7, "N": 4, "K": 3}, gather=copy_engine(M=2, push=False))
    told = tuple(replace(s, to="owner") if s.path == "gather" and s.action == "notify" else s for s in plan.signals)
    odd = replace(plan, signals=told)
    assert odd != plan
    for rank in range(RANKS):
        flags = [a for stream in actions(lower(odd), "gather", rank) for a in stream if isinstance(a, Set)]
        assert flags
        assert {a.rank for a in flags} == {rank}
