"""An embedding of which each rank has some rows: every rank looks up what it has, and all get the sum."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tilelink.nn import functional as F
from tilelink.nn.local import Whole, own
from tilelink.nn.rows import reshaped
from tilelink.torch_ops.dispatch import is_readable


class _Embedding(torch.autograd.Function):
    """A lookup and its sum over the ranks, in one step of autograd. With the sum all ranks go on alike, to one loss: its gradient
    is on every rank already."""

    @staticmethod
    def forward(
        ctx: Any, ids: torch.Tensor, weight: torch.Tensor, first: int, total: int, padding: int, group: str
    ) -> torch.Tensor:
        ctx.whole, ctx.group = Whole(weight), group
        part = ctx.whole.part
        ctx.rows = rows = part.shape[0]
        ctx.padding = padding - first if first <= padding < first + rows else -1
        at = ids - first if first else ids
        # Ids that nobody has are, on GPUs, for the first and the last rank to find.
        others = at < 0 if first else None
        if first + rows < total:
            others = at >= rows if others is None else others | (at >= rows)
        if others is not None:
            at = at.masked_fill(others, 0)
        ctx.save_for_backward(at, others)
        found = nn.functional.embedding(at, part)
        if others is not None:
            found = found.masked_fill_(others[..., None], 0)
        return reshaped(F.all_reduce(found.view(at.numel(), found.shape[-1]), group=group), *found.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        at, others = ctx.saved_tensors
        grad = F.alike(grad, ctx.group)
        if others is not None:
            grad = grad.masked_fill(others[..., None], 0)
        rows = torch.ops.aten.embedding_dense_backward(grad, at, ctx.rows, ctx.padding, False)
        return None, ctx.whole.gradient(rows), None, None, None, None


def embedding(
    ids: torch.Tensor, weight: torch.Tensor, *, first: int, total: int, padding: int | None, group: str
) -> torch.Tensor:
    """`weight`, `[rows of this rank, features]`, are rows from `first` on of `total`; every rank has all `ids`, and gets all of
    `[…, features]`. No gradient for the row of `padding`.

    Raises:
        IndexError: on the CPU, an id that is no row.
    """
    if torch.compiler.is_compiling():
        weight = own(weight, fresh=True)
    elif ids.device.type == "cpu" and ids.numel() and is_readable(ids):
        # All ranks find it, before any of them waits for the others.
        low, high = ids.aminmax()
        if low < 0 or high >= total:
            raise IndexError("index out of range in self")
    return _Embedding.apply(ids, weight, first, total, -1 if padding is None else padding, group)  # pyright: ignore[reportReturnType]
