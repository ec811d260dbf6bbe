"""Heads for positions and back, around attention of whole sequences (arXiv:2309.14509): an all-to-all between two splits."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.plain import exchanged
from tilelink.ops.programs import move

to_heads = tilelink.program("S/R H ... -> S H/R ...", name="to_heads")(move)
to_sequence = tilelink.program("S H/R ... -> S/R H ...", name="to_sequence")(move)


@tilelink.operator("S/R H ... -> S H/R ...", schedule={"to_heads": tilelink.copy_engine(push=False)})
def ulysses(x: Any) -> Any:
    """From some positions of all heads to all positions of some heads: `[S/R, H, ...]`, contiguous, to `[S, H/R, ...]`."""
    return to_heads(x)


@tilelink.operator("S H/R ... -> S/R H ...", schedule={"to_sequence": tilelink.copy_engine(push=False)})
def ulysses_back(x: Any) -> Any:
    """From all positions of some heads to some positions of all heads: `[S, H/R, ...]`, contiguous, to `[S/R, H, ...]`."""
    return to_sequence(x)


@ulysses.reference
def reference(x: Any, *, group: Any = None) -> Any:
    """The same by a library."""
    import torch.distributed as dist

    sent = x.unflatten(1, (dist.get_world_size(group), -1)).movedim(1, 0)
    return exchanged(sent, group).flatten(0, 1)


@ulysses_back.reference
def reference_back(x: Any, *, group: Any = None) -> Any:
    """The same by a library."""
    import torch.distributed as dist

    return exchanged(x, group).unflatten(0, (dist.get_world_size(group), -1)).movedim(0, 1).flatten(1, 2)
