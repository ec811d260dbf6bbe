"""All-gather: everyone's rows on every rank (arXiv:2503.20313, figure 5, without its consumer)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.programs import gather


# Results are fresh tensors, which peers cannot reach: each rank fetches.
@tilelink.operator("M/R ... -> M ...", schedule={"gather": tilelink.copy_engine(push=False)})
def all_gather(x: Any) -> Any:
    """The rows of all ranks, in their order.

    Args:
        x: this rank's rows, `[M/R, ...]`, contiguous.

    Returns:
        `[M, ...]` in the dtype of `x`.
    """
    return gather(x)


@all_gather.reference
def reference(x: Any, *, group: Any = None) -> Any:
    """The same by a library."""
    import torch
    import torch.distributed as dist

    out = torch.empty((x.shape[0] * dist.get_world_size(group), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out
