"""The `nvshmem` backend: its heaps, of all ranks and of some of them, and streams whose copies cross the network."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, Self

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.runtime import environment
from tilelink.runtime.backend import Call, Copy, Step, Work, ends_of, plain_step
from tilelink.runtime.nvshmem import library
from tilelink.runtime.peer import driver
from tilelink.runtime.peer.backend import GpuBackend, SymmetricBlock
from tilelink.runtime.peer.streams import CudaStream, Launcher, Piece, pieces

# ---------------------------------------------------------------------------------------------------------------------
# Stand-ins for memory that no pointer of this GPU reaches.
#
# Streams copy between tensors, and a tensor has an address. So the instance of a rank across the network gets a range of
# addresses with nothing behind it: its tensors can be sliced and viewed like all others, and a copy looks the address up.

_GRANULE = 2 * 1024 * 1024
"""Address ranges are reserved in multiples of so many bytes."""


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Addresses `first` to before `last` stand for the memory of `pe` that is symmetric to `local` here."""

    first: int
    last: int
    pe: int
    local: int


class RemoteRanges:
    """All stand-ins of this process."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []

    def add(self, pe: int, local: int, nbytes: int, device: torch.device) -> torch.Tensor:
        """A uint8 tensor that stands for `nbytes` bytes of `pe`, symmetric to the address `local`.

        To be passed to streams only: a kernel or an operator of torch that touches it faults.
        """
        first = driver.reserve_addresses(_rounded(nbytes))
        bisect.insort(self._ranges, Range(first, first + nbytes, pe, local))
        storage = torch._C._construct_storage_from_data_pointer(first, device, nbytes)
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)  # pyright: ignore[reportArgumentType]

    def find(self, address: int) -> tuple[int, int] | None:
        """(PE, symmetric local address) of what `address` stands for; None if it is an ordinary address."""
        at = bisect.bisect_right(self._ranges, address, key=lambda entry: entry.first) - 1
        if at < 0 or address >= self._ranges[at].last:
            return None
        return self._ranges[at].pe, self._ranges[at].local + address - self._ranges[at].first

    def remove(self, local: int) -> None:
        """Give back all stand-ins of the block that begins at `local`."""
        for entry in [entry for entry in self._ranges if entry.local == local]:
            self._ranges.remove(entry)
            driver.release_addresses(entry.first, _rounded(entry.last - entry.first))


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _GRANULE) * _GRANULE


# ---------------------------------------------------------------------------------------------------------------------
# Symmetric memory for some of the ranks only.
#
# NVSHMEM's own allocation is collective over all PEs. So all of them set one block aside, and a group takes pieces of it
# that are free on each of its members; other groups may use the same addresses on other PEs at the same time.

Span = tuple[int, int]
"""First byte, and the byte after the last."""
_ALIGN = 512


def first_fit(used: Iterable[Span], nbytes: int, room: int) -> int | None:
    """The lowest place where `nbytes` of `room` bytes are in none of the pieces that some member uses."""
    taken = sorted(used)
    starts = (first for first in sorted({0, *(last for _, last in taken)}) if first + nbytes <= room)
    return next((s for s in starts if all(last <= s or s + nbytes <= first for first, last in taken)), None)


@dataclass(slots=True, eq=False)
class Pool:
    """One block on every PE, and the pieces of it that are in use on this one."""

    block: SymmetricBlock
    used: set[Span] = field(default_factory=set[Span])

    def take(self, nbytes: int, members: Sequence[int], agree: Callable[[Any], list[Any]]) -> SymmetricBlock:
        """A piece for one group, whose PEs are `members`; collective over it. `agree`: every member's value, by rank. Raises
        TL446, no piece of this size is free on all members."""
        size, whole = -(-nbytes // _ALIGN) * _ALIGN, self.block
        first = first_fit(set[Span]().union(*agree(self.used)), size, whole.local.numel())
        if first is None:
            raise TilelinkError(
                "TL446",
                f"the memory of sub-groups has no {nbytes} bytes that are free on PEs {', '.join(map(str, members))}",
                why="NVSHMEM allocates on all PEs at once, so sub-groups share what was set aside at the first of them",
                hint="set TILELINK_GROUP_HEAP to more bytes, or close operators that are not used",
            )
        piece = (first, first + size)
        self.used.add(piece)
        peers = tuple(whole.peers[pe][first : first + nbytes] for pe in members)
        bases = tuple(whole.bases[pe] and whole.bases[pe] + first for pe in members)
        local = whole.local[first : first + nbytes]
        return SymmetricBlock(local, peers, bases, partial(self.used.remove, piece))


class NvshmemHeap:
    """Collective: NVSHMEM's heap for the ranks of `backend`, NVSHMEM being started if need be.

    As `PeerBackend(heap=NvshmemHeap)`, the peer backend runs on NVSHMEM's memory. Raises TL440, TL442 NVSHMEM is missing,
    or in use by another group.

    Args:
        by_pointer: whether peers are addressed by pointers where they can be, or all by the network calls.
    """

    def __init__(self, backend: GpuBackend, *, by_pointer: bool = True) -> None:
        library.start(backend.rank, backend.ranks, backend.device, backend.agree)
        self.remote = RemoteRanges()
        self._whole = backend
        self._by_pointer = by_pointer

    @cached_property
    def pool(self) -> Pool:
        """What sub-groups take their memory from. Collective over all ranks, the first time: they set it aside."""
        return Pool(self.allocate(environment.group_heap(), self._whole))

    def allocate(self, nbytes: int, backend: GpuBackend) -> SymmetricBlock:
        """Collective. Raises TL444, NVSHMEM has no memory left; for some of the ranks those of `Pool.take`."""
        if backend.ranks < self._whole.ranks:
            return self.pool.take(nbytes, backend.numbers, backend.agree)
        nvshmem = library.core()
        try:
            local = nvshmem.tensor((nbytes,), dtype=torch.uint8, except_on_del=False)
        except (nvshmem.NvshmemError, nvshmem.NvshmemInvalid) as error:
            raise TilelinkError(
                "TL444",
                f"NVSHMEM gives no {nbytes} bytes: {error}",
                why="the symmetric heap is limited by the free memory of the fullest GPU",
                hint="free arenas, or give PyTorch's allocator less (torch.cuda.empty_cache())",
            ) from error
        bases, peers = zip(*(self._instance(local, pe) for pe in range(self._whole.ranks)), strict=True)
        return SymmetricBlock(local, peers, bases, partial(self._free, local))

    def reached(self) -> tuple[bool, ...]:
        """Collective: for each PE, whether pointers of this GPU reach its heap."""
        block = self.allocate(16, self._whole)
        found = tuple(base != 0 for base in block.bases)
        block.release()
        return found

    def _instance(self, local: torch.Tensor, pe: int) -> tuple[int, torch.Tensor]:
        """Its base, as a `SymmetricBlock` has it, and what streams take for it."""
        # get_peer_tensor of the own PE would count as a second user of the block, which free would then keep.
        if pe == self._whole.rank:
            return local.data_ptr(), local
        base: int = library.bindings().ptr(local.data_ptr(), pe) if self._by_pointer else 0
        if base:
            return base, library.core().get_peer_tensor(local, pe)
        return base, self.remote.add(pe, local.data_ptr(), local.numel(), self._whole.device)

    def _free(self, local: torch.Tensor) -> None:
        self.remote.remove(local.data_ptr())
        library.core().free_tensor(local)


class NvshmemStream(CudaStream):
    """A CUDA stream that reaches ranks without pointers by NVSHMEM's calls on streams."""

    def __init__(self, stream: torch.cuda.Stream, launcher: Launcher, remote: RemoteRanges) -> None:
        super().__init__(stream, launcher)
        self._remote = remote

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes; either side, not both, may be a rank across the network.

        The other side then lies in the arena, because the network adapter reads and writes registered memory only. Later
        copies on this stream arrive after this one. Raises TL423, TL427, TL445 both sides are across the network.
        """
        to, start = self._remote.find(target.data_ptr()), self._remote.find(source.data_ptr())
        if to is None and start is None:
            return super().copy(target, source)
        if to is not None and start is not None:
            raise TilelinkError(
                "TL445",
                "a copy between two ranks of the network cannot be made from here",
                why="a rank puts its own memory or gets into it",
                hint="copy on one of the two ranks",
            )
        nvshmem, parts = library.bindings(), pieces(target, source)
        if to is not None:
            pe, address = to
            _moved(nvshmem.putmem_on_stream, address, source.data_ptr(), parts, pe, self.handle)
            # Puts may overtake one another, and a signal is one too.
            nvshmem.quiet_on_stream(self.handle)
        elif start is not None:
            pe, address = start
            _moved(nvshmem.getmem_on_stream, target.data_ptr(), address, parts, pe, self.handle)
        return None


def _moved(
    move: Callable[..., object], target: int, source: int, parts: tuple[Piece, ...], pe: int, stream: int
) -> None:
    """Row by row, by a call of NVSHMEM."""
    for part in parts:
        for row in range(part.rows):
            to, start = part.target + row * part.target_pitch, part.source + row * part.source_pitch
            move(target + to, source + start, part.width, pe, stream)


class NvshmemBackend(GpuBackend):
    """GPUs that reach one another through NVSHMEM. Raises TL432, TL433, TL435 as for every backend on GPUs, TL440 to TL442
    NVSHMEM is missing or in use.

    Args:
        group: one process per GPU, the same for all backends of the process; None for all of them.
        reach: `network` to use the network calls even between GPUs that pointers reach; None to find out.

    Kernels that call the device library are linked with it, which takes seconds each; others are compiled as ever.
    """

    _heap: NvshmemHeap

    def __init__(self, group: dist.ProcessGroup | None = None, *, reach: Literal["network"] | None = None) -> None:
        super().__init__(group, "nvshmem")
        self.numbers = tuple(range(self.ranks))
        self._heap = NvshmemHeap(self, by_pointer=reach != "network")
        self._remote = self._heap.remote
        self._reached: list[tuple[bool, ...]] = self.agree(self._heap.reached())
        self.topology = replace(self.topology, reach=reach or self._reach_among(self.numbers))
        whole_library = library.device_bitcode(self.topology.device.capability)
        extern = {library.EXTERN_LIBRARY: str(library.called(whole_library))}
        room = self.topology.device.shared_bytes
        self.launcher = Launcher(self.device, {"extern_libs": extern}, library.prepare, room)

    def close(self) -> None:
        """Collective: end NVSHMEM, after all arenas have been freed; the last thing a process does with it."""
        self.barrier()
        library.stop()

    def step(self, work: Work, stream: int, first: Call) -> Step:
        """As on all GPUs, but for copies across the network, which are NVSHMEM's."""
        ends = ends_of(work, first) if isinstance(work, Copy) else ()
        if any(self._remote.find(end.data_ptr()) is not None for end in ends):
            return plain_step(work, stream, self)
        return super().step(work, stream, first)

    def _reach_among(self, ranks: Sequence[int]) -> str:
        pes = [self.numbers[r] for r in ranks]
        return "peer" if all(self._reached[a][b] for a in pes for b in pes) else "network"

    def _part(self, ranks: Sequence[int]) -> Self:
        _ = self._heap.pool  # now, when all ranks make their first groups, and not when some take memory there
        return super()._part(ranks)

    def _stream(self, stream: torch.cuda.Stream) -> NvshmemStream:
        return NvshmemStream(stream, self.launcher, self._remote)
