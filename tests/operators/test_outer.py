"""Products over gathered rows, the gradients of weights: against torch, in several placements."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.operators.problems import Problem, assert_as_torch, each, part, random, split
from tilelink import copy_engine, sms
from tilelink.ops import ag_moe_outer, ag_outer, outer_ag, plain

RANKS = 3
PLACEMENTS: dict[str, dict[str, Any]] = {
    "default": {},
    "pull": {"gather": sms(2, M=8, order="ring+1"), "outer": sms(K=16, N=16, M=16)},
    "copy engine": {"gather": copy_engine(M=5, push=True), "outer": sms(2, K=16, N=16, M=16)},
}


@pytest.mark.parametrize(
    ("name", "rows", "dtype"),
    [
        *((name, turns[k % 2], torch.float32) for turns in ((24, 2), (2, 24)) for k, name in enumerate(PLACEMENTS)),
        *(pytest.param(name, 10, torch.bfloat16, marks=pytest.mark.each_triton) for name in PLACEMENTS),
    ],
)
def test_products_over_gathered_rows(name: str, rows: int, dtype: torch.dtype) -> None:
    x, others = random(rows, 20, dtype=dtype), [(r + 1) * random(rows, 36, seed=r, dtype=dtype) for r in range(RANKS)]
    products = [x.float().T @ other.float() for other in others]
    first, second = (op.schedule(PLACEMENTS[name]) if PLACEMENTS[name] else op for op in (ag_outer, outer_ag))
    assert_as_torch(first, Problem(each(split(x, RANKS), others), each(products), {"M": rows}))
    assert_as_torch(second, Problem(each(others, split(x, RANKS)), each([p.T for p in products]), {"M": rows}))


@pytest.mark.parametrize(("tokens", "experts"), [pytest.param(10, 3, marks=pytest.mark.each_triton), (12, 9), (2, 1)])
def test_products_over_the_tokens_of_experts(tokens: int, experts: int) -> None:
    """Ranks of 4, 4 and 2 tokens; experts that nobody chose, and choices of nobody."""
    x, others = random(tokens, 20), [random(tokens * 2, 36, seed=r) for r in range(RANKS)]
    generator = torch.Generator().manual_seed(tokens)
    choice = torch.randint(-1, experts - (experts > 3), (tokens, 2), generator=generator, dtype=torch.int32)
    wanted: list[torch.Tensor] = []
    for rank, other in enumerate(others):
        order, start, *_ = plain.tables(choice, experts, part(tokens, rank, RANKS).start)
        rows = pairwise(start.tolist())
        wanted.append(torch.stack([x[order[a:b].long()].T @ other[a:b] for a, b in rows]))
        other[int(start[-1]) :] = torch.nan  # what lies behind the rows of the last expert belongs to nobody
    inputs = each(split(x, RANKS), split(choice, RANKS), others)
    op = ag_moe_outer.schedule(grouped_outer=sms(P=4, H=16, N=16))
    assert_as_torch(op, Problem(inputs, each(wanted), {"experts": experts, "T": tokens}))
