"""Products over gathered rows, the gradients of weights: against torch, in several placements."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import tilelink
from tests.operators.problems import TOLERANCE, part
from tilelink import Operator, copy_engine, sms
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
    generator = torch.Generator().manual_seed(rows)
    split = torch.randn(rows, 20, generator=generator).to(dtype)
    whole = [(r + 1) * torch.randn(rows, 36, generator=generator).to(dtype) for r in range(RANKS)]
    first, second = (op.schedule(PLACEMENTS[name]) if PLACEMENTS[name] else op for op in (ag_outer, outer_ag))

    def assert_as_torch(op: Operator, mine: list[torch.Tensor], want: torch.Tensor) -> None:
        for _ in range(2):
            got = op(*mine, M=rows)
            assert (got.shape, got.dtype) == (want.shape, dtype)
            assert float((got.float() - want).norm() / want.norm()) <= TOLERANCE[dtype]

    def main() -> None:
        rank = tilelink.rank()
        own, other = split[part(rows, rank, RANKS)], whole[rank]
        assert_as_torch(first, [own, other], split.float().T @ other.float())
        assert_as_torch(second, [other, own], other.float().T @ split.float())

    tilelink.launch(main, RANKS, seed=rows)


@pytest.mark.parametrize(("tokens", "experts"), [pytest.param(10, 3, marks=pytest.mark.each_triton), (12, 9), (2, 1)])
def test_products_over_the_tokens_of_experts(tokens: int, experts: int) -> None:
    """Ranks of 4, 4 and 2 tokens; experts that nobody chose, and choices of nobody."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 20, generator=generator)
    choice = torch.randint(-1, experts - (experts > 3), (tokens, 2), generator=generator, dtype=torch.int32)
    others = [torch.randn(tokens * 2, 36, generator=generator) for _ in range(RANKS)]
    tables = [plain.tables(choice, experts, part(tokens, r, RANKS).start) for r in range(RANKS)]
    start = tables[0][1]
    # What lies behind the rows of the last expert belongs to nobody.
    for one in others:
        one[int(start[-1]) :] = torch.nan
    op = ag_moe_outer.schedule(grouped_outer=sms(P=4, H=16, N=16))

    def main() -> None:
        rank = tilelink.rank()
        own = part(tokens, rank, RANKS)
        rows, order = list(pairwise(start.tolist())), tables[rank][0]
        want = torch.stack([x[order[a:b].long()].T @ others[rank][a:b] for a, b in rows])
        for _ in range(2):
            got = op(x[own], choice[own], others[rank], experts=experts, T=tokens)
            assert float((got - want).norm()) <= TOLERANCE[torch.float32] * float(want.norm())

    tilelink.launch(main, RANKS, seed=tokens)
