"""torch's two fused operators on symmetric memory, by tilelink's: any axis, as products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink import ops
from tilelink.runtime.session import Session
from tilelink.torch_ops.products import ag_products

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def unserved(tensors: Sequence[torch.Tensor], session: Session) -> str | None:
    """Why tilelink does not multiply these tensors; None: it does. The same on all ranks, which pass tensors alike."""
    backend = session.backend
    on_cpu = backend.only_references or backend.topology.backend == "simulated"
    for t in tensors:
        if t.dtype not in DTYPES or t.dtype != tensors[0].dtype:
            kinds = " and ".join(dict.fromkeys(str(each.dtype).removeprefix("torch.") for each in tensors))
            return f"tilelink multiplies floats of one dtype from 16 to 64 bits, and this is {kinds}"
        if t.device.type != ("cpu" if on_cpu else "cuda"):
            return f"the ranks run on {'the CPU' if on_cpu else 'GPUs'}, and the tensors are on {t.device.type}"
    return None


def flat(tensor: torch.Tensor, dim: int, *, last: bool) -> torch.Tensor:
    """As a matrix whose last axis is the tensor's, its rows in the order of axis `dim` first; `last`: as they lie."""
    if tensor.dim() == 2 and not dim:  # each view costs the host a tenth of a product
        return tensor
    return (tensor if last else tensor.movedim(dim, 0)).flatten(0, -2)


def all_gather_matmul(
    shard: torch.Tensor, weights: Sequence[torch.Tensor], dim: int, session: Session, return_gathered: bool
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """`gathered @ weight` for each weight, where `gathered` is every rank's `shard` along axis `dim`.

    Args:
        shard: `[…, K]`, of two axes or more; of the last axis `[…, K/R]`.
        weights: `[K, N]` each, any strides.
        dim: from 0; it may be the last axis.
        session: of the ranks.
        return_gathered: whether the first result is wanted.

    Returns:
        `gathered` or None, and the products, in the dtype of `shard`. Both are fresh, and views of memory in which axis `dim`
        comes first; of the last axis they are contiguous.
    """
    last = dim == shard.dim() - 1
    rows = flat(shard, dim, last=last)
    rows = (rows.t() if last else rows).contiguous()  # what is gathered is moved as it lies
    if len(weights) == 1 and not return_gathered:
        found = ((ops.ag_outer if last else ops.ag_gemm)(rows, weights[0], session=session),)
    else:
        found = ag_products(len(weights), turned=last, keep=return_gathered)(rows, *weights, session=session)
    ahead = shard.shape[:-1] if last else (session.backend.ranks * shard.shape[dim], *_without(shard.shape[:-1], dim))

    def shaped(matrix: torch.Tensor) -> torch.Tensor:
        if len(ahead) == 1:
            return matrix
        return matrix.view(*ahead, matrix.shape[-1]).movedim(0, 0 if last else dim)

    if not return_gathered:
        return None, [shaped(each) for each in found]
    gathered, *products = found
    return shaped(gathered.t().contiguous() if last else gathered), [shaped(each) for each in products]


def matmul_reduce_scatter(
    whole: torch.Tensor, weight: torch.Tensor, mean: bool, dim: int, session: Session
) -> torch.Tensor:
    """This rank's part along axis `dim` of the sum of every rank's `whole @ weight`.

    Args:
        whole: `[…, K]`, of two axes or more; the size of axis `dim` of the product is a multiple of the ranks.
        weight: `[K, N]`, any strides.
        mean: whether the sum is divided by the number of ranks.
        dim: from 0; it may be the last axis, `N`.
        session: of the ranks.

    Returns:
        contiguous, in the dtype of `whole`.
    """
    last = dim == whole.dim() - 1
    rows = flat(whole, dim, last=last)
    if last:
        own = ops.gemm_rs(weight.t(), rows.t(), session=session).t().contiguous()
        own = own.view(*whole.shape[:-1], own.shape[1])
    else:
        own = ops.gemm_rs(rows, weight, session=session)
        if whole.dim() > 2:
            ahead = (whole.shape[dim] // session.backend.ranks, *_without(whole.shape[:-1], dim))
            own = own.view(*ahead, weight.shape[1]).movedim(0, dim).contiguous()
            own = own.view(own.shape)  # what is contiguous already keeps the strides of axes of one element
    return own.div_(session.backend.ranks) if mean else own


def _without(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])
