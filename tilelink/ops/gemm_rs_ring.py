"""Matmul and reduce-scatter along a ring, written on `peer_tile_*` (arXiv:2503.20313, figure 4)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.gemm_rs import reference
from tilelink.ops.programs import matmul


@tilelink.program("R/R M N, R/R M N -> M/R N")
def ring(partial: Any, inbox: Any, out: Any) -> None:
    """Add what the next rank sent for these rows, and pass the sum on to the rank before, until it is with its owner."""
    s, m, n = tl.tile_id(partial)
    tl.consumer_tile_wait(partial, (s, m, n))
    acc = tl.tile_load(partial, (s, m, n)).to(tl.acc_dtype(partial))
    owner = tl.rank_of(out, (m, n))
    if owner != s + 1:  # not the first of this chain
        tl.peer_tile_wait(inbox, (s, m, n), s + 1)
        acc += tl.tile_load(inbox, (s, m, n))
    if owner == s:  # the last: the sum stays
        tl.tile_store(out, (m, n), acc)
        tl.producer_tile_notify(out, (m, n))
    else:
        tl.tile_push_data(inbox, (s - 1, m, n), acc)
        tl.peer_tile_notify(inbox, (s - 1, m, n), s - 1)


@tilelink.operator("M K/R, K/R N -> M/R N", schedule={"ring": tilelink.fused("matmul")})
def gemm_rs_ring(x: Any, weight: Any) -> Any:
    """`reduce_scatter(x @ weight)` over the rows; shapes as in `gemm_rs`.

    The chain runs against the ring, so the matmul's order starts at the next rank's rows (`ring+1`).
    """
    partial = matmul(x, weight)
    return ring(partial, tilelink.symmetric("R/R M N", like=partial))


gemm_rs_ring.reference(reference)
