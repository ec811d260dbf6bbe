"""Which addresses a program may touch: the arenas, and the tensors passed to a running kernel, to the element.

A wild address would end the process, and an access to a peer's private memory would end a GPU's: both are refused,
address by address, before anything is read or written. So is a neighbour in the same storage, which on GPUs may be
another rank's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np
import torch

from tilelink.runtime.memory import extent
from tilelink.runtime.simulated.observing import Block, Scatter


def block_of(tensor: torch.Tensor) -> Block:
    size = tensor.element_size()
    return Block(tensor.data_ptr(), tuple(tensor.shape), tuple(s * size for s in tensor.stride()), size)


@dataclass(slots=True, eq=False)
class Region:
    """One tensor's memory. `home`: the rank that holds it (None: no rank in particular); `users`: uses by rank."""

    start: int
    end: int
    name: str
    home: int | None
    symmetric: bool
    data: np.ndarray
    users: dict[int, int] = field(default_factory=dict)
    peers: tuple[Region, ...] = ()
    """Of a symmetric region: the instances of all ranks."""

    def open_to(self, rank: int) -> bool:
        return self.symmetric or rank in self.users

    def word(self, address: int, itemsize: int = 8) -> int:
        """The integer at `address`."""
        offset = address - self.start
        return int(self.data[offset : offset + itemsize].view(f"i{itemsize}")[0])


class WildAccess(Exception):
    """Raised by `MemoryMap`; the machine turns it into a diagnostic with the emitted line."""

    def __init__(self, address: int, region: Region | None) -> None:
        self.address = address
        self.region = region
        super().__init__(hex(address))


class MemoryMap:
    """All regions, by start address. They may overlap: views of one tensor."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[Region] = []

    def add(self, tensor: torch.Tensor, rank: int, name: str, *, symmetric: bool = False) -> Region | None:
        """Open a tensor to `rank`; one `drop` each. None if it has no bytes, or lies in an arena, which is open."""
        start, end = extent(tensor)
        if start == end:
            return None
        at = bisect_left(self._starts, start)
        same = [r for r in self._from(at, start) if r.end == end]
        if same:
            region = same[0]
        elif any(r.symmetric for r in self._around(start, end)):
            return None
        else:
            region = Region(start, end, name, rank, symmetric, _bytes(tensor, start, end))
            self._starts.insert(at, start)
            self._regions.insert(at, region)
        if not region.symmetric and region.home != rank:
            region.home = None
        region.users[rank] = region.users.get(rank, 0) + 1
        return region

    def drop(self, region: Region, rank: int) -> None:
        region.users[rank] -= 1
        if not region.users[rank]:
            del region.users[rank]
        if not region.users:
            at = self._regions.index(region)
            del self._regions[at], self._starts[at]

    def find(self, low: int, high: int, rank: int | None = None) -> Region | None:
        """A region that holds [low, high), and is open to `rank` if one is named."""
        at = bisect_right(self._starts, low) - 1
        if at >= 0:
            region = self._regions[at]
            if high <= region.end and (rank is None or region.open_to(rank)):
                return region
        return next((r for r in self._around(low, high) if rank is None or r.open_to(rank)), None)

    def local(self, rank: int, *tensors: torch.Tensor) -> bool:
        """Whether all of these lie on the GPU of the rank."""
        found = [self.find(*extent(t)) for t in tensors if t.numel()]
        return all(r is None or not r.symmetric or r.home == rank for r in found)

    def nearest(self, address: int) -> Region | None:
        """The region that ends or begins closest to `address`."""
        return min(self._regions, key=lambda r: max(r.start - address, address - r.end), default=None)

    def holding(self, block: Block, rank: int) -> Region | None:
        """One region that holds all of a rectangle and is open to the rank."""
        low, high = block.bounds
        return self.find(low, high, rank)

    def wild(self, block: Block, rank: int) -> WildAccess:
        """Why `holding` found none: the first byte that is out of bounds."""
        low, _ = block.bounds
        region = self.find(low, low + 1, rank)
        if region is None:
            return WildAccess(low, self.find(low, low + 1))
        return WildAccess(region.end, self.find(region.end, region.end + 1))

    def check(self, scatter: Scatter, rank: int) -> Region:
        """The region of the lowest address; every single address is checked."""
        low, size = int(scatter.addresses.min()), scatter.itemsize
        region = self.find(low, int(scatter.addresses.max()) + size, rank)
        if region is not None:
            return region
        for address in np.unique(scatter.addresses).tolist():
            if self.find(address, address + size, rank) is None:
                raise WildAccess(address, self.find(address, address + size))
        region = self.find(low, low + size, rank)
        assert region is not None
        return region

    def _from(self, at: int, start: int) -> list[Region]:
        """The regions that start at `start`, the first of which is number `at`."""
        found = []
        while at < len(self._starts) and self._starts[at] == start:
            found.append(self._regions[at])
            at += 1
        return found

    def _around(self, low: int, high: int) -> list[Region]:
        return [r for r in self._regions if r.start <= low and high <= r.end]


def _bytes(tensor: torch.Tensor, start: int, end: int) -> np.ndarray:
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return whole[start - storage.data_ptr() : end - storage.data_ptr()]
