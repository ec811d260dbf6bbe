"""Strided copies, cut into pieces for a copy engine."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.selection import table
from tilelink.errors import TilelinkError
from tilelink.runtime.peer.streams import Piece, pieces


def perform(target: torch.Tensor, source: torch.Tensor) -> None:
    """What the copy engine does with the pieces, on the bytes of CPU memory."""
    to, start = as_bytes(target), as_bytes(source)
    for piece in pieces(target, source):
        for row in range(piece.rows):
            at, begin = piece.target + row * piece.target_pitch, piece.source + row * piece.source_pitch
            to[at : at + piece.width] = start[begin : begin + piece.width]


def as_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The bytes from the tensor's first to its storage's last."""
    storage = tensor.untyped_storage()
    everything = torch.empty(0, dtype=torch.uint8).set_(storage)  # pyright: ignore[reportArgumentType]
    return everything.numpy()[tensor.storage_offset() * tensor.element_size() :]


@st.composite
def views(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of one shape, each within a larger tensor of its own."""
    shape = draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
    return view(draw, shape, 0), view(draw, shape, 1000)


def view(draw: st.DrawFn, shape: list[int], start: int) -> torch.Tensor:
    margins = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape]
    outer = [size + before + after for size, (before, after) in zip(shape, margins, strict=True)]
    order = draw(st.permutations(range(len(shape)))) if shape else []
    tensor = torch.arange(start, start + math.prod(outer), dtype=torch.int16)
    tensor = tensor.view([outer[axis] for axis in order]) if order else tensor[0]
    tensor = tensor.permute([order.index(axis) for axis in range(len(order))]) if order else tensor
    for axis, (size, (before, _)) in enumerate(zip(shape, margins, strict=True)):
        tensor = tensor.narrow(axis, before, size)
    return tensor


@given(views())
def test_pieces_copy_everything_and_nothing_else(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    target, source = pair
    before = as_bytes(target).copy()
    wanted = target.clone()
    wanted.copy_(source)
    perform(target, source)
    assert torch.equal(target, wanted)
    target.zero_()
    changed = as_bytes(target).copy()
    outside = changed != 0
    assert np.array_equal(changed[outside], before[outside])


def test_a_contiguous_copy_is_one_piece() -> None:
    tensor = torch.zeros(3, 4, 5, dtype=torch.float32)
    assert pieces(tensor, tensor) == (Piece(0, 0, 240, 1, 240, 240),)


def test_rows_are_one_piece() -> None:
    wide, narrow = torch.zeros(8, 64, dtype=torch.float16), torch.zeros(8, 16, dtype=torch.float16)
    assert pieces(narrow, wide[:, 16:32]) == (Piece(0, 0, 32, 8, 32, 128),)


def test_two_outer_axes_are_pieces_of_rows() -> None:
    wide, narrow = torch.zeros(2, 8, 64, dtype=torch.uint8), torch.zeros(2, 4, 16, dtype=torch.uint8)
    found = pieces(narrow, wide[:, :4, :16])
    assert found == (Piece(0, 0, 16, 4, 16, 64), Piece(64, 512, 16, 4, 16, 64))


def test_repeated_rows_and_far_rows_go_one_by_one() -> None:
    target, row = torch.zeros(3, 16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)
    assert [piece.rows for piece in pieces(target, row.expand(3, 16))] == [1, 1, 1]
    far = torch.empty(3, 2**31, dtype=torch.uint8, device="meta")
    assert [piece.source for piece in pieces(target, far[:, :16])] == [0, 2**31, 2**32]


def test_elements_that_lie_apart_are_rows() -> None:
    square = torch.zeros(4, 4, dtype=torch.uint8)
    assert pieces(square[:, 0], square[0]) == (Piece(0, 0, 1, 4, 4, 1),)


def test_a_scalar_and_nothing() -> None:
    assert pieces(torch.zeros(()), torch.zeros(())) == (Piece(0, 0, 4, 1, 4, 4),)
    assert pieces(torch.zeros(0, 4), torch.zeros(0, 4)) == ()


@table(
    "target, source",
    [
        (torch.zeros(4), torch.zeros(5)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
    ],
)
def test_refusals(target: torch.Tensor, source: torch.Tensor) -> None:
    with pytest.raises(TilelinkError, match="TL423"):
        pieces(target, source)
