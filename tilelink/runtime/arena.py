"""Arenas: symmetric memory as operators use it, and which of them holds a tensor."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tilelink.runtime.grid import context_along
from tilelink.runtime.refusals import Place, not_shared


@dataclass(frozen=True, slots=True)
class SymmetricBlock:
    """One allocation of the same size on every rank.

    `local`: this rank's instance, uint8, not yet zeroed. `peers`: every rank's instance, for streams. `bases`: their
    addresses as kernels see them, 0 where none reaches. `release`: gives the memory back; collective.
    """

    local: torch.Tensor
    peers: tuple[torch.Tensor, ...]
    bases: tuple[int, ...]
    release: Callable[[], None]


class Arena:
    """One symmetric allocation: the same number of bytes on every rank, zeroed.

    `local`: uint8 tensor of this rank's instance. `context`: int64 tensor on the device, `[my_pe, n_pes, base address
    of the arena on pe 0, on pe 1, …, number of pe 0, of pe 1, … among all ranks]`, which device functions take as
    their last argument. `number`: from 1, of memory of `tilelink.empty`; 0 of other memory.

    Args:
        block: zeroed on every rank.
        rank: this rank, which is its PE.
        numbers: those by which a device library knows the ranks.
        settle: collective; called once before the memory is given back, and returns when no rank uses it any more.
    """

    def __init__(
        self, block: SymmetricBlock, rank: int, numbers: Sequence[int], settle: Callable[[Arena], None]
    ) -> None:
        self.local = block.local
        self.number = 0
        context = [rank, len(block.bases), *block.bases, *numbers]
        self.context = torch.tensor(context, dtype=torch.int64, device=block.local.device)
        self._rank, self._ranks = rank, len(block.bases)
        self._lines: dict[tuple[int, ...], torch.Tensor] = {}
        self._peers = block.peers
        self._release: Callable[[], None] | None = block.release
        self._settle = settle

    def along(self, line: tuple[int, ...]) -> torch.Tensor:
        """The context for some of the ranks, this one among them: the same tensor each time."""
        if line not in self._lines:
            self._lines[line] = context_along(self.context, self._ranks, line, self._rank)
        return self._lines[line]

    def peer(self, pe: int) -> torch.Tensor:
        """The instance of rank `pe` as a uint8 tensor that streams can copy to and from, until `free`."""
        return self._peers[pe]

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the first byte of a tensor lies here."""
        return 0 <= tensor.data_ptr() - self.local.data_ptr() < self.local.numel()

    def instance(self, tensor: torch.Tensor, pe: int) -> torch.Tensor:
        """Rank `pe`'s instance of a contiguous tensor that lies here: flat, in its dtype."""
        start = tensor.data_ptr() - self.local.data_ptr()
        return self._peers[pe][start : start + tensor.numel() * tensor.element_size()].view(tensor.dtype)

    def free(self) -> None:
        """Collective. Tensors made of the arena are dangling afterwards; to free again does nothing."""
        release, self._release = self._release, None
        if release is None:
            return
        self._settle(self)
        self._peers = ()
        self.context = self.local = torch.empty(0, dtype=torch.uint8, device=self.context.device)
        release()


class Arenas:
    """The arenas of one rank that are not freed, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._arenas: list[Arena] = []
        self.emptied = 0
        """How many have been taken for `tilelink.empty`; most programs take none."""

    def add(self, arena: Arena) -> None:
        start = arena.local.data_ptr()
        at = bisect.bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._arenas.insert(at, arena)

    def remove(self, arena: Arena) -> None:
        at = self._arenas.index(arena)
        del self._starts[at], self._arenas[at]

    def find(self, tensor: torch.Tensor) -> Arena | None:
        """The arena that the tensor lies in, if one does."""
        at = bisect.bisect_right(self._starts, tensor.data_ptr()) - 1
        return self._arenas[at] if at >= 0 and self._arenas[at].holds(tensor) else None

    def holding(self, tensor: torch.Tensor) -> Arena:
        """The same.

        Raises:
            TilelinkError: TL439, it lies in none.
        """
        found = self.find(tensor)
        if found is None:
            raise not_shared(tensor)
        return found

    def place(self, tensor: torch.Tensor) -> Place | None:
        """Where in memory of `tilelink.empty` the tensor begins; None: elsewhere. Without elements it begins nowhere."""
        found = self.find(tensor)
        if found is None or not found.number:
            return None
        return found.number, tensor.data_ptr() - found.local.data_ptr()
