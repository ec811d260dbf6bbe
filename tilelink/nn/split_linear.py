"""A linear layer of which each rank has a part of the weight: products with the communication that they hide."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tilelink.nn import functional as F
from tilelink.nn import native
from tilelink.nn.groups import ranks_of
from tilelink.nn.local import Whole, own
from tilelink.nn.operators import autocast
from tilelink.nn.rows import from_rows, reshaped, to_rows, total_rows
from tilelink.torch_ops.dispatch import is_plain, refuse_tangents


class _Layer(Whole):
    """What autograd keeps of a layer, beside its input and its weight.

    `summed`: results are added up over the ranks (GEMM+AR); else the gradients of the input are.
    """

    __slots__ = ("group", "summed")

    def __init__(self, weight: torch.Tensor, group: str, summed: bool) -> None:
        super().__init__(weight)
        self.group, self.summed = group, summed

    def product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """`rows @ weight`, summed over the ranks."""
        return F.gemm_ar(rows, weight, group=self.group)

    def result(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if not self.summed:
            return nn.functional.linear(x, weight)
        y = self.product(_rows(x), weight.t())
        return y if x.dim() == 2 else reshaped(y, *x.shape[:-1], weight.shape[0])

    def gradients(
        self, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, wanted: tuple[bool, ...] = (True, True)
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Of `x` and of the whole weight, by that of the result."""
        columns = whole = None
        mine, rows = own(weight, fresh=True), _rows(F.alike(grad, self.group) if self.summed else grad)
        if wanted[0]:
            columns = rows @ mine if self.summed else self.product(rows.contiguous(), mine)
            columns = columns.view(x.shape)
        if wanted[1]:
            whole = self.gradient(rows.t() @ _rows(x if self.summed else F.alike(x, self.group)))
        return columns, whole


class _Linear(torch.autograd.Function):
    """`x @ weight.T` of every rank's own `weight`, in which all of the layer is one step of autograd.

    `weight`, `[out, in]`, may be a parameter that is a DTensor.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: str, summed: bool) -> torch.Tensor:
        ctx.layer = _Layer(weight, group, summed)
        ctx.save_for_backward(x, weight)
        return ctx.layer.result(x, ctx.layer.part)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return *ctx.layer.gradients(grad, *ctx.saved_tensors, ctx.needs_input_grad), None, None


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`[…, features]`, perhaps of one row, as a matrix."""
    return torch.atleast_2d(x).flatten(0, -2)


def _linear(x: torch.Tensor, weight: torch.Tensor, group: str, summed: bool) -> torch.Tensor:
    if torch.compiler.is_compiling():
        weight = own(weight, fresh=True)
    elif torch.is_grad_enabled() and (compiled := native.steps()) is not None:
        layer = _Layer(weight, group, summed)
        if is_plain((x, layer.part)):
            several = ranks_of(group) > 1
            return compiled.linear(x, weight, layer.part, layer, several and summed, several and not summed)
    x, weight = autocast((x, weight), (True, True))
    refuse_tangents((x, weight))
    if not torch.is_grad_enabled():
        return _Layer(weight, group, summed).result(x, own(weight, fresh=True))
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
    y = F.ag_gemm(to_rows(x, dim), own(weight, fresh=True).t(), group=group, M=length)
    return from_rows(_plus(y, bias), x, dim, total)


def replicated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, group: str) -> torch.Tensor:
    """Every rank has all of `x`, `[…, in]`; `weight`, `[out/R, in]`, has some output features."""
    return _plus(_linear(x, weight, group, summed=False), bias)


def scattered(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dim: int, *, group: str, ranks: int
) -> torch.Tensor:
    """GEMM+RS: `weight`, `[out, in/R]`, has some input features; sums go to the ranks of their positions along `dim`."""
    total = total_rows(x, dim, ranks, whole=True)
    y = F.gemm_rs(to_rows(x, dim), own(weight, fresh=True).t(), group=group)
    y = _plus(y, None if bias is None else F.replicated(own(bias), group=group))
    return from_rows(y, x, dim, total // ranks)


def summed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, group: str) -> torch.Tensor:
    """GEMM+AR: `weight`, `[out, in/R]`, has some input features; every rank gets all sums."""
    return _plus(_linear(x, weight, group, summed=True), bias)


def _plus(y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return y if bias is None else y + own(bias).to(y.dtype)
