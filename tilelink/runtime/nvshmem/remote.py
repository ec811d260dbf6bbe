"""Stand-ins for memory that no pointer of this GPU reaches.

Streams copy between tensors, and a tensor has an address. So the instance of a rank across the network gets a range of
addresses with nothing behind it: its tensors can be sliced and viewed like all others, and a copy looks the address up.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import torch

from tilelink.runtime.peer import driver

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
