"""Backends on GPUs: what the `peer` and `nvshmem` backends share, and the `peer` backend."""

from __future__ import annotations

import statistics
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _SymmetricMemory

from tilelink.errors import TilelinkError
from tilelink.ir.topology import Topology
from tilelink.runtime import environment
from tilelink.runtime.backend import Call, Step, Work
from tilelink.runtime.memory import Arena
from tilelink.runtime.peer import clocks, driver, reach
from tilelink.runtime.peer.clocks import Stopwatch
from tilelink.runtime.peer.steps import settled
from tilelink.runtime.peer.streams import CudaStream, Launcher, own_stream
from tilelink.runtime.processes import ProcessBackend
from tilelink.runtime.refusals import warn_once
from tilelink.runtime.watchdog import Guard, Process, StoreWatcher, this_process

T = TypeVar("T")


OFTEN = 2**30
"""More often than any doorbell is rung in a call: what ends a stream's wait for one."""


class GpuBackend(ProcessBackend):
    """One rank of a process group on its own GPU; ranks are the group's.

    Args:
        group: the ranks; None for all of them.
        name: of the backend, for the topology.

    Multicast is off from here on. Raises TL432 without a GPU, TL435 without a process group, TL433 when two ranks
    share a GPU and the backend is not made for that.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, name: str = "peer") -> None:
        environment.disable_multicast()
        self.device = reach.current_device()
        super().__init__(group)
        self.places: list[reach.Place] = self.agree(reach.place_of(self.device))
        shared = name == "peer" and environment.share_gpus()
        if shared:
            environment.allow_shared_gpus()
            if self.ranks == dist.get_world_size() and self.rank == 0:
                turns = "kernels take turns, torch's collectives go through the host, and times mean nothing"
                gpus = len(set(self.places))
                warn_once(f"TILELINK_SHARE_GPUS is set, {self.ranks} ranks run on {gpus} GPUs: {turns}")
        else:
            reach.require_own_gpus(self.places)
        self._processes: dict[int, Process] = dict(zip(self.members, self.agree(this_process()), strict=True))
        self.topology = Topology(self.ranks, name, "peer", reach.describe(self.device), shared=shared)
        self.launcher = Launcher(self.device, room=self.topology.device.shared_bytes)
        self._sides: dict[int, CudaStream] = {}
        self._mains: dict[int, CudaStream] = {}
        self._called: dict[bool, CudaStream] = {}
        """On which stream the last call was made, and the last one that was captured."""
        self._thread = threading.local()
        # The handle of a device's current stream, if possible without a Python object around it; Triton asks so too.
        raw: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._current_handle: Callable[[int], int] = raw or (lambda at: torch.cuda.current_stream(at).cuda_stream)

    @classmethod
    def from_environment(cls) -> Self:
        """The backend of all processes that `torchrun` started, or of this one alone.

        A process group is made if there is none, on the GPU with this process's local rank.
        """
        environment.disable_multicast()
        reach.join()
        return cls()

    def _allocate(self, nbytes: int) -> Arena:
        arena = self.lasting(partial(self._take, nbytes))
        if self.topology.reach == "peer":
            gap = None if all(arena.bases) else f"rank {self.rank} has no pointer to some rank's symmetric memory"
            reach.require_no_gap(self.agree(gap))
        arena.local.zero_()
        self.barrier()
        return arena

    @abstractmethod
    def _take(self, nbytes: int) -> Arena:
        """Collective; not zeroed yet."""

    def maker(self, shape: Sequence[int], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        # Like one element that is all of them: torch takes half as long as to be told shape, dtype and device.
        one = self.lasting(partial(torch.empty, [min(n, 1) for n in shape], dtype=dtype, device=self.device))
        return partial(torch.empty_like, one.expand(tuple(shape)), memory_format=torch.contiguous_format)

    def shared_words(self, count: int, *, on_host: bool) -> torch.Tensor:
        """int64 flags of this rank's GPU, or of the host, where its kernels reach them too."""
        if on_host:
            return self.lasting(partial(torch.zeros, count, dtype=torch.int64, device="cpu", pin_memory=True))
        return self.zeros(count, torch.int64)

    def lasting(self, make: Callable[[], T]) -> T:
        """In a thread of its own: neither inference mode holds there nor the pool of a CUDA graph, to which
        `torch.compile(mode="reduce-overhead")` sends what a thread allocates."""
        stream = torch.cuda.current_stream(self.device)

        def here() -> T:
            with torch.cuda.stream(stream):
                return make()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(here).result()

    def watch_over(self, guard: Guard, doorbells: Callable[[], list[torch.Tensor]]) -> StoreWatcher:
        # Kernels and streams that wait hold up what is behind them; this stream is used for nothing else.
        stream = own_stream(self.device)

        # Allocating while a stream waits could wait for it.
        rung = torch.full((4096,), OFTEN, dtype=torch.int64, device="cpu", pin_memory=True)

        def release() -> None:
            torch.cuda.set_device(self.device)
            with torch.cuda.stream(stream):
                for words in doorbells():
                    for part in words.split(len(rung)):
                        part.copy_(rung[: len(part)], non_blocking=True)

        peers = {rank: self._processes[m] for rank, m in enumerate(self.members) if rank != self.rank}
        watcher = StoreWatcher(guard, self.ranks, peers, self.board(), release)
        watcher.start()
        return watcher

    def drain(self) -> None:
        torch.cuda.synchronize(self.device)

    def main_stream(self, capturing: bool | None = None) -> CudaStream:
        """As of every backend. Raises TL438, the current device has changed since the backend was made."""
        if torch.cuda.current_device() != self.device.index:
            raise TilelinkError(
                "TL438",
                f"the current device is cuda:{torch.cuda.current_device()}, and this rank runs on {self.device}",
                why="kernels start on the current device",
                hint=f"call torch.cuda.set_device({self.device.index}) once, at the start",
            )
        if not hasattr(self._thread, "entered") and not torch.version.hip:
            driver.enter(self.device.index)
            self._thread.entered = True
        handle = self._current_handle(self.device.index)
        if handle not in self._mains:
            self._mains[handle] = CudaStream(torch.cuda.current_stream(self.device), self.launcher)
        stream, captured = self._mains[handle], self.capturing() if capturing is None else capturing
        before = self._called.get(captured)
        if before is not stream:
            self._called[captured] = stream
            if before is not None and before.capturing() == captured:
                stream.wait(before.record())
        return stream

    def side_stream(self, index: int) -> CudaStream:
        """They go first where hardware can choose."""
        if index not in self._sides:
            self._sides[index] = CudaStream(own_stream(self.device), self.launcher)
        return self._sides[index]

    def step(self, work: Work, stream: int, first: Call) -> Step:
        """Work of a stream with its kernel loaded, its arguments laid out and its addresses known where they stay."""
        return settled(work, stream, self.launcher, first)

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    @cached_property
    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(self.device)

    def timed(self, call: Callable[[], Any], host_us: float = 0.0) -> float:
        """As of every backend; raises TL460 if the call does not end."""
        stopwatch = self._stopwatch
        self.barrier()
        ms, self.late = stopwatch.time(call, host_us, self.group)
        return ms

    def read(self, stamps: Sequence[Any]) -> list[int]:
        """Nanoseconds of this GPU's clock, to half a microsecond."""
        return clocks.read(self.device, stamps)

    def skew(self) -> int:
        mine = clocks.together(self.device, self.group)
        first = self.agree(mine)[0]
        return round(statistics.median(a - b for a, b in zip(mine, first, strict=True)))

    def agree(self, value: Any) -> list[Any]:
        """As of every backend; raises TL437 while capturing."""
        self._require_no_capture("ranks cannot agree")
        return super().agree(value)

    def barrier(self) -> None:
        """As of every backend; raises TL437 while capturing."""
        self._require_no_capture("ranks cannot meet at a barrier")
        torch.cuda.synchronize(self.device)
        if self.ranks > 1:
            dist.barrier(group=self.group)
            torch.cuda.synchronize(self.device)

    def _require_no_capture(self, what: str) -> None:
        if self.capturing():
            raise TilelinkError(
                "TL437",
                f"{what} while a CUDA graph is being captured",
                why="the host would wait for work that is only being recorded",
                hint="make the same call once before capturing it",
            )


class PeerBackend(GpuBackend):
    """GPUs that map one another's memory: PyTorch's symmetric memory with its CUDA backend.

    Ranks may share GPUs, if the user asks for it (`environment.share_gpus`). Raises TL432, TL433, TL435 as for every backend on
    GPUs, TL434 some GPU cannot reach another, TL430 multicast cannot be switched off any more, or symmetric memory has another
    backend.

    Args:
        group: one process per GPU; None for all of them.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group, "peer")
        gap = reach.first_gap(self.rank, self.device, self.places)
        # All ranks learn of it, lest the others wait for this one.
        reach.require_no_gap(self.agree(gap))
        require_mapped_memory(self.device)

    def _take(self, nbytes: int) -> Arena:
        """Raises TL431, the peers' memory cannot be mapped."""
        if self.ranks == 1:
            local = torch.empty(nbytes, dtype=torch.uint8, device=self.device)  # freed with its last tensor
            return Arena(self, local, (local,), (local.data_ptr(),), release=lambda: None)
        # Not symmetric_memory.empty: that takes from a pool, where ranks may get different places within a block.
        local = _SymmetricMemory.empty_strided_p2p((nbytes,), (1,), torch.uint8, self.device)
        try:
            handle = _SymmetricMemory.rendezvous(local, self.group.group_name)
        except RuntimeError as error:
            raise TilelinkError(
                "TL431",
                f"the ranks cannot map one another's memory: {error}",
                why="symmetric memory is mapped into every process of one host",
                hint="start one process per GPU of one host, or use TILELINK_BACKEND=nvshmem",
            ) from error
        bases = tuple(handle.buffer_ptrs)
        assert bases[self.rank] == local.data_ptr(), "a block of symmetric memory begins at its first byte"
        peers = tuple(handle.get_buffer(rank, (nbytes,), torch.uint8) for rank in range(self.ranks))
        mappings = [handle]  # they live as long as the handle does
        return Arena(self, local, peers, bases, release=mappings.clear)


def require_mapped_memory(device: torch.device) -> None:
    """Let PyTorch's symmetric memory be what the CUDA backend maps. Raises TL430, it will not."""
    if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, device.index):
        raise TilelinkError(
            "TL430",
            "PyTorch would bind symmetric memory to NVLink multicast",
            why="a process that dies with a multicast object bound can leave the GPUs of its host unusable",
            hint="set TORCH_SYMM_MEM_DISABLE_MULTICAST=1 before anything uses symmetric memory",
        )
    try:
        # The default backend cannot be set, only kept: PyTorch does not list it among those to choose from.
        if _SymmetricMemory.get_backend(device) != "CUDA":
            _SymmetricMemory.set_backend("CUDA")
    except RuntimeError as error:
        raise TilelinkError(
            "TL430",
            f"PyTorch's symmetric memory is set to another backend than CUDA: {error}",
            why="kernels address peers by the pointers that the CUDA backend maps",
            hint="unset TORCH_SYMMMEM, and call no set_backend before",
        ) from error
