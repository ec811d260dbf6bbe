# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalSubscript=false, reportIndexIssue=false, reportCallIssue=false
"""The mixture of experts, against every token through its experts in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import silu

import tilelink
from tests.nn.test_operators import assert_close
from tests.operators.problems import part
from tilelink.nn import ParallelMoE, functional

FEATURES, HIDDEN, EXPERTS, CHOICES = 16, 24, 5, 2


def whole(
    x: torch.Tensor, router: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    score, choice = (x @ router.t()).softmax(-1).topk(CHOICES)
    every = torch.einsum("ethi,eih->eth", (silu(x @ gate) * (x @ up))[:, :, None], down)  # [experts, tokens, features]
    mine = every[choice, torch.arange(len(x))[:, None]]
    return (score / score.sum(-1, keepdim=True))[..., None].mul(mine).sum(1)


@pytest.mark.parametrize(("ranks", "tokens", "backend"), [(2, 12, "aot_eager"), (4, 5, None)])
def test_tokens_through_their_experts(ranks: int, tokens: int, backend: str | None) -> None:
    """Four ranks have 2, 2, 1 and 0 of five tokens."""
    torch.manual_seed(5)
    x = torch.randn(tokens, FEATURES)
    shapes = (
        (EXPERTS, FEATURES),
        (EXPERTS, FEATURES, HIDDEN),
        (EXPERTS, FEATURES, HIDDEN),
        (EXPERTS, HIDDEN, FEATURES),
    )
    weights = [torch.randn(s) / 3 for s in shapes]
    exact = [t.double().requires_grad_() for t in (x, *weights)]
    y = whole(*exact)
    y.square().sum().backward()
    dx, drouter, dgate, dup, ddown = (t.grad for t in exact)

    def main() -> None:
        rank = tilelink.rank()
        layer = ParallelMoE(FEATURES, HIDDEN, EXPERTS, CHOICES)
        router, gate, up, down = weights
        with torch.no_grad():
            layer.router.module.weight.copy_(router)
            layer.up.copy_(torch.cat([w.chunk(ranks, 2)[rank] for w in (gate, up)], 2))
            layer.down.copy_(down.chunk(ranks, 1)[rank])
        run: Any = layer if backend is None else torch.compile(layer, fullgraph=True, backend=backend)
        own = part(tokens, rank, ranks)
        length = tokens if tokens % ranks else None
        mine = x[own].clone().requires_grad_()
        got = run(mine, length)
        got.square().sum().backward()
        assert_close(got, y[own])
        assert_close(mine.grad, dx[own])
        assert_close(layer.up.grad, torch.cat([w.chunk(ranks, 2)[rank] for w in (dgate, dup)], 2))
        assert_close(layer.down.grad, ddown.chunk(ranks, 1)[rank])
        assert_close(layer.router.module.weight.grad, drouter)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert_close(layer(mine, length), y[own])

    tilelink.launch(main, ranks)


def test_rows_that_no_choice_has_get_no_gradient() -> None:
    """Nobody writes those that operators give, and what memory held there, times 0, may be no number."""
    choices = torch.tensor([[0, 1], [2, -1], [-1, -1], [1, 0]], dtype=torch.int32)

    def main() -> None:
        own = part(4, tilelink.rank(), 2)
        with torch.no_grad():
            hidden, start, slot = functional.ag_moe(torch.randn(2, 4), choices[own], torch.randn(3, 4, 2))
        hidden = hidden.nan_to_num().requires_grad_()
        functional.moe_rs(hidden, start, slot, torch.randn(3, 2, 4), torch.rand(4, 2)).sum().backward()
        assert hidden.grad[: start[-1]].all()
        assert not hidden.grad[start[-1] :].any()

    tilelink.launch(main, 2)
