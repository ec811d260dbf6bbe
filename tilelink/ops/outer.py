"""Products over rows, which operators for gradients of weights share: `rows.T @ others`."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl


@tilelink.program("M K, M N -> K N")
def outer(rows: Any, others: Any, out: Any) -> None:
    """One tile of `rows.T @ others`, accumulated in fp32 over what arrives."""
    k, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(rows))
    for m in tl.tiles(rows, axis=0):
        tl.consumer_tile_wait(rows, m)
        tl.consumer_tile_wait(others, m)
        acc = tl.dot(tl.trans(tl.tile_load(rows, (m, k))), tl.tile_load(others, (m, n)), acc, out_dtype=acc.dtype)
    tl.tile_store(out, (k, n), acc)
    tl.producer_tile_notify(out, (k, n))
