"""All-reduce in one kernel: everyone sends everything to everyone and adds it up (the latency form; figure 4 unrolled)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.all_reduce_two_shot import reference


@tilelink.program("R/R M N, R M N -> M N")
def exchange(x: Any, inbox: Any, out: Any) -> None:
    """One tile to everyone, and the sum of everyone's, in fp32."""
    s, m, n = tl.tile_id(x)
    tl.consumer_tile_wait(x, (s, m, n))
    tl.tile_push_data(inbox, (s, m, n), tl.tile_load(x, (s, m, n)))
    tl.producer_tile_notify(inbox, (s, m, n))
    acc = tl.zeros(tl.tile_shape(x), tl.acc_dtype(x))
    for q in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (q, m, n))
        acc += tl.tile_load(inbox, (q, m, n))
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


# A worker that has sent a tile waits for the same tile of the others, which nobody sends later than he did.
@tilelink.operator("M N -> M N")
def all_reduce_one_shot(x: Any) -> Any:
    """The sum over the ranks of `x`, for sizes at which time is latency: one hop, one signal per tile, one kernel.

    Args:
        x: `[M, N]`, of one size on all ranks.

    Returns:
        `[M, N]` in the dtype of `x`, added in fp32 in the order of the ranks: the same bits everywhere.
    """
    return exchange(x, tilelink.symmetric("R M N", like=x), schedule=tilelink.exchanging(x))


all_reduce_one_shot.reference(reference)
