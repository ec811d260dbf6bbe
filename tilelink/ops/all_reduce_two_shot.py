"""All-reduce as reduce-scatter and all-gather, each in one hop (arXiv:2503.20313, section 4: pushed and pulled tiles)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.programs import gather, reduce, scatter


# Whole parts by copy engines: nothing computes that could hide a finer cut, and no SM is taken.
@tilelink.operator(
    "M N -> M N", schedule={"scatter": tilelink.copy_engine(), "gather": tilelink.copy_engine(push=False)}
)
def all_reduce_two_shot(x: Any) -> Any:
    """The sum over the ranks of `x`, for sizes at which time is bandwidth; each rank adds up its part of the rows.

    Args:
        x: `[M, N]`, of one size on all ranks, rows contiguous; with fewer rows than ranks some ranks add up nothing.

    Returns:
        `[M, N]` in the dtype of `x`, added in fp32: the same bits everywhere.
    """
    return gather(reduce(scatter(x)))


@all_reduce_two_shot.reference
def reference(x: Any, *, form: str = "", group: Any = None) -> Any:
    """The same by a library."""
    import torch.distributed as dist

    out = x.clone()
    dist.all_reduce(out, group=group)
    return out
