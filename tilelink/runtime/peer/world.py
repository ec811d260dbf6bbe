"""Worlds on GPUs: what the `peer` and `nvshmem` worlds share, and the `peer` world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.ir.topology import Topology
from tilelink.runtime import environment
from tilelink.runtime.peer import group as groups
from tilelink.runtime.peer import reach
from tilelink.runtime.peer.arena import Arena, Arenas
from tilelink.runtime.peer.heap import Heap, TorchHeap
from tilelink.runtime.peer.launch import Launcher
from tilelink.runtime.peer.streams import CudaStream, SideStreams


class GpuWorld:
    """One rank of a process group on its own GPU; ranks are the group's.

    Args:
        group: the ranks; None for all of them.
        name: of the world, for the topology.

    Multicast is off from here on. Raises TL432 without a GPU, TL435 without a process group, TL433 when two ranks
    share a GPU.
    """

    topology: Topology
    _heap: Heap

    def __init__(self, group: dist.ProcessGroup | None = None, name: str = "peer") -> None:
        environment.disable_multicast()
        self.device = reach.current_device()
        self.group = groups.existing(group)
        self.rank = self.group.rank()
        self.ranks = self.group.size()
        self.places: list[reach.Place] = self.agree(reach.place_of(self.device))
        reach.require_own_gpus(self.places)
        self.topology = Topology(self.ranks, name, "peer", reach.describe(self.device))
        self._launcher = Launcher(self.device)
        self._sides = SideStreams(self.device)
        self._arenas = Arenas()

    @classmethod
    def from_environment(cls) -> Self:
        """The world of all processes that `torchrun` started, or of this one alone.

        A process group is made if there is none, on the GPU with this process's local rank.
        """
        environment.disable_multicast()
        groups.join()
        return cls()

    def arena(self, nbytes: int) -> Arena:
        """Collective: symmetric memory, zeroed on every rank before any rank returns.

        Raises:
            TilelinkError: TL436 the ranks ask for different sizes, or for none, TL437 while capturing, and as the heap.
        """
        asked = self.agree(nbytes)
        if nbytes <= 0 or set(asked) != {nbytes}:
            raise TilelinkError(
                "TL436",
                f"the ranks ask for symmetric memory of {', '.join(map(str, asked))} bytes",
                why="symmetric memory has one size, above 0, on every rank",
                hint="make the ranks run the same operators in the same order",
            )
        block = self._heap.allocate(nbytes)
        if self.topology.reach == "peer":
            gap = None if all(block.bases) else f"rank {self.rank} has no pointer to some rank's symmetric memory"
            reach.require_no_gap(self.agree(gap))
        block.local.zero_()
        self.barrier()
        arena = Arena(block, self.rank, self._settle)
        self._arenas.add(arena)
        return arena

    def context_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The context of the arena that holds a tensor.

        Raises:
            TilelinkError: TL439, none does.
        """
        return self._arenas.holding(tensor).context

    def symmetric_arena(self, tensor: torch.Tensor, pe: int) -> torch.Tensor:
        """The instance of rank `pe` of a contiguous tensor in some arena: flat, in its dtype.

        Raises:
            TilelinkError: TL439, no arena holds it.
        """
        return self._arenas.holding(tensor).instance(tensor, pe)

    def zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Plain memory of this rank's GPU: `size` elements, zeroed."""
        return torch.zeros(size, dtype=dtype, device=self.device)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Plain memory of this rank's GPU, with whatever lies there."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def main_stream(self) -> CudaStream:
        """The caller's current stream.

        Raises:
            TilelinkError: TL438, the current device has changed since the world was made.
        """
        if torch.cuda.current_device() != self.device.index:
            raise TilelinkError(
                "TL438",
                f"the current device is cuda:{torch.cuda.current_device()}, and this rank runs on {self.device}",
                why="kernels start on the current device",
                hint=f"call torch.cuda.set_device({self.device.index}) once, at the start",
            )
        return self._stream(torch.cuda.current_stream(self.device))

    def side_stream(self, index: int) -> CudaStream:
        """The stream with this number: always the same one, of high priority."""
        return self._stream(self._sides[index])

    def capturing(self) -> bool:
        """Whether the caller's current stream is being captured into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def finish(self) -> None:
        """Nothing: GPUs run by themselves."""

    def agree(self, value: Any) -> list[Any]:
        """Collective, on the host: every rank's `value`, which must be picklable, by rank.

        Raises:
            TilelinkError: TL437, while capturing.
        """
        self._require_no_capture("ranks cannot agree")
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        """Collective, on host and device: all earlier work of all ranks is complete.

        Raises:
            TilelinkError: TL437, while capturing.
        """
        self._require_no_capture("ranks cannot meet at a barrier")
        torch.cuda.synchronize(self.device)
        if self.ranks > 1:
            dist.barrier(group=self.group)
            torch.cuda.synchronize(self.device)

    def _settle(self, arena: Arena) -> None:
        self.barrier()
        self._arenas.remove(arena)

    def _stream(self, stream: torch.cuda.Stream) -> CudaStream:
        return CudaStream(stream, self._launcher)

    def _require_no_capture(self, what: str) -> None:
        if self.capturing():
            raise TilelinkError(
                "TL437",
                f"{what} while a CUDA graph is being captured",
                why="the host would wait for work that is only being recorded",
                hint="call the operator once with tensors of the same shapes before capturing it",
            )


def torch_heap(world: GpuWorld) -> TorchHeap:
    """PyTorch's symmetric memory for the ranks of `world`."""
    return TorchHeap(world.group, world.device)


class PeerWorld(GpuWorld):
    """GPUs that reach one another's memory.

    Args:
        group: one process per GPU; None for all of them.
        heap: makes the heap that symmetric memory comes from.

    Raises:
        TilelinkError: TL432, TL433, TL435 as for every world on GPUs, TL434 some GPU cannot reach another.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, *, heap: Callable[[GpuWorld], Heap] = torch_heap
    ) -> None:
        super().__init__(group, "peer")
        gap = reach.first_gap(self.rank, self.device, self.places)
        # All ranks learn of it, lest the others wait for this one.
        reach.require_no_gap(self.agree(gap))
        self._heap = heap(self)
