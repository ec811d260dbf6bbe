"""A linear layer of which each rank has a part of the weight: products with the communication that they hide."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tilelink.nn import functional as F
from tilelink.nn.local import Whole, local, own
from tilelink.nn.operators import autocast
from tilelink.nn.rows import from_rows, require_axis, require_whole_positions, to_rows, total_rows


class _Linear(torch.autograd.Function):
    """`x @ weight.T` of every rank's own `weight`, in which all of the layer is one step of autograd.

    `weight`, `[out, in]`, may be a parameter that is a DTensor. `summed`: results are added up over the ranks (GEMM+AR); else
    the gradients of `x` are.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: str, summed: bool) -> torch.Tensor:
        ctx.group, ctx.summed, ctx.whole = group, summed, Whole(weight)
        ctx.save_for_backward(x, weight)
        return _product(x, ctx.whole.part, group, summed)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, mine = ctx.saved_tensors[0], own(ctx.saved_tensors[1])
        rows, columns, weight = _rows(F.alike(grad, ctx.group) if ctx.summed else grad), None, None
        if ctx.needs_input_grad[0]:
            columns = rows @ mine if ctx.summed else F.gemm_ar(rows.contiguous(), mine, group=ctx.group)
            columns = columns.view(x.shape)
        if ctx.needs_input_grad[1]:
            weight = ctx.whole.gradient(rows.t() @ _rows(x if ctx.summed else F.alike(x, ctx.group)))
        return columns, weight, None, None


def _product(x: torch.Tensor, weight: torch.Tensor, group: str, summed: bool) -> torch.Tensor:
    if not summed:
        return nn.functional.linear(x, weight)
    return F.gemm_ar(_rows(x), weight.t(), group=group).view(*x.shape[:-1], weight.shape[0])


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`[…, features]`, perhaps of one row, as a matrix."""
    return torch.atleast_2d(x).flatten(0, -2)


def _linear(x: torch.Tensor, weight: torch.Tensor, group: str, summed: bool) -> torch.Tensor:
    if torch.compiler.is_compiling():
        weight = local(weight)
    x, weight = autocast((x, weight), (True, True))
    if not torch.is_grad_enabled():
        return _product(x, own(weight), group, summed)
    return _Linear.apply(x, weight, group, summed)  # pyright: ignore[reportReturnType]


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
    y = F.ag_gemm(to_rows(x, dim), own(weight).t(), group=group, M=length)
    return from_rows(_plus(y, bias), x, dim, total)


def replicated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, group: str) -> torch.Tensor:
    """Every rank has all of `x`, `[…, in]`; `weight`, `[out/R, in]`, has some output features."""
    return _plus(_linear(x, weight, group, summed=False), bias)


def scattered(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dim: int, *, group: str, ranks: int
) -> torch.Tensor:
    """GEMM+RS: `weight`, `[out, in/R]`, has some input features; sums go to the ranks of their positions along `dim`."""
    require_axis(x, dim)
    require_whole_positions(x, dim, x.shape[dim], ranks)
    y = F.gemm_rs(to_rows(x, dim), own(weight).t(), group=group)
    y = _plus(y, None if bias is None else F.replicated(own(bias), group=group))
    return from_rows(y, x, dim, x.shape[dim] // ranks)


def summed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, group: str) -> torch.Tensor:
    """GEMM+AR: `weight`, `[out, in/R]`, has some input features; every rank gets all sums."""
    return _plus(_linear(x, weight, group, summed=True), bias)


def _plus(y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return y if bias is None else y + own(bias).to(y.dtype)
