"""NVSHMEM's symmetric heap, through nvshmem4py."""

from __future__ import annotations

from functools import partial

import torch

from tilelink.errors import TilelinkError
from tilelink.runtime.nvshmem import library
from tilelink.runtime.nvshmem.remote import RemoteRanges
from tilelink.runtime.peer.heap import SymmetricBlock
from tilelink.runtime.peer.world import GpuWorld


def nvshmem_heap(world: GpuWorld, *, by_pointer: bool = True) -> NvshmemHeap:
    """Collective: NVSHMEM's heap for the ranks of `world`, NVSHMEM being started if need be.

    As `PeerWorld(heap=nvshmem_heap)`, the peer world runs on NVSHMEM's memory.

    Raises:
        TilelinkError: TL440, TL442 NVSHMEM is missing, or in use by another group.
    """
    library.start(world.rank, world.ranks, world.device, world.agree)
    return NvshmemHeap(world.rank, world.ranks, world.device, by_pointer=by_pointer)


class NvshmemHeap:
    """Symmetric memory by `nvshmem_malloc`; NVSHMEM must have been started.

    Args:
        rank, ranks: this PE and how many there are.
        device: this PE's GPU.
        by_pointer: whether peers are addressed by pointers where they can be, or all by the network calls.
    """

    def __init__(self, rank: int, ranks: int, device: torch.device, *, by_pointer: bool = True) -> None:
        self.remote = RemoteRanges()
        self._rank = rank
        self._ranks = ranks
        self._device = device
        self._by_pointer = by_pointer

    def allocate(self, nbytes: int) -> SymmetricBlock:
        """Collective.

        Raises:
            TilelinkError: TL444, NVSHMEM has no memory left.
        """
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
        bases = tuple(self._base(local, pe) for pe in range(self._ranks))
        peers = tuple(self._peer(local, pe, base) for pe, base in enumerate(bases))
        return SymmetricBlock(local, peers, bases, partial(self._free, local))

    def reached(self) -> tuple[bool, ...]:
        """Collective: for each PE, whether pointers of this GPU reach its heap."""
        block = self.allocate(16)
        found = tuple(base != 0 for base in block.bases)
        block.release()
        return found

    def _base(self, local: torch.Tensor, pe: int) -> int:
        if pe == self._rank:
            return local.data_ptr()
        return library.bindings().ptr(local.data_ptr(), pe) if self._by_pointer else 0

    def _peer(self, local: torch.Tensor, pe: int, base: int) -> torch.Tensor:
        # get_peer_tensor of the own PE would count as a second user of the block, which free would then keep.
        if pe == self._rank:
            return local
        if base:
            return library.core().get_peer_tensor(local, pe)
        return self.remote.add(pe, local.data_ptr(), local.numel(), self._device)

    def _free(self, local: torch.Tensor) -> None:
        self.remote.remove(local.data_ptr())
        library.core().free_tensor(local)
