"""All-gather and a product over the gathered rows, overlapped: gradients of weights that meet gathered activations."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.plain import gathered
from tilelink.ops.programs import gather, outer


@tilelink.operator("M/R K, M N -> K N")
def ag_outer(x: Any, y: Any) -> Any:
    """`all_gather(x).T @ y`: the weight's gradient of AG+GEMM, where `y` is the result's.

    Args:
        x: this rank's rows, `[M/R, K]`.
        y: all rows, `[M, N]`, this rank's own.

    Returns:
        `[K, N]` in the dtype of `x`, accumulated in fp32.
    """
    return outer(gather(x), y)


@tilelink.operator("M K, M/R N -> K N")
def outer_ag(x: Any, y: Any) -> Any:
    """`x.T @ all_gather(y)`: the weight's gradient of GEMM+RS, where `y` is the result's.

    Args:
        x: all rows, `[M, K]`, this rank's own.
        y: this rank's rows, `[M/R, N]`.

    Returns:
        `[K, N]` in the dtype of `x`, accumulated in fp32.
    """
    return outer(x, gather(y))


@ag_outer.reference
def reference(x: Any, y: Any, *, M: int | None = None, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    return gathered(x, group, M).t() @ y


@outer_ag.reference
def turned(x: Any, y: Any, *, M: int | None = None, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    return x.t() @ gathered(y, group, M)
