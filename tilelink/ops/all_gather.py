"""All-gather: everyone's rows on every rank (arXiv:2503.20313, figure 5, without its consumer)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.programs import gather, keep
from tilelink.ops.tiling import moving, nbytes

PUSHED = 16 * 1024 * 1024
"""Bytes of all rows up to which one kernel beats copy engines: four H200s take 23 µs for 4 MiB, and 219 for 64, which copy
engines take 209 for."""


@tilelink.operator("M/R ... -> M ...", name="all_gather_pushed")
def pushed(x: Any) -> Any:
    """Results are fresh tensors, which peers cannot reach: rows arrive elsewhere, and are kept."""
    return keep(gather(x))


@tilelink.operator("M/R ... -> M ...", name="all_gather_pulled", schedule={"gather": tilelink.copy_engine(push=False)})
def pulled(x: Any) -> Any:
    """Each rank fetches, with no SM taken."""
    return gather(x)


@tilelink.operator("M/R ... -> M ...")
def all_gather(x: Any) -> Any:
    """The rows of all ranks, in their order: pushed in one kernel up to 16 MiB, pulled by copy engines beyond.

    Args:
        x: this rank's rows, `[M/R, ...]`, contiguous.

    Returns:
        `[M, ...]` in the dtype of `x`.
    """
    if nbytes(x) > PUSHED:
        return pulled(x)
    return pushed.schedule(gather=moving(x, 512, push=True), keep=moving(x, 512))(x)


@all_gather.reference
def reference(x: Any, *, group: Any = None) -> Any:
    """The same by a library."""
    import torch
    import torch.distributed as dist

    out = torch.empty((x.shape[0] * dist.get_world_size(group), *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out
