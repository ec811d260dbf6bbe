"""Gradients of torch's two fused operators: each is the other one's, so that graphs can trace them.

Every rank's loss counts: the gradient of a sum over ranks is a sum over ranks. Gathered rows are not kept, they are gathered
again. Which gradients are wanted has to be the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import _functional_collectives as collectives

from tilelink.torch_ops.serving import flat


def keep_gathering(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    shard, dim, ctx.group, _, *weights = inputs
    ctx.set_materialize_grads(False)
    ctx.dim = dim % shard.dim()
    ctx.save_for_backward(shard, *weights)


def of_gathering(ctx: Any, gathered: torch.Tensor | None, *products: torch.Tensor | None) -> tuple[Any, ...]:
    """Of `fused_all_gather_matmul`: the shard's is reduced and scattered, the weights' are products over gathered rows."""
    shard, *weights = ctx.saved_tensors
    wanted, _, _, _, *wanted_weights = ctx.wanted
    came = [(k, g) for k, g in enumerate(products) if g is not None]
    own = None
    if wanted and came:
        grads, others = torch.cat([g for _, g in came], -1), torch.cat([weights[k] for k, _ in came], 1)
        own = torch.ops.symm_mem.fused_matmul_reduce_scatter(grads, others.t(), "sum", ctx.dim, ctx.group)
    if wanted and gathered is not None:
        also = collectives.reduce_scatter_tensor(gathered.contiguous(), "sum", ctx.dim, ctx.group)
        own = also if own is None else own + also
    found: list[torch.Tensor | None] = [None for _ in weights]
    asked = [(k, g) for k, g in came if wanted_weights[k]]
    if asked:
        for (k, _), grad in zip(asked, _over_gathered(shard, [g for _, g in asked], ctx.dim, ctx.group), strict=True):
            found[k] = grad
    return own, None, None, None, *found


def keep_scattering(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    whole, weight, ctx.reduce_op, dim, ctx.group = inputs
    ctx.dim = dim % whole.dim()
    ctx.save_for_backward(whole, weight)


def of_scattering(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """Of `fused_matmul_reduce_scatter`: what multiplied is multiplied by the gathered gradient."""
    whole, weight = ctx.saved_tensors
    wanted, wanted_weight, *_ = ctx.wanted
    if ctx.reduce_op == "avg":
        size = weight.shape[1] if ctx.dim == whole.dim() - 1 else whole.shape[ctx.dim]
        grad = grad * (grad.shape[ctx.dim] / size)
    own = others = None
    if wanted:
        gather = torch.ops.symm_mem.fused_all_gather_matmul
        own = gather(grad, [weight.t()], ctx.dim, ctx.group, return_A=False)[1][0]
    if wanted_weight:
        others = _over_gathered(grad, [whole], ctx.dim, ctx.group)[0].t()
    return own, others, None, None, None


def _over_gathered(shard: torch.Tensor, others: Sequence[torch.Tensor], dim: int, group: str) -> Sequence[torch.Tensor]:
    """`gathered.T @ other` for each, over all axes but the last."""
    last = dim == shard.dim() - 1
    rows = flat(shard, dim, last=last).t()
    matrices = [flat(each, dim, last=last) for each in others]
    return torch.ops.symm_mem.fused_all_gather_matmul(rows, matrices, 0 if last else 1, group, return_A=False)[1]
