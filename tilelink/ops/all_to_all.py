"""All-to-all: part r of everyone's rows to rank r (arXiv:2503.20313, section 3: a copy program, and nothing else)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.plain import exchanged
from tilelink.ops.programs import keep_parts, scatter


@tilelink.operator("M ... -> R M/R ...", name="all_to_all_pushed")
def pushed(x: Any) -> Any:
    """Results are fresh tensors, which peers cannot reach: parts arrive elsewhere, and are kept."""
    return keep_parts(scatter(x))


@tilelink.operator("M ... -> R M/R ...")
def all_to_all(x: Any) -> Any:
    """The rows that everyone has for this rank.

    Args:
        x: `[M, ...]`, of one size on all ranks, contiguous: the first `M/R` rows are for rank 0, and so on.

    Returns:
        `[R, M/R, ...]` in the dtype of `x`: what each rank had.
    """
    return pushed.schedule(scatter=tilelink.moving(x, 0.5), keep_parts=tilelink.moving(x))(x)


@all_to_all.reference
def reference(x: Any, *, group: Any = None) -> Any:
    """The same by a library."""
    import torch.distributed as dist

    return exchanged(x, group).view(dist.get_world_size(group), -1, *x.shape[1:])
