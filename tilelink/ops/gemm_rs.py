"""Matmul and reduce-scatter, overlapped (arXiv:2503.20313, section 5: tensor-parallel MLP, second half)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.plain import scattered
from tilelink.ops.programs import matmul, reduce, scatter


@tilelink.operator(
    "M K/R, K/R N -> M/R N",
    schedule={
        "scatter": tilelink.copy_engine(M=1024, order="ring+1"),  # the best of those measured (docs/performance.md)
        "reduce": tilelink.fused("matmul", deferred=None),
    },
)
def gemm_rs(x: Any, weight: Any) -> Any:
    """`reduce_scatter(x @ weight)` over the rows.

    Its forms are schedules: `scatter=tilelink.fused("matmul")` pushes from the epilogue,
    `scatter=tilelink.copy_engine(M=1024)` pushes finished chunks, `reduce=tilelink.fused("matmul")` adds in the epilogue
    of own rows, `deferred=True` with it when all tiles are made.

    Args:
        x: this rank's columns of the activation, `[M, K/R]`.
        weight: this rank's rows of the weight, `[K/R, N]`, any strides.

    Returns:
        this rank's rows of the sum, `[M/R, N]` in the dtype of `x`; partial sums travel in that dtype.
    """
    return reduce(scatter(matmul(x, weight)))


@gemm_rs.reference
def reference(x: Any, weight: Any, *, M: int | None = None, K: int | None = None, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    import torch

    del M, K  # `x` has all rows, and a product of no columns is 0
    return scattered(lambda out: torch.mm(x, weight, out=out), x, x.shape[0], weight.shape[1], group)
