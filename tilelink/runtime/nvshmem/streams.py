"""CUDA streams whose copies also cross the network."""

from __future__ import annotations

import torch

from tilelink.errors import TilelinkError
from tilelink.runtime.nvshmem import library
from tilelink.runtime.nvshmem.remote import RemoteRanges
from tilelink.runtime.peer.launch import Launcher
from tilelink.runtime.peer.pieces import Piece, pieces
from tilelink.runtime.peer.streams import CudaStream


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
