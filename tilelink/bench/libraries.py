"""Collectives as contenders call them: NCCL's, and what stands in for them where ranks are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from tilelink.runtime.backend import Backend


class Libraries(Protocol):
    """Each is collective. Tensors are contiguous; parts along the first axis."""

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Everyone's `x` one after the other."""
        ...

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """This rank's part of the sum of everyone's `x`."""
        ...

    def all_reduce(self, x: torch.Tensor) -> None:
        """The sum of everyone's, in place."""
        ...

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor, got: Sequence[int] = (), sent: Sequence[int] = ()) -> None:
        """Part r of `x` to rank r; `sent`, `got`: rows of the parts that go and come, empty for equal ones."""
        ...


class Nccl:
    """`torch.distributed` over all ranks."""

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        dist.all_gather_into_tensor(out, x)

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor) -> None:
        dist.reduce_scatter_tensor(out, x)

    def all_reduce(self, x: torch.Tensor) -> None:
        dist.all_reduce(x)

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor, got: Sequence[int] = (), sent: Sequence[int] = ()) -> None:
        dist.all_to_all_single(out, x, list(got) or None, list(sent) or None)


class Exchanged:
    """The same by simulated ranks, which tell one another their tensors: right, and without a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        out.copy_(torch.cat(self._backend.agree(x)))

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor) -> None:
        out.copy_(self._sum(x).chunk(self._backend.ranks)[self._backend.rank])

    def all_reduce(self, x: torch.Tensor) -> None:
        x.copy_(self._sum(x))

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor, got: Sequence[int] = (), sent: Sequence[int] = ()) -> None:
        del got  # what comes is what was sent
        parts = x.split(list(sent)) if sent else x.chunk(self._backend.ranks)
        out.copy_(torch.cat([there[self._backend.rank] for there in self._backend.agree(parts)]))

    def _sum(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([t.float() for t in self._backend.agree(x)]).sum(0).to(x.dtype)
