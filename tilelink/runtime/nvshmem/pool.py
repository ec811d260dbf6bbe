"""Symmetric memory for some of the ranks only.

NVSHMEM's own allocation is collective over all PEs. So all of them set one block aside, and a group takes pieces of it
that are free on each of its members; other groups may use the same addresses on other PEs at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilelink.errors import TilelinkError
from tilelink.runtime.nvshmem.remote import RemoteRanges
from tilelink.runtime.peer.heap import SymmetricBlock

Gap = tuple[int, int]
"""First byte, and the byte after the last."""
_ALIGN = 512


class Pool:
    """One block on every PE, and which of its bytes are free on this one."""

    def __init__(self, block: SymmetricBlock) -> None:
        self.block = block
        self.gaps: list[Gap] = [(0, block.local.numel())]

    def take(self, first: int, last: int) -> None:
        """Bytes `first` to before `last`, which lie in one gap, are in use from now on."""
        low, high = next(g for g in self.gaps if g[0] <= first and last <= g[1])
        self.gaps.remove((low, high))
        self.gaps = sorted([*self.gaps, *(g for g in ((low, first), (last, high)) if g[0] < g[1])])

    def give(self, first: int, last: int) -> None:
        """They are free again."""
        joined: list[Gap] = []
        for low, high in sorted([*self.gaps, (first, last)]):
            if joined and joined[-1][1] == low:
                joined[-1] = (joined[-1][0], high)
            else:
                joined.append((low, high))
        self.gaps = joined


def first_fit(gaps: Sequence[Sequence[Gap]], nbytes: int) -> int | None:
    """The lowest place where `nbytes` bytes are free for everybody; `gaps` are those of each member, sorted."""
    starts = sorted({low for each in gaps for low, _ in each})
    return next((s for s in starts if all(_free(each, s, s + nbytes) for each in gaps)), None)


def _free(gaps: Sequence[Gap], first: int, last: int) -> bool:
    return any(low <= first and last <= high for low, high in gaps)


class PoolHeap:
    """The heap of one group.

    Args:
        members: its PEs.
        agree: every member's value, by rank; collective over the group.
    """

    def __init__(
        self, pool: Pool, members: Sequence[int], agree: Callable[[Any], list[Any]], remote: RemoteRanges
    ) -> None:
        self.remote = remote
        self._pool = pool
        self._members = members
        self._agree = agree

    def allocate(self, nbytes: int) -> SymmetricBlock:
        """Collective over the group.

        Raises:
            TilelinkError: TL446, no piece of this size is free on all members.
        """
        size = -(-nbytes // _ALIGN) * _ALIGN
        first = first_fit(self._agree(self._pool.gaps), size)
        if first is None:
            raise TilelinkError(
                "TL446",
                f"the memory of sub-groups has no {nbytes} bytes that are free on PEs {', '.join(map(str, self._members))}",
                why="NVSHMEM allocates on all PEs at once, so sub-groups share what was set aside at the first of them",
                hint="set TILELINK_GROUP_HEAP to more bytes, or close operators that are not used",
            )
        self._pool.take(first, first + size)
        whole = self._pool.block
        instances = {pe: whole.peers[pe][first : first + nbytes] for pe in self._members}
        bases = tuple(whole.bases[pe] and whole.bases[pe] + first for pe in self._members)
        local = whole.local[first : first + nbytes]
        return SymmetricBlock(local, tuple(instances.values()), bases, partial(self._pool.give, first, first + size))

    def reached(self) -> tuple[bool, ...]:
        """For each member, whether pointers of this GPU reach it."""
        return tuple(self._pool.block.bases[pe] != 0 for pe in self._members)
