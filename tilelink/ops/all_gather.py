"""All-gather: everyone's rows on every rank (arXiv:2503.20313, figure 5, without its consumer)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.plain import gathered
from tilelink.ops.programs import gather, keep


@tilelink.operator("M/R ... -> M ...", name="all_gather_pushed")
def pushed(x: Any) -> Any:
    """Results are fresh tensors, which peers cannot reach: rows arrive elsewhere, and are kept."""
    return keep(gather(x))


@tilelink.operator("M/R ... -> M ...")
def all_gather(x: Any) -> Any:
    """The rows of all ranks, in their order: pushed in one kernel.

    Args:
        x: this rank's rows, `[M/R, ...]`, contiguous.

    Returns:
        `[M, ...]` in the dtype of `x`.
    """
    tiles = (512, 1024)
    push = tilelink.moving(x, 0.36, tiles=tiles, push=True)
    return pushed.schedule(gather=push, keep=tilelink.moving(x, tiles=tiles))(x)


@all_gather.reference
def reference(x: Any, *, group: Any = None) -> Any:
    """The same by a library."""
    rows = gathered(x, group)
    return rows.clone() if rows is x else rows
