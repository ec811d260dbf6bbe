"""What the plain-torch forms of routing operators have in common."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tilelink.ops.parts import gathered as gathered


def tables(choice: Any, experts: int, first: int = 0) -> tuple[Any, Any, Any]:
    """`order`, `start` and `slot` as `routing.place` makes them, all int32; what nobody chose is −1.

    An expert's rows begin with token `first`; those before it come last.
    """
    import torch

    tokens = max(choice.shape[0], 1)
    flat = choice.roll(-first, 0).flatten().long()
    flat = torch.where(flat < 0, experts, flat)
    by_row = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=experts + 1)[:experts]
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    slot = torch.empty_like(flat)
    slot[by_row] = torch.arange(len(flat), device=flat.device)
    slot = torch.where(flat < experts, slot, -1).view(choice.shape).roll(first, 0)
    return ((by_row // choice.shape[1] + first) % tokens).int(), start.int(), slot.int()


def routed(choice: Any, experts: int, group: Any) -> tuple[Any, Any, Any]:
    """`tables` of every rank's `choice`, this rank's tokens first."""
    import torch.distributed as dist

    return tables(gathered(choice, group), experts, len(choice) * dist.get_rank(group))


def grouped(rows: Any, start: Any, weight: Any) -> Any:
    """Rows sorted by expert, each times the matrix of its expert; what no expert has is 0."""
    out = rows.new_zeros(rows.shape[0], weight.shape[2])
    for e, (first, last) in enumerate(pairwise(start.tolist())):
        out[first:last] = rows[first:last] @ weight[e]
    return out


def summed(rows: Any, at: Any, score: Any) -> Any:
    """For each token the weighted sum of its rows, in fp32; −1: no row."""
    import torch

    picked = rows[at.clamp(min=0).long()].float() if len(rows) else rows.new_zeros(*at.shape, rows.shape[1]).float()
    return torch.where(at[..., None] < 0, 0.0, score[..., None] * picked).sum(1).to(rows.dtype)
