"""Activations as matrices: operators split the rows of a matrix over the ranks, users an axis of an activation."""

from __future__ import annotations

import math

import torch

from tilelink.errors import TilelinkError


def to_rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    """`[…, features]` as `[rows, features]`, in which the parts that ranks hold of axis `dim` follow one another."""
    rows = x.movedim(dim, 0).flatten(0, -2)
    return rows if rows.stride(-1) == 1 else rows.contiguous()  # copy programs take rows as they lie


def from_rows(y: torch.Tensor, like: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """Rows as an activation again, with the axes of `like` but for that of `dim`, and its own features.

    `length` says how long that axis is where there is no row to tell it by: in an empty batch.
    """
    others = like.movedim(dim, 0).shape[1:-1]
    count = math.prod(others)
    return y.unflatten(0, (y.shape[0] // count if count else length, *others)).movedim(0, dim)


def reshaped(y: torch.Tensor, *shape: int) -> torch.Tensor:
    """A result that nobody else has, in another shape: no view to autograd, which lets no custom step's views be written to."""
    return torch.ops.aten._unsafe_view.default(y, shape)


def total_rows(
    x: torch.Tensor, dim: int, ranks: int, length: int | None = None, *, whole: bool = False, cut: bool = True
) -> int:
    """How many positions all ranks together have along `dim` of an activation: as many as a `whole` one has; where each rank has
    a part, `length`, or as many as here on each. Unless the axis is `cut`, rows of the matrix may be split within a position.

    Raises:
        TilelinkError: TL231, there is no axis `dim` before the features, or positions are not split over the ranks as rows are.
    """
    if x.dim() < 2 or not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise TilelinkError(
            "TL231",
            f"an activation of shape {tuple(x.shape)} has no rows along dim={dim}",
            why="its last axis holds the features, and one of those before is split over the ranks",
            hint="name that axis: dim=-2 for [batch, sequence, features], dim=0 for [sequence, batch, features]",
        )
    total = x.shape[dim] * (1 if whole else ranks) if length is None else length
    alone = all(size == 1 for axis, size in enumerate(x.shape[:-1]) if axis != dim % x.dim())
    if cut and total % ranks and not alone:
        raise TilelinkError(
            "TL231",
            f"{total} positions of an activation of shape {tuple(x.shape)} are not split evenly over {ranks} ranks",
            why="a matrix is split by its rows, ceil(rows / ranks) each, which would cut through a position",
            hint="pad that axis to a multiple of the ranks; a single sequence may be uneven",
        )
    return total
