"""Which addresses a program may touch: the arenas, and what was passed to a running kernel.

A wild address would end the process, and an access to a peer's private memory would end a GPU's: both are refused,
address by address, before anything is read or written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np
import torch

from tilelink.runtime.simulated.observing import Block, Scatter


@dataclass(slots=True, eq=False)
class Region:
    """One torch storage. `home`: the rank that holds it (None: no rank in particular); `users`: uses by rank."""

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
    """Raised by `MemoryMap`; the interpreter turns it into a diagnostic with the emitted line."""

    def __init__(self, address: int, region: Region | None) -> None:
        self.address = address
        self.region = region
        super().__init__(hex(address))


class MemoryMap:
    """All regions, by start address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[Region] = []

    def add(self, tensor: torch.Tensor, rank: int, name: str, *, symmetric: bool = False) -> Region | None:
        """Open the storage of `tensor` to `rank`; one `drop` each. None if it has no bytes."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        if size == 0:
            return None
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start and self._regions[at].end == start + size:
            region = self._regions[at]
        else:
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            region = Region(start, start + size, name, rank, symmetric, data)
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

    def find(self, low: int, high: int) -> Region | None:
        """The region that holds [low, high)."""
        at = bisect_right(self._starts, low) - 1
        if at >= 0 and high <= self._regions[at].end:
            return self._regions[at]
        # Storages may overlap (torch.from_numpy of a slice), then the last to start need not be the one.
        return next((r for r in self._regions if r.start <= low and high <= r.end), None)

    def nearest(self, address: int) -> Region | None:
        """The region that ends or begins closest to `address`."""
        return min(self._regions, key=lambda r: max(r.start - address, address - r.end), default=None)

    def holding(self, block: Block, rank: int) -> Region | None:
        """The one region that holds all of a rectangle and is open to the rank."""
        low, high = block.bounds
        region = self.find(low, high)
        return region if region is not None and region.open_to(rank) else None

    def wild(self, block: Block, rank: int) -> WildAccess:
        """Why `holding` found none: the first byte that is out of bounds."""
        low, _ = block.bounds
        region = self.find(low, low + 1)
        if region is None or not region.open_to(rank):
            return WildAccess(low, region)
        return WildAccess(region.end, self.find(region.end, region.end + 1))

    def check(self, scatter: Scatter, rank: int) -> Region:
        """The region of the lowest address; every single address is checked."""
        low = int(scatter.addresses.min())
        region = self.find(low, int(scatter.addresses.max()) + scatter.itemsize)
        if region is not None and region.open_to(rank):
            return region
        found = [self._of(address, scatter.itemsize, rank) for address in np.unique(scatter.addresses).tolist()]
        return found[0]

    def _of(self, address: int, itemsize: int, rank: int) -> Region:
        region = self.find(address, address + itemsize)
        if region is None or not region.open_to(rank):
            raise WildAccess(address, region)
        return region
