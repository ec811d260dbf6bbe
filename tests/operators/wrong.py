"""Operators for `messages.txt`, which pins line numbers of this file: add at the end."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl


@tilelink.program("M/R ... -> M ...")
def gather(shard: Any, rows: Any) -> None:
    tile = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, tile)
    tl.tile_pull_data(rows, tile, source=shard)
    tl.producer_tile_notify(rows, tile)


@tilelink.program("M K, K N -> M N")
def matmul(rows: Any, weight: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)
    tl.producer_tile_notify(out, (m, n))


@tilelink.operator("M/R K, K N -> M N")
def op(x: Any, weight: Any) -> Any:
    return matmul(gather(x), weight)


@tilelink.operator("M/R K -> M K")
def only_gather(x: Any) -> Any:
    return gather(x)


@tilelink.program("M/R K -> M K")
def in_blocks(shard: Any, rows: Any) -> None:
    m, k = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, (m, k))
    tl.tile_pull_data(rows, (m, k), source=shard)
    tl.producer_tile_notify(rows, (m, k))


@tilelink.operator("M/R K, K N -> M N")
def blocks(x: Any, weight: Any) -> Any:
    return matmul(in_blocks(x), weight)


@tilelink.program("M N -> M N")
def silent(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@tilelink.operator("M K, K N -> M N")
def unheard(x: Any, weight: Any) -> Any:
    return matmul(silent(x), weight)


@tilelink.program("M/R ... -> M ...")
def broadcast(shard: Any, rows: Any) -> None:
    tile = tl.tile_id(rows)
    tl.consumer_tile_wait(shard, tile)
    tl.tile_pull_data(rows, tile, source=shard)
    tl.producer_tile_notify(rows, tile, mode="broadcast")


@tilelink.operator("M/R K, K N -> M N")
def asserted(x: Any, weight: Any) -> Any:
    return matmul(broadcast(x), weight)


@tilelink.program("T K i32 -> T K i32")
def choose(choice: Any, out: Any) -> None:
    t = tl.tile_id(out)
    tl.tile_store(out, t, tl.tile_load(choice, t))


@tilelink.operator("T K i32 -> T K i32")
def typed(choice: Any) -> Any:
    return choose(choice)


@tilelink.program("M t -> M t")
def same(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.tile_store(out, (m, n), tl.tile_load(x, (m, n)))


@tilelink.operator("M t -> M t")
def unlucky(x: Any) -> Any:
    return same(x)


@tilelink.program("M K -> M K")
def first_tiles(x: Any, out: Any) -> None:
    m, k = tl.tile_id(out)
    tl.tile_store(out, (m, k), tl.tile_load(x, (m, k)))
    if tl.tile_begin(out, m) < 8:
        tl.producer_tile_notify(out, (m, k))


@tilelink.operator("M/R K -> M K")
def sometimes(x: Any) -> Any:
    return gather(first_tiles(x))
