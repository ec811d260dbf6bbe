"""The geometry of a strided copy: tensors -> pieces that one driver call each can move."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch

from tilelink.errors import TilelinkError
from tilelink.runtime.work import merged

_LARGEST_PITCH = 2**31 - 1
"""What `cuMemcpy2DAsync` takes on every device."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`rows` rows of `width` bytes; all fields are in bytes but `rows`, offsets count from the tensors' first bytes.

    With one row the pitches mean nothing and equal `width`.
    """

    target: int
    source: int
    width: int
    rows: int
    target_pitch: int
    source_pitch: int


def pieces(target: torch.Tensor, source: torch.Tensor) -> tuple[Piece, ...]:
    """Pieces that together copy `source` to `target`, both with rows (the last axis) contiguous; none if empty.

    Raises:
        TilelinkError: TL423, shapes or dtypes differ, or rows are not contiguous.
    """
    if target.shape != source.shape or target.dtype != source.dtype:
        raise _refused(target, source, "shapes and dtypes must agree")
    found = _pieces(tuple(target.shape), target.stride(), source.stride(), target.element_size())
    if found is None:
        raise _refused(target, source, "a copy engine moves rows whose elements follow one another")
    return found


@functools.lru_cache(maxsize=4096)
def _pieces(
    shape: tuple[int, ...], target: tuple[int, ...], source: tuple[int, ...], item: int
) -> tuple[Piece, ...] | None:
    if 0 in shape:
        return ()
    axes = merged(axis for axis in zip(shape, target, source, strict=True) if axis[0] != 1)
    width = item
    if axes and axes[-1][1:] == (1, 1):
        width = axes.pop()[0] * item
    elif axes and shape[-1] != 1:
        return None
    rows, target_pitch, source_pitch = 1, width, width
    if axes and all(width <= stride * item <= _LARGEST_PITCH for stride in axes[-1][1:]):
        rows, target_step, source_step = axes.pop()
        target_pitch, source_pitch = target_step * item, source_step * item
    starts = itertools.product(*(range(size) for size, _, _ in axes))
    return tuple(
        Piece(
            sum(i * axis[1] for i, axis in zip(at, axes, strict=True)) * item,
            sum(i * axis[2] for i, axis in zip(at, axes, strict=True)) * item,
            width,
            rows,
            target_pitch,
            source_pitch,
        )
        for at in starts
    )


def _refused(target: torch.Tensor, source: torch.Tensor, why: str) -> TilelinkError:
    return TilelinkError(
        "TL423",
        f"no copy engine copies {_layout(source)} to {_layout(target)}",
        why=why,
        hint="pass tensors of one shape and dtype whose last axis is contiguous",
    )


def _layout(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
