"""What the plain-torch forms of operators have in common: collectives of libraries, which know parts of one length, for parts
that differ too; and routing."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any


@lru_cache(maxsize=8)
def of_one_rank(group: Any) -> bool:
    """Whether a group has no other ranks: a library's collective costs its host more than a product, the question a tenth."""
    return group is not None and group.size() == 1


def gathered(x: Any, group: Any, rows: int | None = None) -> Any:
    """Every rank's `x`, one after the other along the first axis; of one rank `x` itself.

    Args:
        rows: of all ranks together, `ceil(rows / ranks)` each, the last get what is left; None: as many each as this one.
    """
    if of_one_rank(group):
        return x
    import torch.distributed as dist

    ranks = dist.get_world_size(group)
    each = x.shape[0] if rows is None else -(-rows // ranks)
    part = x
    if x.shape[0] < each:  # libraries gather equal parts; whatever fills them up comes behind all rows
        (part := x.new_empty((each, *x.shape[1:])))[: x.shape[0]] = x
    out = x.new_empty((each * ranks, *x.shape[1:]))
    dist.all_gather_into_tensor(out, part.contiguous(), group=group)
    return out if rows is None else out[:rows]


def added_up(x: Any, group: Any) -> Any:
    """The sum of every rank's `x`, which it is written into."""
    if not of_one_rank(group):
        import torch.distributed as dist

        dist.all_reduce(x, group=group)
    return x


def exchanged(x: Any, group: Any) -> Any:
    """The rows that everyone has for this rank, of `x` as many for each, in the ranks' order."""
    import torch
    import torch.distributed as dist

    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(out, x.contiguous(), group=group)
    return out


def scattered(make: Callable[[Any], object], like: Any, rows: int, columns: int, group: Any) -> Any:
    """This rank's rows, of `ceil(rows / ranks)` each, of the sum of what every rank makes.

    Args:
        make: writes this rank's `[rows, columns]` into what it is given, which has the dtype and device of `like`.
    """
    import torch.distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    each = -(-rows // ranks)
    own = like.new_empty((each, columns))
    partial = own if ranks == 1 else like.new_empty((each * ranks, columns))
    make(partial[:rows])  # what lies behind is nobody's: the last ranks get it and give it away
    if ranks > 1:
        dist.reduce_scatter_tensor(own, partial, group=group)
    mine = max(0, min(each, rows - rank * each))
    return own if mine == each else own[:mine]  # torch lets nobody write to a view


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
