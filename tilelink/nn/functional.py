"""The library's operators as functions of torch, with gradients: each is another one's dual.

What is split over the ranks has a gradient that is split the same way, and every rank's loss counts: the gradient of a sum
over ranks is a sum over ranks. Gathered rows are not kept for the backward pass: it gathers them again, behind the product
that needs them, so that a layer keeps its own rows only (arXiv:2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from tilelink import ops
from tilelink.nn.groups import rank_of, ranks_of
from tilelink.nn.operators import Call, register
from tilelink.torch_ops.dispatch import is_readable

ROW = 256
"""Elements in a row of gradients that are summed together."""


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


def _of_routed(call: Call, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
    """AG+MoE: the tokens' gradient is MoE+RS with every weight 1, the experts' a product over their tokens."""
    tokens, choice, weight = call.tensors
    start, slot = call.tables
    rows = experts = None
    if call.wanted[0]:
        ones = torch.ones_like(slot, dtype=torch.float32)
        rows = moe_rs(grad, start, slot, weight.transpose(1, 2), ones, group=call.group)
    if call.wanted[2]:
        experts = ag_moe_outer(tokens, choice, grad, group=call.group, experts=weight.shape[0], T=slot.shape[0])
    return rows, None, experts


def _of_combined(call: Call, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """MoE+RS: gradients go to the rows of each expert as AG+MoE sends tokens there, and are weighted there. The tables are
    those that AG+MoE gave: an expert's rows begin with this rank's tokens."""
    hidden, start, slot, weight, score = call.tensors
    chosen = torch.where(slot < 0, -1, torch.bucketize(slot, start, right=True, out_int32=True) - 1)
    tokens = slot.shape[0]
    own = chosen[rank_of(call.group) * -(-tokens // ranks_of(call.group)) :][: grad.shape[0]].contiguous()
    count = hidden.shape[0]
    at = torch.where(slot < 0, count, slot).long()
    by_row = score.new_zeros(count + 1).scatter(0, at.flatten(), score.flatten())[:count, None]
    chosen_rows = torch.arange(count, device=hidden.device)[:, None] < start[-1]  # in others is what memory held
    columns = scores = experts = None
    if call.wanted[0] or call.wanted[4]:
        spread, _, _ = ag_moe(grad, own, weight.transpose(1, 2), group=call.group, T=tokens)
        columns = torch.where(chosen_rows, spread * by_row, 0).to(hidden.dtype)
        scores = nn.functional.pad((spread.float() * hidden).sum(1), (0, 1))[at]
    if call.wanted[3]:
        weighted = torch.where(chosen_rows, hidden * by_row, 0).to(hidden.dtype)
        experts = ag_moe_outer(grad, own, weighted, group=call.group, experts=weight.shape[0], T=tokens)
        experts = experts.transpose(1, 2)
    return columns, None, None, experts, scores


def _of_all(call: Call, grad: torch.Tensor) -> tuple[torch.Tensor]:
    """All-gather: reduce-scatter."""
    return (reduce_scatter(grad.unsqueeze(-1).flatten(1), group=call.group).view_as(call.tensors[0]),)


def _of_own(call: Call, grad: torch.Tensor) -> tuple[torch.Tensor]:
    """Reduce-scatter: all-gather."""
    return (all_gather(grad, group=call.group, M=call.tensors[0].shape[0]),)


def _of_alike(call: Call, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """GEMM+AR, with whose result all ranks go on alike, to one loss: its gradient is on every rank already."""
    x, weight = call.tensors
    grad = alike(grad, call.group)
    return grad @ weight.t() if call.wanted[0] else None, x.t() @ grad if call.wanted[1] else None


def _of_attended(call: Call, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Attention over gathered keys: plain torch with all scores of this rank's rows in memory, then reduce-scatter."""
    wide = torch.promote_types(grad.dtype, torch.float32)
    q, k, v = (t.to(wide) for t in call.tensors)
    rows, heads, groups = q.shape[0], q.shape[1], k.shape[1]
    length = call.given.get("S")
    keys, values = (all_gather(t, group=call.group, M=length) for t in (k, v))
    shared = heads // max(groups, 1)  # of no sequences there are none of either
    keys, values = (t.repeat_interleave(shared, 1) for t in (keys, values))
    scale = call.given.get("scale", q.shape[2] ** -0.5)
    score = torch.einsum("shd,thd->hst", q, keys) * scale
    if call.given.get("causal", True):
        first = rank_of(call.group) * -(-keys.shape[0] // ranks_of(call.group))
        later = torch.arange(keys.shape[0], device=q.device) > first + torch.arange(rows, device=q.device)[:, None]
        score = score.masked_fill(later, -torch.inf)
    weight, grad = score.softmax(-1), grad.to(wide)
    spread = torch.einsum("shd,thd->hst", grad, values)
    spread = weight * (spread - (spread * weight).sum(-1, keepdim=True)) * scale
    found = [torch.einsum("hst,thd->shd", spread, keys)]
    for by, what in ((spread, q), (weight, grad)):
        whole = torch.einsum("hst,shd->thd", by, what).unflatten(1, (groups, shared)).sum(2)
        found.append(reduce_scatter(whole.flatten(1), group=call.group).unflatten(1, whole.shape[1:]))
    return tuple(g.to(call.tensors[0].dtype) for g in found)


class _Alike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: str) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return all_reduce(grad.reshape(-1, grad.shape[-1]), group=ctx.group).view(grad.shape), None


def alike(x: torch.Tensor, group: str) -> torch.Tensor:
    """What all ranks have alike and use in gradients, each with its part of a weight: itself.

    Where those are differentiated once more, to one loss, its own gradient is the ranks' sum. A third time is an error.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return x
    return _Alike.apply(x, group)  # pyright: ignore[reportReturnType]


def replicated(x: torch.Tensor, *, group: str = "") -> torch.Tensor:
    """A parameter that all ranks hold alike and use on different rows: itself, and its gradient is summed over the ranks.

    Args:
        x: of any shape, the same on all ranks.
        group: their name (`tilelink.nn.group_name`); "" for all.
    """
    return replicated_all([x], group=group)[0]


def replicated_all(parameters: Sequence[torch.Tensor], *, group: str = "") -> tuple[torch.Tensor, ...]:
    """`replicated` of several; gradients of one dtype are summed in one all-reduce.

    Ranks may use different ones, as of experts that only some ranks' tokens have chosen: what one rank used has its gradient on
    all. What none used has no gradient; where a graph is traced, which cannot look at the ranks' answers, zeros.
    """
    trained = [p for p in parameters if p.requires_grad]
    found = iter(_replicated(trained, group) if trained else [])
    return tuple(next(found) if p.requires_grad else p for p in parameters)


@torch.library.custom_op("tilelink::replicated", mutates_args=())
def _replicated(parameters: Sequence[torch.Tensor], group: str) -> list[torch.Tensor]:
    del group
    return [p.clone() for p in parameters]


@_replicated.register_fake
def _(parameters: Sequence[torch.Tensor], group: str) -> list[torch.Tensor]:
    del group
    return [torch.empty_like(p) for p in parameters]


def _keep_group(ctx: Any, inputs: tuple[Sequence[torch.Tensor], str], output: list[torch.Tensor]) -> None:
    ctx.group, ctx.lie = inputs[1], [(p.shape, p.dtype, p.device) for p in output]
    ctx.set_materialize_grads(False)


def _sum_gradients(ctx: Any, all_grads: Sequence[torch.Tensor | None]) -> tuple[list[torch.Tensor | None], None]:
    """In as many numbers on all ranks, whatever each has used."""
    found: list[torch.Tensor | None] = [None] * len(all_grads)
    for kind in dict.fromkeys(dtype for _, dtype, _ in ctx.lie):
        at = [k for k, (_, dtype, _) in enumerate(ctx.lie) if dtype == kind]
        grads = [all_grads[k] for k in at]
        unused = [k for k, grad in enumerate(grads) if grad is None]
        filled = [
            torch.zeros(shape, dtype=kind, device=device) if grad is None else grad
            for grad, (shape, _, device) in zip(grads, (ctx.lie[k] for k in at), strict=True)
        ]
        for k, summed in zip(at, _summed(filled, unused, ctx.group), strict=True):
            found[k] = summed
    return found, None


def _summed(grads: Sequence[torch.Tensor], unused: Sequence[int], group: str) -> list[torch.Tensor | None]:
    """`unused`: which of them are zeros for want of one; None in their places where no rank has used them."""
    # Rows are what an all-reduce splits among the ranks.
    if len(grads) == 1:
        rows = grads[0].reshape(grads[0].shape[0] if grads[0].dim() > 1 else 1, -1)
        return [all_reduce(rows, group=group).reshape(grads[0].shape)]
    flat, count = [g.flatten() for g in grads], len(grads)
    total = sum(g.numel() for g in flat)
    # What fills the last row says of each whether this rank has used it: only who has not has to look, and waits for the GPU.
    users = flat[0].new_ones(count + -(total + count) % ROW)
    for k in unused:
        users[k].zero_()
    summed = all_reduce(torch.cat([*flat, users]).view(-1, ROW), group=group).flatten()
    parts = summed[:total].split([g.numel() for g in grads])
    found: list[torch.Tensor | None] = [part.view_as(g) for part, g in zip(parts, grads, strict=True)]
    if unused and is_readable(summed):
        by = summed[total : total + count].tolist()
        for k in unused:
            found[k] = found[k] if by[k] else None
    return found


_replicated.register_autograd(_sum_gradients, setup_context=_keep_group)


ag_outer = register(ops.ag_outer)
outer_ag = register(ops.outer_ag)
ag_gemm = register(ops.ag_gemm, backward=_of_gathered)
gemm_rs = register(ops.gemm_rs, backward=_of_scattered)
all_reduce = register(ops.all_reduce, backward=_of_summed, autocast=False)
ag_moe_outer = register(ops.ag_moe_outer)
ag_moe = register(ops.ag_moe, backward=_of_routed)
moe_rs = register(ops.moe_rs, backward=_of_combined)
all_gather = register(ops.all_gather, backward=_of_all, autocast=False)
reduce_scatter = register(ops.reduce_scatter, backward=_of_own, autocast=False)
gemm_ar = register(ops.gemm_ar, backward=_of_alike)
ag_attention = register(ops.ag_attention, backward=_of_attended)
