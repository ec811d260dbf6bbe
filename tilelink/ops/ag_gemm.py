"""All-gather and matmul, overlapped (arXiv:2503.20313, section 5: tensor-parallel MLP, first half)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.plain import gathered
from tilelink.ops.programs import gather, matmul


@tilelink.operator("M/R K, K N -> M N")
def ag_gemm(x: Any, weight: Any) -> Any:
    """`all_gather(x) @ weight`.

    Args:
        x: this rank's rows, `[M/R, K]`.
        weight: this rank's columns of the weight, `[K, N]`, any strides.

    Returns:
        `[M, N]` in the dtype of `x`, accumulated in fp32.
    """
    return matmul(gather(x), weight)


@ag_gemm.reference
def reference(x: Any, weight: Any, *, M: int | None = None, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    return gathered(x, group, M).mm(weight)
