"""Heaps: where symmetric memory comes from."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._autograd import DeviceType
from torch._C._distributed_c10d import _SymmetricMemory

from tilelink.errors import TilelinkError
from tilelink.runtime.arena import SymmetricBlock


class Heap(Protocol):
    """Where symmetric memory comes from."""

    def allocate(self, nbytes: int) -> SymmetricBlock:
        """Collective; `nbytes > 0` is the same on every rank."""
        ...


class TorchHeap:
    """PyTorch's symmetric memory with its CUDA backend: blocks that every rank maps.

    Raises:
        TilelinkError: TL430, multicast cannot be switched off any more, or another backend is in use.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group = group
        self._device = device
        _require_no_multicast(device)
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

    def allocate(self, nbytes: int) -> SymmetricBlock:
        """Collective.

        Raises:
            TilelinkError: TL431, the peers' memory cannot be mapped.
        """
        if self._group.size() == 1:
            local = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            return SymmetricBlock(local, (local,), (local.data_ptr(),), release=_nothing)
        # Not symmetric_memory.empty: that takes from a pool, where ranks may get different places within a block.
        local = _SymmetricMemory.empty_strided_p2p((nbytes,), (1,), torch.uint8, self._device)
        try:
            handle = _SymmetricMemory.rendezvous(local, self._group.group_name)
        except RuntimeError as error:
            raise TilelinkError(
                "TL431",
                f"the ranks cannot map one another's memory: {error}",
                why="symmetric memory is mapped into every process of one host",
                hint="start one process per GPU of one host, or use TILELINK_BACKEND=nvshmem",
            ) from error
        ranks, bases = range(self._group.size()), tuple(handle.buffer_ptrs)
        assert bases[self._group.rank()] == local.data_ptr(), "a block of symmetric memory begins at its first byte"
        peers = tuple(handle.get_buffer(rank, (nbytes,), torch.uint8) for rank in ranks)
        mappings = [handle]  # they live as long as the handle does
        return SymmetricBlock(local, peers, bases, release=mappings.clear)


def _nothing() -> None:
    """PyTorch frees plain memory with its last tensor."""


def _require_no_multicast(device: torch.device) -> None:
    if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, device.index):
        raise TilelinkError(
            "TL430",
            "PyTorch would bind symmetric memory to NVLink multicast",
            why="a process that dies with a multicast object bound can leave the GPUs of its host unusable",
            hint="set TORCH_SYMM_MEM_DISABLE_MULTICAST=1 before anything uses symmetric memory",
        )
