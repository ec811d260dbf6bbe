# pyright: reportArgumentType=false, reportUnknownMemberType=false
"""What emitted kernels do to blocks of values, through tile programs that call it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tilelink.device import blocks


@tilelink.program("e i32, p i32 -> p i32, p i32")
def number(pieces: Any, like: Any, segment: Any, piece: Any, *, each: int) -> None:
    """Which piece of which segment each tile is."""
    p = tl.tile_id(segment)
    s, k = blocks.across(tl.tile_load(pieces), p, each)
    tl.tile_store(segment, p, s)
    tl.tile_store(piece, p, k)


@tilelink.operator("e i32, p i32 -> p i32, p i32")
def numbered(pieces: Any, like: Any, *, each: int) -> Any:
    return number(pieces, like, each=each)


@tilelink.program("g P i32 -> g i32")
def mark(numbers: Any, bits: Any) -> None:
    """A bit for each number that there is."""
    g = tl.tile_id(bits)
    tl.tile_store(bits, g, blocks.members(tl.ravel(tl.tile_load(numbers, g)), 32))


@tilelink.operator("g P i32 -> g i32")
def marked(numbers: Any) -> Any:
    return mark(numbers)


@tilelink.program("e i32, p i32 -> p i32, p i32")
def number_in_ring(sizes: Any, like: Any, segment: Any, piece: Any, *, step: int, ranks: int) -> None:
    p = tl.tile_id(segment)
    s, k = blocks.across_ring(tl.tile_load(sizes), p, step, ranks)
    tl.tile_store(segment, p, s)
    tl.tile_store(piece, p, k)


@tilelink.operator("e i32, p i32 -> p i32, p i32")
def numbered_in_ring(sizes: Any, like: Any, *, step: int, ranks: int) -> Any:
    return number_in_ring(sizes, like, step=step, ranks=ranks)


@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("pieces", [[3, 0, 1, 2], [1], [0, 0, 4, 7], [2, 2, 2, 2, 2]])
def test_the_first_pieces_of_all_segments_come_first(pieces: list[int], each: int) -> None:
    tiles = [(segment, piece) for segment, n in enumerate(pieces) for piece in range(n)]
    want = sorted(tiles, key=lambda tile: tile[1] // each)

    def main() -> None:
        like = torch.zeros(sum(pieces), dtype=torch.int32)
        segment, piece = numbered(torch.tensor(pieces, dtype=torch.int32), like, each=each)
        assert list(zip(segment.tolist(), piece.tolist(), strict=True)) == want

    tilelink.launch(main, 1)


@pytest.mark.parametrize(("sizes", "ranks"), [([64, 0, 17, 31], 4), ([70, 71], 3), ([40, 1, 1], 1), ([3] * 5, 8)])
def test_pieces_that_more_ranks_must_bring_come_later(sizes: list[int], ranks: int) -> None:
    """A piece comes in the round of the rank that completes it, even if each brings a quarter of a piece less."""
    step = 8

    def turn(segment: int, piece: int) -> int:
        whole = (t for t in range(1, ranks) if sizes[segment] * t // ranks - step // 4 >= (piece + 1) * step)
        return next(whole, ranks)

    tiles = [(e, k) for e, n in enumerate(sizes) for k in range(-(-n // step))]
    want = sorted(tiles, key=lambda tile: turn(*tile))

    def main() -> None:
        like = torch.zeros(len(tiles), dtype=torch.int32)
        segment, piece = numbered_in_ring(torch.tensor(sizes, dtype=torch.int32), like, step=step, ranks=ranks)
        assert list(zip(segment.tolist(), piece.tolist(), strict=True)) == want

    tilelink.launch(main, 1)


def test_a_bit_for_each_number_that_there_is() -> None:
    numbers = torch.tensor([[0, 31, 4, 4], [-1, -1, -1, -1], [7, -1, 0, 32]], dtype=torch.int32)

    def main() -> None:
        assert [bits % 2**32 for bits in marked(numbers).tolist()] == [1 | 1 << 4 | 1 << 31, 0, 1 | 1 << 7]

    tilelink.launch(main, 1)
