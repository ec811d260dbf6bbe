"""The library's operators as functions of torch, with gradients: each is another one's dual.

What is split over the ranks has a gradient that is split the same way, and every rank's loss counts: the gradient of a sum
over ranks is a sum over ranks. Gathered rows are not kept for the backward pass: it gathers them again, behind the product
that needs them, so that a layer keeps its own rows only (arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from typing import Any

import torch

from tilelink import ops
from tilelink.nn.operators import Call, register


def _of_gathered(call: Call, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """AG+GEMM: the rows' gradient is GEMM+RS, the weight's a product over all rows, gathered again."""
    x, weight = call.tensors
    rows = gemm_rs(grad, weight.t(), group=call.group) if call.wanted[0] else None
    if not call.wanted[1]:
        return rows, None
    if _turned(weight):
        return rows, outer_ag(grad, x, group=call.group, **call.given).t()
    return rows, ag_outer(x, grad, group=call.group, **call.given)


def _of_scattered(call: Call, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """GEMM+RS: the rows' gradient is AG+GEMM, the weight's a product with the gathered gradient."""
    x, weight = call.tensors
    rows = x.shape[0]
    columns = ag_gemm(grad, weight.t(), group=call.group, M=rows) if call.wanted[0] else None
    if not call.wanted[1]:
        return columns, None
    if _turned(weight):
        return columns, ag_outer(grad, x, group=call.group, M=rows).t()
    return columns, outer_ag(x, grad, group=call.group, M=rows)


def _turned(weight: torch.Tensor) -> bool:
    """Whether it is the transposed view of a matrix, as a `Linear`'s: then so is its gradient, and nothing is copied."""
    return weight.stride(0) == 1 and weight.stride(1) != 1


def _of_summed(call: Call, grad: torch.Tensor) -> tuple[torch.Tensor]:
    """All-reduce: every rank's result depends on every rank's argument."""
    return (all_reduce(grad, group=call.group),)


def replicated(x: torch.Tensor, *, group: str = "") -> torch.Tensor:
    """A parameter that all ranks hold alike and use on different rows: itself, and its gradient is summed over the ranks.

    Args:
        x: of any shape, the same on all ranks.
        group: their name (`tilelink.nn.group_name`); "" for all.
    """
    return _replicated(x, group)


@torch.library.custom_op("tilelink::replicated", mutates_args=())
def _replicated(x: torch.Tensor, group: str) -> torch.Tensor:
    del group
    return x.clone()


@_replicated.register_fake
def _(x: torch.Tensor, group: str) -> torch.Tensor:
    del group
    return torch.empty_like(x)


def _keep_group(ctx: Any, inputs: tuple[torch.Tensor, str], output: torch.Tensor) -> None:
    del output
    ctx.group = inputs[1]


def _sum_gradient(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    # Rows are what an all-reduce splits among the ranks.
    rows = grad.reshape(grad.shape[0] if grad.dim() > 1 else 1, -1)
    return all_reduce(rows, group=ctx.group).reshape(grad.shape), None


_replicated.register_autograd(_sum_gradient, setup_context=_keep_group)

ag_outer = register(ops.ag_outer)
outer_ag = register(ops.outer_ag)
ag_gemm = register(ops.ag_gemm, backward=_of_gathered)
gemm_rs = register(ops.gemm_rs, backward=_of_scattered)
all_reduce = register(ops.all_reduce, backward=_of_summed)
