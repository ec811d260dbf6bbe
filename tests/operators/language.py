"""The operators that the language was made for, as users write them; `test_language.py` runs each against torch."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import gather, matmul, move, reduce, scatter


# ------------------------------------------------------------------------------------------------------------------- moving
@tilelink.program("R/R M N -> R M/R N")
def scatter_dma(partial: Any, inbox: Any) -> None:
    """`scatter`, pinned to a copy engine."""
    chunk = tl.tile_id(partial)
    tl.rank_wait(partial, chunk)
    tl.rank_copy_data(inbox, chunk, source=partial)
    tl.rank_notify(inbox, chunk)


@tilelink.program("M ... -> M ...")
def keep(x: Any, out: Any) -> None:
    """Out of shared memory, where pushed tiles arrive."""
    tile = tl.tile_id(out)
    tl.consumer_tile_wait(x, tile)
    tl.tile_store(out, tile, tl.tile_load(x, tile))


@tilelink.program("M/R K -> R/R M K")
def ring_gather(shard: Any, rows: Any) -> None:
    """A ring all-gather: a rank stores its own rows, and hands on what comes from the next rank."""
    s, m, k = tl.tile_id(rows)
    owner = tl.rank_of(shard, (m, k))
    if owner == s:
        tl.consumer_tile_wait(shard, (m, k))
        tl.tile_store(rows, (s, m, k), tl.tile_load(shard, (m, k)))
        tl.producer_tile_notify(rows, (s, m, k))
    else:
        tl.peer_tile_wait(rows, (s, m, k), s + 1)
    if owner != s - 1:
        tl.tile_push_data(rows, (s - 1, m, k), tl.tile_load(rows, (s, m, k)))
        tl.peer_tile_notify(rows, (s - 1, m, k), s - 1)


send = tilelink.program("M/R ..., M ...", name="send")(move)
"""Own rows to whoever holds them in `dst`."""


@tilelink.program("M K, M/R K")
def work(there: Any, back: Any) -> None:
    """Runs for the rows that this rank holds of `there`, and sends what it made back to where they came from."""
    m, k = tl.tile_id(there)
    tl.consumer_tile_wait(there, (m, k))
    tl.tile_push_data(back, (m, k), 2 * tl.tile_load(there, (m, k)) + tl.rank_of(there, (m, k)))
    tl.producer_tile_notify(back, (m, k))


@tilelink.program("M/R K -> R/R M K")
def both_ways(shard: Any, rows: Any) -> None:
    """A ring all-gather in two directions: what is nearer behind comes from behind."""
    s, m, k = tl.tile_id(rows)
    ranks, owner = tl.num_ranks(), tl.rank_of(shard, m)
    ahead, far = (owner + ranks - s) % ranks, ranks // 2
    if ahead == 0:
        tl.consumer_tile_wait(shard, (m, k))
        tl.tile_store(rows, (s, m, k), tl.tile_load(shard, (m, k)))
        tl.producer_tile_notify(rows, (s, m, k))
    elif ahead <= far:
        tl.peer_tile_wait(rows, (s, m, k), s + 1)
    else:
        tl.peer_tile_wait(rows, (s, m, k), s - 1)
    if ahead < far:
        tl.tile_push_data(rows, (s - 1, m, k), tl.tile_load(rows, (s, m, k)))
        tl.peer_tile_notify(rows, (s - 1, m, k), s - 1)
    if (ahead > far + 1) | ((ahead == 0) and not ranks - 1 <= far):
        tl.tile_push_data(rows, (s + 1, m, k), tl.tile_load(rows, (s, m, k)))
        tl.peer_tile_notify(rows, (s + 1, m, k), s + 1)


@tilelink.program("T i32 <V, V/R H, R T/R H -> R/R T H")
def look_up(ids: Any, table: Any, inbox: Any, mine: Any) -> None:
    """Own flags of a vocabulary that is split, 0 for those of others, to the owners of the positions."""
    s, t, h = tl.tile_id(mine)
    flags = tl.tile_load(ids, t, other=-1)
    tl.tile_push_data(inbox, (s, t, h), tl.tile_load(table, (flags, h)))
    tl.producer_tile_notify(inbox, (s, t, h))


# ---------------------------------------------------------------------------------------------------------------- computing
@tilelink.program("M K, K N, M J, J N -> M N")
def matmul_low_rank(rows: Any, weight: Any, low: Any, b: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.consumer_tile_wait(low, m)
    for j in tl.tiles(low, axis=1):
        acc = tl.dot(tl.tile_load(low, (m, j)), tl.tile_load(b, (j, n)), acc)
    tl.tile_store(out, (m, n), acc)


@tilelink.program("M K, K N, R M/R N -> R/R M N, M/R N")
def matmul_rs(x: Any, weight: Any, inbox: Any, partial: Any, out: Any) -> None:
    """A matmul whose epilogue sends rows of others and adds up its own."""
    s, m, n = tl.tile_id(partial)
    acc = tl.zeros(tl.tile_shape(partial), tl.float32)
    for k in tl.tiles(weight, axis=0):
        acc = tl.dot(tl.tile_load(x, (m, k)), tl.tile_load(weight, (k, n)), acc)
    if tl.rank_of(out, (m, n)) != s:
        tl.tile_push_data(inbox, (s, m, n), acc)
        tl.producer_tile_notify(inbox, (s, m, n))
    else:
        for q in tl.tiles(inbox, axis=0):
            if q != s:
                tl.consumer_tile_wait(inbox, (q, m, n))
                acc += tl.tile_load(inbox, (q, m, n))
        tl.tile_store(out, (m, n), acc)


@tilelink.program("M K, K N -> M N")
def matmul_as_it_comes(rows: Any, weight: Any, out: Any) -> None:
    """A matmul that waits for its weight."""
    m, n = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(weight, axis=0):
        tl.consumer_tile_wait(weight, (k, n))
        acc = tl.dot(tl.tile_load(rows, (m, k)), tl.tile_load(weight, (k, n)), acc)
    tl.tile_store(out, (m, n), acc)


@tilelink.program("M K, K N, K N -> M N")
def glu(rows: Any, gate: Any, up: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, m)
    a, b = tl.zeros(tl.tile_shape(out), tl.float32), tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(gate, axis=0):
        x = tl.tile_load(rows, (m, k))
        a, b = tl.dot(x, tl.tile_load(gate, (k, n)), a), tl.dot(x, tl.tile_load(up, (k, n)), b)
    tl.tile_store(out, (m, n), a * tl.sigmoid(a) * b)
    tl.producer_tile_notify(out, (m, n))


# --------------------------------------------------------------------------------------------------------------- operators
@tilelink.operator("M/R K, K N -> M N")
def ag_gemm_ring(x: Any, weight: Any) -> Any:
    return matmul(ring_gather(x), weight)


@tilelink.operator("M/R K -> M K")
def all_gather_both_ways(x: Any) -> Any:
    return keep(both_ways(x))


@tilelink.operator("V/R H, T i32 <V -> T/R H")
def embedding(table: Any, ids: Any) -> Any:
    inbox = tilelink.symmetric("R T/R H")
    look_up(ids, table, inbox)
    return reduce(inbox)


@tilelink.operator("M/R K, K N, K r, r N -> M N")
def ag_lora(x: Any, weight: Any, a: Any, b: Any) -> Any:
    """`r` is short, and called so; the programs tile it all the same."""
    rows = gather(x)
    return matmul_low_rank(rows, weight, matmul(rows, a, name="down"), b)


@tilelink.operator("M K/R, K/R N -> M/R N")
def gemm_rs_epilogue(x: Any, weight: Any) -> Any:
    _, out = matmul_rs(x, weight, tilelink.symmetric("R M/R N"))
    return out


@tilelink.operator("M K/R, K/R N -> M/R N")
def gemm_rs_dma(x: Any, weight: Any) -> Any:
    return reduce(scatter_dma(matmul(x, weight)))


@tilelink.operator("M K, K/R N -> M N")
def fsdp(x: Any, weight: Any) -> Any:
    return matmul_as_it_comes(x, gather(weight))


@tilelink.operator("M/R K, K I/R, K I/R, I/R K -> M/R K")
def mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return reduce(scatter(matmul(glu(gather(x), gate, up), down)))


def elsewhere(owner: str) -> Any:
    """Rows to the ranks that `owner` names, twice their values and the number of the rank back."""

    @tilelink.operator("M/R K -> M/R K", name="elsewhere")
    def op(x: Any) -> Any:
        there, back = tilelink.symmetric("M K", owner=owner), tilelink.symmetric("M/R K")
        send(x, there)
        work(there, back)
        return keep(back)

    return op
