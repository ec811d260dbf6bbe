"""What is compared on one case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tilelink.codegen import describe
from tilelink.pipeline.operator import Operator
from tilelink.runtime.world import World

Run = Callable[[], Any]
Sizes = Mapping[str, int]
Variants = Mapping[str, Operator]
"""Ours by name: `OURS`, and further schedules that are to be compared with it."""

OURS = "ours"
GEMM = "cublas gemm"
TRITON = "triton gemm"
COMM = "nccl"
OWN_COMM = "own communication"
SEQUENTIAL = "sequential"
ASYNC_TP = "async-tp"


def how(operator: Operator, tensors: tuple[torch.Tensor, ...], **given: Any) -> str:
    """How an operator runs on these tensors, step by step, or that it does not overlap, and why."""
    choice = operator.choice(*tensors, **given)
    if choice.schedule.sequential:
        return str(choice)
    return "; ".join(f"{s.path}: {describe(s)}" for s in operator.plan(*tensors, **given).steps)


@dataclass(slots=True, eq=False)
class Contest:
    """Contenders on one case's inputs, on one rank.

    `runs`: by name, `OURS` and further schedules of ours among them; these and `SEQUENTIAL` give their result. `missing`:
    the names of those that cannot be run here, and why. `ran`: how each of ours runs. `inputs`: what gets new
    random values before every round.
    """

    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    inputs: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    ran: dict[str, Callable[[], str]] = field(default_factory=dict[str, Callable[[], str]])
    used: list[Operator] = field(default_factory=list[Operator])
    """What has a workspace that is given back after the contest."""

    def fresh(self) -> None:
        for t in self.inputs:
            if t.numel():
                t.normal_()

    def enter(self, name: str, operator: Operator, tensors: tuple[torch.Tensor, ...], **given: Any) -> None:
        """One of ours."""
        self.runs[name] = lambda: operator(*tensors, **given)
        self.ran[name] = lambda: how(operator, tensors, **given)
        self.used.append(operator)

    def close(self) -> None:
        """Collective."""
        for operator in self.used:
            operator.close()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a contest is held: this rank's world, and the name of the process group that torch's own contenders use."""

    world: World
    group: str | None

    @property
    def simulated(self) -> bool:
        return self.group is None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.simulated else torch.device("cuda", torch.cuda.current_device())

    def random(self, *shape: int) -> torch.Tensor:
        """bf16, normally distributed."""
        return torch.randn(shape, device=self.device).to(torch.bfloat16)

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device=self.device, dtype=torch.bfloat16)

    def part(self, size: int) -> tuple[int, int]:
        """Elements of the whole parts, and how many of them this rank holds: the even split by ceil."""
        each = max(1, -(-size // self.world.ranks))
        return each, min(size, (self.world.rank + 1) * each) - min(size, self.world.rank * each)
