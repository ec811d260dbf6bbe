"""The `nvshmem` backend, and CUDA streams whose copies also cross the network."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.runtime import environment
from tilelink.runtime.backend import Call, Copy, Step, Work, ends_of, plain_step
from tilelink.runtime.nvshmem import library
from tilelink.runtime.nvshmem.heap import Pool, PoolHeap, RemoteRanges, nvshmem_heap
from tilelink.runtime.peer.backend import GpuBackend
from tilelink.runtime.peer.streams import CudaStream, Launcher, Piece, pieces

# ---------------------------------------------------------------------------------------------------------------------
# CUDA streams whose copies also cross the network.


class NvshmemStream(CudaStream):
    """A CUDA stream that reaches ranks without pointers by NVSHMEM's calls on streams."""

    def __init__(self, stream: torch.cuda.Stream, launcher: Launcher, remote: RemoteRanges) -> None:
        super().__init__(stream, launcher)
        self._remote = remote

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes; either side, not both, may be a rank across the network.

        The other side then lies in the arena, because the network adapter reads and writes registered memory only.
        Later copies on this stream arrive after this one.

        Raises:
            TilelinkError: TL423, TL427, TL445 both sides are across the network.
        """
        to, start = self._remote.find(target.data_ptr()), self._remote.find(source.data_ptr())
        if to is None and start is None:
            super().copy(target, source)
        elif to is not None and start is None:
            self._put(*to, source.data_ptr(), pieces(target, source))
        elif start is not None and to is None:
            self._get(target.data_ptr(), *start, pieces(target, source))
        else:
            raise TilelinkError(
                "TL445",
                "a copy between two ranks of the network cannot be made from here",
                why="a rank puts its own memory or gets into it",
                hint="copy on one of the two ranks",
            )

    def _put(self, pe: int, target: int, source: int, parts: tuple[Piece, ...]) -> None:
        nvshmem, stream = library.bindings(), self.stream.cuda_stream
        for part in parts:
            for to, start in _rows(part):
                nvshmem.putmem_on_stream(target + to, source + start, part.width, pe, stream)
        # Puts may overtake one another, and a signal is one too.
        nvshmem.quiet_on_stream(stream)

    def _get(self, target: int, pe: int, source: int, parts: tuple[Piece, ...]) -> None:
        for part in parts:
            for to, start in _rows(part):
                library.bindings().getmem_on_stream(
                    target + to, source + start, part.width, pe, self.stream.cuda_stream
                )


def _rows(part: Piece) -> list[tuple[int, int]]:
    """(target, source) offset in bytes of each row."""
    return [(part.target + row * part.target_pitch, part.source + row * part.source_pitch) for row in range(part.rows)]


# ---------------------------------------------------------------------------------------------------------------------
# The `nvshmem` backend.


class NvshmemBackend(GpuBackend):
    """GPUs that reach one another through NVSHMEM.

    Args:
        group: one process per GPU, the same for all backends of the process; None for all of them.
        reach: `network` to use the network calls even between GPUs that pointers reach; None to find out.
        whole: the backend that this one is a part of.

    Kernels that call the device library are linked with it, which takes seconds each; others are compiled as ever.

    Raises:
        TilelinkError: TL432, TL433, TL435 as for every backend on GPUs, TL440 to TL442 NVSHMEM is missing or in use.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        reach: Literal["network"] | None = None,
        whole: NvshmemBackend | None = None,
    ) -> None:
        super().__init__(group, "nvshmem")
        self._whole = whole or self
        self._pool: Pool | None = None
        self.numbers = tuple(self._whole.members.index(m) for m in self.members)
        heap = nvshmem_heap(self, by_pointer=reach != "network") if whole is None else whole.share(self)
        self._reached: list[tuple[bool, ...]] = self.agree(heap.reached())
        if not all(map(all, self._reached)):
            reach = "network"
        self.topology = dataclasses.replace(self.topology, reach=reach or "peer")
        self._heap, self._remote = heap, heap.remote
        whole_library = library.device_bitcode(self.topology.device.capability)
        extern = {library.EXTERN_LIBRARY: str(library.called(whole_library))}
        room = self.topology.device.shared_bytes
        self.launcher = Launcher(self.device, {"extern_libs": extern}, library.prepare, room)

    def share(self, part: NvshmemBackend) -> PoolHeap:
        """The heap of a sub-group. The first time this is collective over all ranks: they set its memory aside."""
        if self._pool is None:
            self._pool = Pool(self._heap.allocate(environment.group_heap()))
        return PoolHeap(self._pool, part.numbers, part.agree, self._remote)

    def close(self) -> None:
        """Collective: end NVSHMEM, after all arenas have been freed; the last thing a process does with it."""
        self.barrier()
        library.stop()

    def step(self, work: Work, stream: int, first: Call) -> Step:
        """As on all GPUs, but for copies across the network, which are NVSHMEM's."""
        ends = ends_of(work, first, self) if isinstance(work, Copy) else ()
        if any(self._remote.find(end.data_ptr()) is not None for end in ends):
            return plain_step(work, stream, self)
        return super().step(work, stream, first)

    def _reach_along(self, line: tuple[int, ...]) -> str:
        return "peer" if all(self._reached[a][b] for a in line for b in line) else "network"

    def _part(self, group: dist.ProcessGroup) -> NvshmemBackend:
        return NvshmemBackend(group, whole=self._whole)

    def _stream(self, stream: torch.cuda.Stream) -> NvshmemStream:
        return NvshmemStream(stream, self.launcher, self._remote)
