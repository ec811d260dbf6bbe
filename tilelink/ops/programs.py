"""Tile programs that operators share: copy programs and three computations. No rank, flag or address in sight."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl


def move(src: Any, dst: Any) -> None:
    """One tile, to every rank that holds it in `dst`."""
    tile = tl.tile_id(src)
    tl.consumer_tile_wait(src, tile)
    tl.tile_push_data(dst, tile, tl.tile_load(src, tile))
    tl.producer_tile_notify(dst, tile)


scatter = tilelink.program("R/R M ... -> R M/R ...", name="scatter")(move)
"""Everyone's partial sums to the owners of the rows."""
share = tilelink.program("R/R M ... -> R M ...", name="share")(move)
"""Everyone's slice to everyone."""


def fetch(shard: Any, rows: Any) -> None:
    """One tile of `rows`, from whoever holds it."""
    tile = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, tile)
    tl.tile_pull_data(rows, tile, source=shard)
    tl.producer_tile_notify(rows, tile)


gather = tilelink.program("M/R ... -> M ...", name="gather")(fetch)
keep = tilelink.program("M ... -> M ...", name="keep")(fetch)
"""What peers have pushed, out of the memory that they reach."""
keep_parts = tilelink.program("s M ... -> s M ...", name="keep_parts")(fetch)


@tilelink.program("M K, K N -> M N")
def matmul(rows: Any, weight: Any, out: Any) -> None:
    """One tile of `out`, accumulated in fp32 (int32, fp64)."""
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(rows))
    for k in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(weight, (k, n))
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc, out_dtype=acc.dtype)
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


@tilelink.program("s M N -> M N")
def reduce(inbox: Any, out: Any) -> None:
    """One tile of the sum over `s`, in fp32 (int32, fp64, int64)."""
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.acc_dtype(inbox))
    for s in tl.tiles(inbox, axis=0):
        tl.consumer_tile_wait(inbox, (s, m, n))
        acc += tl.tile_load(inbox, (s, m, n))
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


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
