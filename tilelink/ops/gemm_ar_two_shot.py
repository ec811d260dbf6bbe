"""Matmul, reduce-scatter and all-gather, overlapped (arXiv:2503.20313, section 5: the second half of an MLP, replicated)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.all_gather import all_gather
from tilelink.ops.gemm_rs import gemm_rs
from tilelink.ops.plain import added_up


@tilelink.operator("M K/R, K/R N -> M N")
def gemm_ar_two_shot(x: Any, weight: Any) -> Any:
    """`all_reduce(x @ weight)` for many rows: partial sums go to the owners of the rows while the product goes on.

    Args:
        x: this rank's columns of the activation, `[M, K/R]`.
        weight: this rank's rows of the weight, `[K/R, N]`, any strides.

    Returns:
        `[M, N]` in the dtype of `x`, in which partial sums travel; added in fp32.
    """
    return all_gather(gemm_rs(x, weight))


@gemm_ar_two_shot.reference
def reference(x: Any, weight: Any, *, form: str = "", K: int | None = None, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    return added_up(x.mm(weight), group)
