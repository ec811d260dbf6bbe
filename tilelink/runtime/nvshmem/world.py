"""The `nvshmem` world."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
import torch.distributed as dist

from tilelink.runtime.nvshmem import library
from tilelink.runtime.nvshmem.heap import nvshmem_heap
from tilelink.runtime.nvshmem.streams import NvshmemStream
from tilelink.runtime.peer.launch import Launcher
from tilelink.runtime.peer.world import GpuWorld


class NvshmemWorld(GpuWorld):
    """GPUs that reach one another through NVSHMEM.

    Args:
        group: one process per GPU, the same for all worlds of the process; None for all of them.
        reach: `network` to use the network calls even between GPUs that pointers reach; None to find out.

    Kernels that call the device library are linked with it, which takes seconds each; others are compiled as ever.

    Raises:
        TilelinkError: TL432, TL433, TL435 as for every world on GPUs, TL440 to TL442 NVSHMEM is missing or in use.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, reach: Literal["network"] | None = None) -> None:
        super().__init__(group, "nvshmem")
        heap = nvshmem_heap(self, by_pointer=reach != "network")
        if not all(self.agree(heap.reaches_all())):
            reach = "network"
        self.topology = dataclasses.replace(self.topology, reach=reach or "peer")
        self._heap, self._remote = heap, heap.remote
        extern = {library.EXTERN_LIBRARY: str(library.device_bitcode())}
        self._launcher = Launcher(self.device, {"extern_libs": extern}, library.prepare)

    def close(self) -> None:
        """Collective: end NVSHMEM, after all arenas have been freed; the last thing a process does with it."""
        self.barrier()
        library.stop()

    def _stream(self, stream: torch.cuda.Stream) -> NvshmemStream:
        return NvshmemStream(stream, self._launcher, self._remote)
