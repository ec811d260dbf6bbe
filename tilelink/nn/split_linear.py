"""A linear layer of which each rank has a part of the weight: products with the communication that they hide."""

from __future__ import annotations

import torch

from tilelink.nn import functional as F
from tilelink.nn.rows import from_rows, require_axis, require_whole_positions, to_rows, total_rows


def gathered(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dim: int,
    *,
    group: str,
    ranks: int,
    length: int | None = None,
) -> torch.Tensor:
    """AG+GEMM: `x`, `[…, S/R, …, in]`, is gathered along `dim`; `weight`, `[out/R, in]`, has some output features."""
    total = total_rows(x, dim, ranks, length)
    y = F.ag_gemm(to_rows(x, dim), weight.t(), group=group, M=length)
    return from_rows(_plus(y, bias), x, dim, total)


def replicated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, group: str) -> torch.Tensor:
    """Every rank has all of `x`, `[…, in]`; `weight`, `[out/R, in]`, has some output features."""
    return _plus(F.mm_replicated(x, weight.t(), group=group), bias)


def scattered(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dim: int, *, group: str, ranks: int
) -> torch.Tensor:
    """GEMM+RS: `weight`, `[out, in/R]`, has some input features; sums go to the ranks of their positions along `dim`."""
    require_axis(x, dim)
    require_whole_positions(x, dim, x.shape[dim], ranks)
    y = F.gemm_rs(to_rows(x, dim), weight.t(), group=group)
    y = _plus(y, None if bias is None else F.replicated(bias, group=group))
    return from_rows(y, x, dim, x.shape[dim] // ranks)


def summed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, group: str) -> torch.Tensor:
    """GEMM+AR: `weight`, `[out, in/R]`, has some input features; every rank gets all sums."""
    y = F.gemm_ar(x.flatten(0, -2), weight.t(), group=group).unflatten(0, x.shape[:-1])
    return _plus(y, bias)


def _plus(y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return y if bias is None else y + bias.to(y.dtype)
