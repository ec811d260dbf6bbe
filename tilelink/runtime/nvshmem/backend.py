"""The `nvshmem` backend: its memory, for all ranks and for some of them, and copies across the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Self

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.runtime import environment
from tilelink.runtime.backend import Backend, Call, Copy, Step, View, Work, ends_of
from tilelink.runtime.memory import Arena
from tilelink.runtime.nvshmem import library
from tilelink.runtime.peer.backend import GpuBackend
from tilelink.runtime.peer.steps import handle_of
from tilelink.runtime.peer.streams import Launcher, pieces

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

    block: Arena
    used: set[Span] = field(default_factory=set[Span])

    def take(self, nbytes: int, backend: Backend) -> Arena:
        """A piece for the ranks of a backend, and collective over them. Raises TL446, none of this size is free on all of
        them."""
        size, whole, members = -(-nbytes // _ALIGN) * _ALIGN, self.block, backend.numbers
        first = first_fit(set[Span]().union(*backend.agree(self.used)), size, whole.local.numel())
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
        return Arena(backend, local, peers, bases, partial(self.used.remove, piece))


class NvshmemBackend(GpuBackend):
    """GPUs that reach one another through NVSHMEM. Raises TL432, TL433, TL435 as for every backend on GPUs, TL440 to TL442
    NVSHMEM is missing or in use.

    Args:
        group: one process per GPU, the same for all backends of the process; None for all of them.
        reach: `network` to use the network calls even between GPUs that pointers reach; None to find out.

    Kernels that call the device library are linked with it, which takes seconds each; others are compiled as ever.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, reach: Literal["network"] | None = None) -> None:
        super().__init__(group, "nvshmem")
        library.start(self.rank, self.ranks, self.device, self.agree)
        self.numbers = tuple(range(self.ranks))
        self._by_pointer = reach != "network"
        self._pools: list[Pool] = []
        """That of all sub-groups, once there is one."""
        trial = self._of_all(16)
        trial.release()
        self._reached: list[tuple[bool, ...]] = self.agree(tuple(base != 0 for base in trial.bases))
        self.topology = replace(self.topology, reach=reach or self._reach_among(self.numbers))
        whole_library = library.device_bitcode(self.topology.device.capability)
        extern = {library.EXTERN_LIBRARY: str(library.called(whole_library))}
        room = self.topology.device.shared_bytes
        self.launcher = Launcher(self.device, {"extern_libs": extern}, library.prepare, room)

    def step(self, work: Work, stream: int, first: Call) -> Step:
        """As on all GPUs, but for copies across the network, which are NVSHMEM's."""
        if isinstance(work, Copy):
            to, start = self._across(work.target), self._across(work.source)
            if to is not None or start is not None:
                return _across_network(work, to, start, handle_of(stream, first))
        return super().step(work, stream, first)

    def _across(self, view: View) -> int | None:
        """The PE whose memory it is, if no pointer reaches it."""
        if view.pe is None or self._reached[self.numbers[self.rank]][self.numbers[view.pe]]:
            return None
        return self.numbers[view.pe]

    def _reach_among(self, ranks: Sequence[int]) -> str:
        pes = [self.numbers[r] for r in ranks]
        return "peer" if all(self._reached[a][b] for a in pes for b in pes) else "network"

    def _part(self, ranks: Sequence[int]) -> Self:
        if not self._pools:  # now, when all ranks make their first groups, and not when some take memory there
            self._pools.append(Pool(self._of_all(environment.group_heap())))
        return super()._part(ranks)

    def _take(self, nbytes: int) -> Arena:
        """Raises those of `_of_all`, and for some of the ranks of `Pool.take`."""
        return self._of_all(nbytes) if self.ranks == len(self._reached) else self._pools[0].take(nbytes, self)

    def _of_all(self, nbytes: int) -> Arena:
        """Memory of all PEs. Collective. Raises TL444, NVSHMEM has no memory left."""
        nvshmem = library.module("core")
        try:
            local = nvshmem.tensor((nbytes,), dtype=torch.uint8, except_on_del=False)
        except (nvshmem.NvshmemError, nvshmem.NvshmemInvalid) as error:
            raise TilelinkError(
                "TL444",
                f"NVSHMEM gives no {nbytes} bytes: {error}",
                why="the symmetric heap is limited by the free memory of the fullest GPU",
                hint="free arenas, or give PyTorch's allocator less (torch.cuda.empty_cache())",
            ) from error
        bases, peers = zip(*(self._instance(local, pe) for pe in range(self.ranks)), strict=True)
        return Arena(self, local, peers, bases, partial(nvshmem.free_tensor, local))

    def _instance(self, local: torch.Tensor, pe: int) -> tuple[int, torch.Tensor]:
        """Its base, as an `Arena` has it, and what streams take for it."""
        # get_peer_tensor of the own PE would count as a second user of the block, which free would then keep.
        if pe == self.rank:
            return local.data_ptr(), local
        base: int = library.module("bindings").ptr(local.data_ptr(), pe) if self._by_pointer else 0
        return base, library.module("core").get_peer_tensor(local, pe) if base else local


def _across_network(work: Copy, to: int | None, start: int | None, handle: Callable[[Call], int]) -> Step:
    """A copy of which one side, not both, is a rank across the network; `to`, `start`: the PE of either side, if it is.

    The other side lies in the arena, because the network adapter reads and writes registered memory only. Later copies on
    the stream arrive after this one. Raises TL445, both sides are across the network.
    """
    if to is not None and start is not None:
        raise TilelinkError(
            "TL445",
            "a copy between two ranks of the network cannot be made from here",
            why="a rank puts its own memory or gets into it",
            hint="copy on one of the two ranks",
        )
    nvshmem = library.module("bindings")
    pe, move = (to, nvshmem.putmem_on_stream) if start is None else (start, nvshmem.getmem_on_stream)

    def copy(call: Call) -> None:
        (target, source), stream = ends_of(work, call), handle(call)
        for part in pieces(target, source):
            for row in range(part.rows):
                there = target.data_ptr() + part.target + row * part.target_pitch
                move(there, source.data_ptr() + part.source + row * part.source_pitch, part.width, pe, stream)
        if to is not None:
            # Puts may overtake one another, and a signal is one too.
            nvshmem.quiet_on_stream(stream)

    return copy
