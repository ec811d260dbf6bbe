"""A mixture of experts: tables made on the device, gathered rows, tiles of a run-time split, all against torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import tilelink
from tests.operators.moe import ag_moe
from tests.operators.problems import part
from tilelink import Operator, copy_engine, sms
from tilelink.ir.topology import Device

FEW = Device(sms=6)
"""Every worker walks the tables' heads, and there is not much to do."""

H, I, E, K = 24, 20, 3, 2  # noqa: E741  # as the signature calls them
Routing = Callable[[int], torch.Tensor]

ROUTINGS: dict[str, Routing] = {
    "random": lambda t: torch.randint(0, E, (t, K), generator=torch.Generator().manual_seed(t), dtype=torch.int32),
    "an expert without tokens": lambda t: torch.tensor([[0, 2], [2, 0]], dtype=torch.int32).repeat(t, 1)[:t],
    "all tokens to the first": lambda t: torch.zeros(t, K, dtype=torch.int32),
    "all tokens to the last": lambda t: torch.full((t, K), E - 1, dtype=torch.int32),
}

MOE = ag_moe.schedule(
    gather=sms(2, M=8, order="ring"),
    gather_choice=sms(1, M=8, order="ring"),
    count=sms(T=8),
    place=sms(T=8),
    grouped=sms(P=16, N=16, H=16),
)
SCHEDULES: dict[str, Operator] = {
    "pull": MOE,
    "push": MOE.schedule(gather=sms(2, M=8, push=True), gather_choice=sms(1, M=4, push=True)),
    "copy engine": MOE.schedule(gather=copy_engine(M=8, push=True), gather_choice=copy_engine(push=True)),
    "other tiles": MOE.schedule(gather=sms(2, M=3), count=sms(T=16), place=sms(T=4), grouped=sms(P=32, N=32, H=32)),
    "as it comes": ag_moe,
}


@dataclass(frozen=True)
class Layer:
    """Global inputs of one call."""

    tokens: torch.Tensor
    choice: torch.Tensor
    weight: torch.Tensor

    @staticmethod
    def random(tokens: int, routing: str, dtype: torch.dtype = torch.float32, salt: int = 0) -> Layer:
        generator = torch.Generator().manual_seed(1000 * tokens + salt)
        x = torch.randn(tokens, H, generator=generator).to(dtype)
        return Layer(x, ROUTINGS[routing](tokens), torch.randn(E, H, I, generator=generator).to(dtype))

    def on(self, rank: int, ranks: int) -> tuple[torch.Tensor, ...]:
        rows, columns = part(len(self.tokens), rank, ranks), part(I, rank, ranks)
        return self.tokens[rows], self.choice[rows], self.weight[:, :, columns].contiguous()

    def check(self, rank: int, ranks: int, got: tuple[torch.Tensor, ...]) -> None:
        """Rows sorted by expert, tokens of one expert in order."""
        hidden, start, slot = got
        by_row = torch.argsort(self.choice.flatten(), stable=True)
        experts = self.choice.flatten()[by_row].long()
        counts = torch.bincount(experts, minlength=E)
        assert start.tolist() == [0, *torch.cumsum(counts, 0).tolist()]
        assert torch.equal(slot.flatten()[by_row].long(), torch.arange(self.choice.numel()))
        rows = self.tokens[by_row // K].float()
        want = torch.einsum("ph,phi->pi", rows, self.weight[experts][:, :, part(I, rank, ranks)].float())
        error = float((hidden.float() - want).norm() / want.norm())
        assert error <= {torch.float32: 1e-5, torch.bfloat16: 1e-2}[hidden.dtype]


def run(operator: Operator, layers: list[Layer], ranks: int, seed: int = 0) -> None:
    def main() -> list[tuple[torch.Tensor, ...]]:
        me = tilelink.rank()
        return [operator(*layer.on(me, ranks), T=len(layer.tokens), I=I) for layer in layers]

    for rank, results in enumerate(tilelink.launch(main, ranks, seed=seed, straggler=seed % ranks, device=FEW)):
        for layer, got in zip(layers, results, strict=True):
            layer.check(rank, ranks, got)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_worlds_and_routings(routing: str, ranks: int) -> None:
    run(MOE, [Layer.random(13, routing)], ranks, seed=ranks)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    run(SCHEDULES[schedule], [Layer.random(13, "random"), Layer.random(13, "an expert without tokens")], 3, seed=2)


def test_the_split_changes_from_call_to_call() -> None:
    """The same sizes with other tables, then other sizes: nothing of a call's split is in the plan."""
    layers = [Layer.random(13, routing, torch.bfloat16, salt) for salt, routing in enumerate(ROUTINGS)]
    for seed in range(3):
        run(MOE, [*layers, Layer.random(5, "random", torch.bfloat16)], 2, seed=seed)


def test_fewer_tokens_than_ranks() -> None:
    run(MOE, [Layer.random(2, "random"), Layer.random(1, "random")], 4)
