"""What an operator needs of the world it runs in: memory, streams, and the ranks' agreement.

Three worlds implement it (DESIGN section 4): `simulated`, `peer`, `nvshmem`. One `World` object is one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tilelink.ir.topology import Topology


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A kernel argument that a world turns into a TMA descriptor: a 2-D+ tensor view and the block shape."""

    tensor: torch.Tensor
    block: tuple[int, ...]


class Event(Protocol):
    """A point in a stream, made by `Stream.record`."""


class Stream(Protocol):
    """Work in order. Everything here is asynchronous to the host and legal under CUDA-graph capture."""

    def load(self, kernel: Any, workers: int, args: Mapping[str, Any], *, warps: int, stages: int) -> None:
        """Make ready what `launch` with the same arguments would start.

        Loading a kernel may wait for the device to be idle, which it never is while a stream waits for that kernel.
        """
        ...

    def launch(self, kernel: Any, workers: int, args: Mapping[str, Any], *, warps: int, stages: int) -> None:
        """Start `workers` instances of a `triton.jit` kernel; `args` by parameter name."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes by a copy engine; either side may be a peer's memory. Same shape and dtype, rows contiguous."""
        ...

    def wait_bell(self, bell: torch.Tensor) -> None:
        """Block the stream until the one-element int64 `bell` is 1, then set it back to 0."""
        ...

    def record(self) -> Event: ...

    def wait(self, event: Event) -> None: ...


class Arena(Protocol):
    """One symmetric allocation: the same number of bytes on every rank, zeroed.

    `local`: uint8 tensor of this rank's instance. `context`: int64 tensor on the device, `[my_pe, n_pes, base address
    of the arena on pe 0, on pe 1, …]`, which device functions take as their last argument.
    """

    local: torch.Tensor
    context: torch.Tensor

    def peer(self, pe: int) -> torch.Tensor:
        """The instance of rank `pe` as a uint8 tensor that streams can copy to and from."""
        ...

    def free(self) -> None:
        """Collective."""
        ...


class World(Protocol):
    rank: int
    ranks: int
    topology: Topology

    def arena(self, nbytes: int) -> Arena:
        """Collective: every rank asks for the same number of bytes in the same order."""
        ...

    def context_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The context of the arena that holds a tensor of `tilelink.empty`."""
        ...

    def symmetric_arena(self, tensor: torch.Tensor, pe: int) -> torch.Tensor:
        """The instance of rank `pe` of a tensor of `tilelink.empty`, flat, in its dtype."""
        ...

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Plain device memory of this rank, zeroed."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor: ...

    def main_stream(self) -> Stream:
        """The caller's current stream."""
        ...

    def side_stream(self, index: int) -> Stream: ...

    def capturing(self) -> bool:
        """Whether the main stream is being captured into a CUDA graph."""
        ...

    def finish(self) -> None:
        """In the simulated world: run until all streams of this rank are idle. On GPUs: nothing."""
        ...

    def agree(self, value: Any) -> list[Any]:
        """Collective, on the host: every rank's `value`, by rank."""
        ...

    def barrier(self) -> None:
        """Collective, on host and device: all earlier work of all ranks is complete."""
        ...


RankMain = Callable[[], Any]
