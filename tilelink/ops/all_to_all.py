"""All-to-all: part r of everyone's rows to rank r; also with heads for rows, between two splits of one tensor (Ulysses)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.programs import move, scatter

to_heads = tilelink.program("S/R H ... -> S H/R ...", name="to_heads")(move)
"""Some positions of all heads become all positions of some heads."""

to_sequence = tilelink.program("S H/R ... -> S/R H ...", name="to_sequence")(move)
"""The way back."""


@tilelink.operator("M ... -> R M/R ...", schedule={"scatter": tilelink.copy_engine(push=False)})
def all_to_all(x: Any) -> Any:
    """The rows that everyone has for this rank.

    Args:
        x: `[M, ...]`, of one size on all ranks, contiguous: the first `M/R` rows are for rank 0, and so on.

    Returns:
        `[R, M/R, ...]` in the dtype of `x`: what each rank had.
    """
    return scatter(x)


@tilelink.operator("S/R H ... -> S H/R ...", schedule={"to_heads": tilelink.copy_engine(push=False)})
def ulysses(x: Any) -> Any:
    """From split positions to split heads, before attention: `[S/R, H, ...]` to `[S, H/R, ...]`."""
    return to_heads(x)


@tilelink.operator("S H/R ... -> S/R H ...", schedule={"to_sequence": tilelink.copy_engine(push=False)})
def ulysses_back(x: Any) -> Any:
    """From split heads to split positions, after attention: `[S, H/R, ...]` to `[S/R, H, ...]`."""
    return to_sequence(x)


@all_to_all.reference
def reference(x: Any, *, group: Any = None) -> Any:
    """The same by a library."""
    import torch
    import torch.distributed as dist

    out = torch.empty_like(x)
    dist.all_to_all_single(out, x.contiguous(), group=group)
    return out.view(dist.get_world_size(group), -1, *x.shape[1:])
