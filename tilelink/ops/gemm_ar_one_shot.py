"""Matmul whose epilogue exchanges its tiles with all ranks (arXiv:2503.20313, section 3: a fused consumer)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.all_reduce_one_shot import exchange
from tilelink.ops.gemm_ar_two_shot import reference
from tilelink.ops.programs import matmul


# All ranks take tiles in one order: who has sent one waits for the same tile of the others, which nobody sends later.
@tilelink.operator("M K/R, K/R N -> M N", schedule={"exchange": tilelink.fused("matmul")})
def gemm_ar_one_shot(x: Any, weight: Any) -> Any:
    """`all_reduce(x @ weight)` for few rows: each tile goes to everyone and is added up there, in one kernel.

    Args:
        x: this rank's columns of the activation, `[M, K/R]`.
        weight: this rank's rows of the weight, `[K/R, N]`, any strides.

    Returns:
        `[M, N]` in the dtype of `x`, in which partial sums travel; added in fp32.
    """
    partial = matmul(x, weight, schedule=tilelink.streaming(x, weight))
    return exchange(partial, tilelink.symmetric("R M N", like=partial))


gemm_ar_one_shot.reference(reference)
