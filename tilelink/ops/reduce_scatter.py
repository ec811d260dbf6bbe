"""Reduce-scatter: the sum over the ranks, of each its own rows (arXiv:2503.20313, figure 4, without its producer)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.programs import reduce, scatter


@tilelink.operator("M N -> M/R N", name="reduce_scatter_pushed")
def pushed(x: Any) -> Any:
    """Parts go to their owners, who add them up: in one kernel."""
    return reduce(scatter(x))


@tilelink.operator("M N -> M/R N")
def reduce_scatter(x: Any) -> Any:
    """This rank's rows of the sum of everyone's `x`.

    Args:
        x: `[M, N]`, of one size on all ranks, contiguous.

    Returns:
        `[M/R, N]` in the dtype of `x`, added in fp32 in the order of the ranks.
    """
    return pushed.schedule(scatter=tilelink.moving(x, 0.5), reduce=tilelink.adding(x))(x)


@reduce_scatter.reference
def reference(x: Any, *, group: Any = None) -> Any:
    """The same by a library."""
    import torch
    import torch.distributed as dist

    out = torch.empty((x.shape[0] // dist.get_world_size(group), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out
