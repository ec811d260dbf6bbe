"""All-reduce as reduce-scatter and all-gather, each in one hop (arXiv:2503.20313, section 4: pushed and pulled tiles)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.plain import added_up
from tilelink.ops.programs import gather, reduce, scatter

MOVE = tilelink.sms(M=16, order="ring+1", num_warps=16)
IN_TURN = {"scatter": MOVE, "reduce": tilelink.sms(M=16, N=512, num_warps=16), "gather": MOVE}
"""One kernel, whose workers take turns: every step has all SMs, and waits for no kernel and no stream."""


@tilelink.operator("M N -> M N", schedule=IN_TURN)
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
    import torch

    return added_up(x.clone(memory_format=torch.contiguous_format), group)  # a library adds memory up as it lies
