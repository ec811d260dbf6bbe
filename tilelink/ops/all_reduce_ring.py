"""All-reduce along a ring, for ranks with a good link to their neighbours only (arXiv:2503.20313, figure 4)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.all_reduce_two_shot import reference
from tilelink.ops.gemm_rs_ring import ring
from tilelink.ops.programs import gather


@tilelink.operator(
    "M N -> M N",
    schedule={
        "ring": tilelink.sms(M=16, N=512, order="ring+1"),  # a row's chain starts behind its owner
        "gather": tilelink.copy_engine(push=False),
    },
)
def all_reduce_ring(x: Any) -> Any:
    """The sum over the ranks of `x`: partial sums go once around, then everyone fetches the parts.

    Args:
        x: `[M, N]`, of one size on all ranks.

    Returns:
        `[M, N]` in the dtype of `x`, in which partial sums travel: the same bits everywhere.
    """
    return gather(ring(x, tilelink.symmetric("R/R M N", like=x)))


all_reduce_ring.reference(reference)
