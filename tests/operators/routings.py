"""Mixtures of experts to test with: tokens, who chooses what, and what torch makes of it in fp32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.operators.problems import part

T = torch.Tensor
H, I, E, K = 24, 20, 5, 3  # noqa: E741  # as the signatures call them


def _random(tokens: int) -> T:
    return torch.randint(0, E, (tokens, K), generator=torch.Generator().manual_seed(tokens), dtype=torch.int32)


ROUTINGS: dict[str, Callable[[int], T]] = {
    "random": _random,
    "experts without tokens": lambda t: torch.tensor([[0, 2, 3], [3, 0, 2]], dtype=torch.int32).repeat(t, 1)[:t],
    "all tokens to the first": lambda t: torch.zeros(t, K, dtype=torch.int32),
    "all tokens to the last": lambda t: torch.full((t, K), E - 1, dtype=torch.int32),
    "some choices of nobody": lambda t: torch.where(_random(t) == 1, -1, _random(t)),
}
EACH_ROUTING = pytest.mark.parametrize(
    "routing",
    [
        pytest.param("random", marks=pytest.mark.each_triton),
        *(r for r in ROUTINGS if r != "random"),
    ],
)


@dataclass(frozen=True)
class Mixture:
    """Global inputs of one call."""

    tokens: T
    choice: T
    score: T
    gate: T
    up: T
    down: T

    @staticmethod
    def of(tokens: int, routing: str = "random", dtype: torch.dtype = torch.float32, salt: int = 0) -> Mixture:
        generator = torch.Generator().manual_seed(1000 * tokens + salt)

        def random(*shape: int) -> T:
            return torch.randn(*shape, generator=generator).to(dtype)

        score, choice = torch.rand(tokens, K, generator=generator), ROUTINGS[routing](tokens)
        score[choice < 0] = float("nan")  # as a softmax leaves it of logits that are all masked
        return Mixture(random(tokens, H), choice, score, random(E, H, I), random(E, H, I), random(E, I, H))

    def rows(self, rank: int, ranks: int) -> tuple[T, T]:
        """(choice, expert) of each row, sorted by expert, then by token from this rank's first on, in a ring."""
        flat = self.choice.flatten().long()
        turned = torch.arange(len(flat)).roll(-self.tokens_of(rank, ranks).start * self.choice.shape[1])
        of = flat[turned]
        by_row = turned[torch.argsort(torch.where(of < 0, E, of), stable=True)][: int((flat >= 0).sum())]
        return by_row, flat[by_row]

    def columns(self, rank: int, ranks: int) -> slice:
        return part(I, rank, ranks)

    def tokens_of(self, rank: int, ranks: int) -> slice:
        return part(len(self.tokens), rank, ranks)

    def weighted(self, each: T) -> T:
        """The sum over a token's choices, `each` being what the chosen expert made: `[T, k, …]`."""
        return (torch.where(self.choice < 0, 0, self.score)[..., None] * each).sum(1)

    def through(self, *, glu: bool) -> T:
        """Every token through every expert that it chose: `[T, k, H]`."""
        of = self.choice.clamp(min=0).long()
        x = self.tokens.float()
        up = torch.einsum("th,tkhi->tki", x, self.up.float()[of])
        if glu:
            up = torch.nn.functional.silu(torch.einsum("th,tkhi->tki", x, self.gate.float()[of])) * up
        return torch.einsum("tki,tkih->tkh", up, self.down.float()[of])
