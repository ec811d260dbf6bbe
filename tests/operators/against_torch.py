"""A problem for all ranks with what torch says, and a simulated run that solves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import tilelink
from tests.operators.problems import part
from tilelink import Operator
from tilelink.ir.topology import Device

T = torch.Tensor
FEW = Device(sms=6)
"""Workers are coroutines, and there is not much to do."""


@dataclass(frozen=True)
class Problem:
    """What each rank passes and gets, and the sizes that shards leave open and constants."""

    inputs: list[tuple[T, ...]]
    wanted: list[tuple[T, ...]]
    given: dict[str, Any] = field(default_factory=dict[str, Any])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> T:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(dtype)


def split(x: T, ranks: int, axis: int = 0) -> list[T]:
    return [x.movedim(axis, 0)[part(x.shape[axis], r, ranks)].movedim(0, axis).contiguous() for r in range(ranks)]


def each(*tensors: list[T]) -> list[tuple[T, ...]]:
    return list(zip(*tensors, strict=True))


def assert_as_torch(operator: Operator, problem: Problem, ranks: int, *, device: Device = FEW) -> None:
    """Two calls on every rank: the second meets what the first left behind. fp32 closely, bf16 as it rounds."""

    def main() -> list[Any]:
        mine = problem.inputs[tilelink.rank()]
        return [operator(*mine, **problem.given) for _ in range(2)]

    results = tilelink.launch(main, ranks, seed=ranks, straggler=ranks - 1, device=device)
    for calls, wanted in zip(results, problem.wanted, strict=True):
        for got in calls:
            for a, b in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
                assert (a.shape, a.dtype) == (b.shape, problem.inputs[0][0].dtype)
                close = 2e-2 if a.dtype == torch.bfloat16 else 1e-4
                torch.testing.assert_close(a.float(), b.float(), rtol=close, atol=close)
