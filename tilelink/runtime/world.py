"""What an operator needs of the world it runs in: memory, streams, and the ranks' agreement.

Four worlds implement it: `simulated`, `peer`, `nvshmem` and `gloo`, which runs no kernels. One `World` object is one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tilelink.ir.options import KernelOptions
from tilelink.ir.topology import Topology

if TYPE_CHECKING:
    from tilelink.runtime.grid import Grid
    from tilelink.runtime.guard import Guard
    from tilelink.runtime.work import Call, Step, Work


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A kernel argument that a world turns into a TMA descriptor: a 2-D+ tensor view and the block shape."""

    tensor: torch.Tensor
    block: tuple[int, ...]


class Event(Protocol):
    """A point in a stream, made by `Stream.record`."""


class Stream(Protocol):
    """Work in order. Everything here is asynchronous to the host and legal under CUDA-graph capture."""

    def launch(self, kernel: Any, workers: int, args: Mapping[str, Any], options: KernelOptions) -> None:
        """Start `workers` instances of a `triton.jit` kernel; `args` by parameter name."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes by a copy engine; either side may be a peer's memory. Same shape and dtype, rows contiguous."""
        ...

    def apply(
        self,
        function: Callable[..., object],
        inputs: Sequence[torch.Tensor],
        output: torch.Tensor | None,
        constants: Mapping[str, Any],
    ) -> None:
        """`function(*inputs, out=output, **constants)` with this stream as torch's current one, without gradients; no `out`
        where there is no output."""
        ...

    def wait_bell(self, bell: torch.Tensor, times: int = 1) -> None:
        """Block the stream until the one-element int64 `bell` is `times`, then set it back to 0."""
        ...

    def record(self) -> Event: ...

    def stamp(self) -> Stamp:
        """A point in the stream whose time `World.read` gives; not under capture."""
        ...

    def wait(self, event: Event) -> None: ...


class Stamp(Protocol):
    """A point in time, made by `Stream.stamp`."""


class Arena(Protocol):
    """One symmetric allocation: the same number of bytes on every rank, zeroed.

    `local`: uint8 tensor of this rank's instance. `context`: int64 tensor on the device, `[my_pe, n_pes, base address
    of the arena on pe 0, on pe 1, …, number of pe 0, of pe 1, … among all ranks]`, which device functions take as
    their last argument.
    """

    local: torch.Tensor
    context: torch.Tensor

    def along(self, line: tuple[int, ...]) -> torch.Tensor:
        """The context for some of the ranks, this one among them, which are numbered by their place there."""
        ...

    def peer(self, pe: int) -> torch.Tensor:
        """The instance of rank `pe` as a uint8 tensor that streams can copy to and from."""
        ...

    def free(self) -> None:
        """Collective."""
        ...


class Watcher(Protocol):
    """A thread that carries reports between ranks, and ends the process of a rank that cannot go on."""

    def reset(self) -> None:
        """All ranks start afresh."""
        ...

    def stop(self) -> None: ...


class World(Protocol):
    rank: int
    ranks: int
    topology: Topology
    group: Any
    """The ranks as a group of torch.distributed; None where they are simulated."""
    only_references: bool
    """Whether nothing but an operator's reference runs here: processes on CPUs."""

    @property
    def name(self) -> str:
        """By which `named` finds the group again on this rank, for graphs of torch, whose constants are no groups."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its ranks can be called: a process group may have been destroyed, and its name be that of another one now."""
        ...

    def named(self, name: str) -> Any:
        """What `within` takes for the group of that name.

        Raises:
            TilelinkError: TL456, there is none.
        """
        ...

    def among(self, ranks: Sequence[int]) -> Any:
        """What `within` takes for some of this world's ranks.

        Args:
            ranks: in rising order; all of them call this, and no others, each with its groups in the same order.
        """
        ...

    def within(self, group: Any) -> World:
        """The world of a group that this rank is in: its ranks are numbered from 0, its streams are this world's.

        Collective over the group.
        """
        ...

    def arena(self, nbytes: int) -> Arena:
        """Collective: every rank asks for the same number of bytes in the same order."""
        ...

    def grid(self, group: Any) -> Grid | None:
        """The axes that a group comes with, such as a `DeviceMesh` of several dimensions; None: it is one of `within`."""
        ...

    def laid_out(self, grid: Grid) -> World:
        """This world with its ranks along several axes, the last one of neighbours.

        Raises:
            TilelinkError: TL457, there are more or fewer ranks.
        """
        ...

    def context_of(self, tensor: torch.Tensor, line: tuple[int, ...] | None = None) -> torch.Tensor:
        """The context of the arena that holds a tensor of `tilelink.empty`, for the ranks of a line if one is named."""
        ...

    def symmetric_arena(self, tensor: torch.Tensor, pe: int) -> torch.Tensor:
        """The instance of rank `pe` of a tensor of `tilelink.empty`, flat, in its dtype."""
        ...

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Plain device memory of this rank, zeroed."""
        ...

    def maker(self, shape: Sequence[int], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        """Makes tensors for results, in plain device memory of this rank."""
        ...

    def shared_words(self, count: int, *, on_host: bool) -> torch.Tensor:
        """Plain int64 words, zeroed, that this rank's kernels find by address: in its GPU's memory, or where the host
        reads and writes them while kernels run."""
        ...

    def limit_waits(self, seconds: float | None) -> None:
        """Waits with a time limit have so many. In the simulated world, where only this makes time pass; on GPUs: nothing."""
        ...

    def watch_over(self, guard: Guard, bells: Callable[[], list[torch.Tensor]]) -> Watcher | None:
        """Start what looks after a guard beside the rank's program; `bells`: the words that its streams wait for.

        None in the simulated world, where a program looks for itself at the end of each call.
        """
        ...

    def drain(self) -> None:
        """This rank's work is complete. Not collective."""
        ...

    def main_stream(self) -> Stream:
        """The caller's current stream."""
        ...

    def side_stream(self, index: int) -> Stream: ...

    def step(self, work: Work, stream: int, first: Call) -> Step:
        """Work of the stream with this number (`ir.host.MAIN`: that of the call), ready to be done in calls like `first`.

        Its kernel is compiled and loaded here. Nothing is started.
        """
        ...

    def capturing(self) -> bool:
        """Whether the main stream is being captured into a CUDA graph."""
        ...

    def finish(self) -> None:
        """In the simulated world: run until all streams of this rank are idle. On GPUs: nothing."""
        ...

    def timed(self, call: Callable[[], Any], host_us: float = 0.0) -> float:
        """Collective: milliseconds (in the simulated world: simulated ones) that `call` takes on this rank's device.

        All ranks begin together; what the host does is not part of it, and no input lies in a cache.

        Args:
            host_us: microseconds that the host may take to start it; the device begins after twice as many.
        """
        ...

    @property
    def late(self) -> bool:
        """Whether this rank's device began before its host had started all of the call that was timed last."""
        ...

    def read(self, stamps: Sequence[Stamp]) -> list[int]:
        """Nanoseconds of the clock that this rank's kernels read; waits until the streams have come to the stamps."""
        ...

    def skew(self) -> int:
        """Collective: nanoseconds by which this rank's clock is ahead of rank 0's, to within a few microseconds."""
        ...

    def agree(self, value: Any) -> list[Any]:
        """Collective, on the host: every rank's `value`, by rank."""
        ...

    def barrier(self) -> None:
        """Collective, on host and device: all earlier work of all ranks is complete."""
        ...
