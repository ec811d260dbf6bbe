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


def total_rows(x: torch.Tensor, dim: int, ranks: int, length: int | None, *, cut: bool = True) -> int:
    """How many positions all ranks together have along `dim` of an activation of which each has a part: `length`, or as
    many as here on each. Unless the axis is `cut`, rows of the matrix need not be split where positions are.

    Raises:
        TilelinkError: TL231.
    """
    require_axis(x, dim)
    total = x.shape[dim] * ranks if length is None else length
    if cut:
        require_whole_positions(x, dim, total, ranks)
    return total


def require_axis(x: torch.Tensor, dim: int) -> None:
    """Raises TL231 where an activation has no axis `dim` before its features."""
    if x.dim() < 2 or not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise TilelinkError(
            "TL231",
            f"an activation of shape {tuple(x.shape)} has no rows along dim={dim}",
            why="its last axis holds the features, and one of those before is split over the ranks",
            hint="name that axis: dim=-2 for [batch, sequence, features], dim=0 for [sequence, batch, features]",
        )


def require_whole_positions(x: torch.Tensor, dim: int, total: int, ranks: int) -> None:
    """Raises TL231 where `total` positions along `dim` are not split over the ranks as rows of the matrix are."""
    where = dim % x.dim()
    alone = all(length == 1 for at, length in enumerate(x.shape[:-1]) if at != where)
    if total % ranks and not alone:
        raise TilelinkError(
            "TL231",
            f"{total} positions of an activation of shape {tuple(x.shape)} are not split evenly over {ranks} ranks",
            why="a matrix is split by its rows, ceil(rows / ranks) each, which would cut through a position",
            hint="pad that axis to a multiple of the ranks; a single sequence may be uneven",
        )
