# pyright: reportArgumentType=false, reportUnknownMemberType=false
"""What emitted kernels do to blocks of values, through tile programs that call it."""

from __future__ import annotations

from typing import Any

import torch

import tilelink
import tilelink.language as tl
from tests.operators.problems import alone
from tests.selection import table
from tilelink.device import blocks


@tilelink.program("8 i32, p i32 -> p i32, p i32")
def number(pieces: Any, like: Any, segment: Any, piece: Any, *, each: int) -> None:
    """Which piece of which segment each tile is."""
    p = tl.tile_id(segment)
    s, k = blocks.across(tl.tile_load(pieces), p, each)
    tl.tile_store(segment, p, s)
    tl.tile_store(piece, p, k)


@tilelink.program("g P i32 -> g i32")
def mark(numbers: Any, bits: Any) -> None:
    """A bit for each number that there is."""
    g = tl.tile_id(bits)
    tl.tile_store(bits, g, blocks.members(tl.ravel(tl.tile_load(numbers, g, other=-1)), 32))


@table("each", [1, 2, 3])
@table("pieces", [[3, 0, 1, 2], [1], [0, 0, 4, 7], [2, 2, 2, 2, 2]])
def test_the_first_pieces_of_all_segments_come_first(pieces: list[int], each: int) -> None:
    tiles = [(segment, piece) for segment, n in enumerate(pieces) for piece in range(n)]
    want = sorted(tiles, key=lambda tile: tile[1] // each)
    given = torch.tensor(pieces + [0] * (8 - len(pieces)), dtype=torch.int32)
    ((segment, piece),) = alone(number)([given], [torch.zeros(sum(pieces), dtype=torch.int32)], each=each)
    assert list(zip(segment.tolist(), piece.tolist(), strict=True)) == want


def test_a_bit_for_each_number_that_there_is() -> None:
    numbers = torch.tensor([[0, 31, 4, 4], [-1, -1, -1, -1], [7, -1, 0, 32]], dtype=torch.int32)
    (marked,) = alone(mark)([numbers])
    assert [bits % 2**32 for bits in marked.tolist()] == [1 | 1 << 4 | 1 << 31, 0, 1 | 1 << 7]
