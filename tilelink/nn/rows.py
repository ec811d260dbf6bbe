"""Activations as matrices: operators split the rows of a matrix over the ranks, users an axis of an activation."""

from __future__ import annotations

import math

import torch

from tilelink.errors import TilelinkError


def to_rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    """`[…, features]` as `[rows, features]`, in which the parts that ranks hold of axis `dim` follow one another."""
    return x.movedim(dim, 0).flatten(0, -2)


def from_rows(y: torch.Tensor, like: torch.Tensor, dim: int) -> torch.Tensor:
    """Rows as an activation again, with the axes of `like` but for the length of `dim`, and its own features."""
    others = like.movedim(dim, 0).shape[1:-1]
    return y.unflatten(0, (y.shape[0] // max(math.prod(others), 1), *others)).movedim(0, dim)


def check_rows(x: torch.Tensor, dim: int, total: int, ranks: int, *, cut: bool = True) -> None:
    """Whether `total` positions along `dim` are split over the ranks where rows of the matrix are; unless it is `cut`
    only whether there is such an axis.

    Raises:
        TilelinkError: TL231.
    """
    where = dim % x.dim()
    alone = all(length == 1 for at, length in enumerate(x.shape[:-1]) if at != where)
    if x.dim() < 2 or where == x.dim() - 1:
        raise TilelinkError(
            "TL231",
            f"an activation of shape {tuple(x.shape)} has no rows along dim={dim}",
            why="its last axis holds the features, and one of those before is split over the ranks",
            hint="name that axis: dim=-2 for [batch, sequence, features], dim=0 for [sequence, batch, features]",
        )
    if cut and total % ranks and not alone:
        raise TilelinkError(
            "TL231",
            f"{total} positions of an activation of shape {tuple(x.shape)} are not split evenly over {ranks} ranks",
            why="a matrix is split by its rows, ceil(rows / ranks) each, which would cut through a position",
            hint="pad that axis to a multiple of the ranks; a single sequence may be uneven",
        )
