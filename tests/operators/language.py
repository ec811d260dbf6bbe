"""The operators that the language was made for, as users write them; `test_language.py` runs each against torch."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import gather, matmul, reduce, scatter, share

NEG = -1e30


# ------------------------------------------------------------------------------------------------------------------- moving
@tilelink.program("R/R M N -> R M/R N")
def scatter_dma(partial: Any, inbox: Any) -> None:
    """`scatter`, pinned to a copy engine."""
    chunk = tl.tile_id(partial)
    tl.rank_wait(partial, chunk)
    tl.rank_copy_data(inbox, chunk, source=partial)
    tl.rank_notify(inbox, chunk)


@tilelink.program("S/R h D -> S h/R D")
def to_heads(src: Any, dst: Any) -> None:
    """All sequence positions of some heads instead of some positions of all heads."""
    s, h, _ = tl.tile_id(src)
    tl.consumer_tile_wait(src, (s, h))
    tl.tile_push_data(dst, (s, h), tl.tile_load(src, (s, h)))
    tl.producer_tile_notify(dst, (s, h))


@tilelink.program("M ... -> M ...")
def keep(x: Any, out: Any) -> None:
    """Out of shared memory, where pushed tiles arrive."""
    tile = tl.tile_id(out)
    tl.consumer_tile_wait(x, tile)
    tl.tile_store(out, tile, tl.tile_load(x, tile))


@tilelink.program("S h D -> S h D")
def keep_heads(x: Any, out: Any) -> None:
    s, h, _ = tl.tile_id(out)
    tl.consumer_tile_wait(x, (s, h))
    tl.tile_store(out, (s, h), tl.tile_load(x, (s, h)))


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


@tilelink.program("M/R ..., M ...")
def send(src: Any, dst: Any) -> None:
    """Own rows to whoever holds them in `dst`."""
    tile = tl.tile_id(src)
    tl.consumer_tile_wait(src, tile)
    tl.tile_push_data(dst, tile, tl.tile_load(src, tile))
    tl.producer_tile_notify(dst, tile)


@tilelink.program("M K, M/R K")
def work(there: Any, back: Any) -> None:
    """Runs for the rows that this rank holds of `there`, and sends what it made back to where they came from."""
    m, k = tl.tile_id(there)
    tl.consumer_tile_wait(there, (m, k))
    tl.tile_push_data(back, (m, k), 2 * tl.tile_load(there, (m, k)) + tl.rank_of(there, (m, k)))
    tl.producer_tile_notify(back, (m, k))


# ---------------------------------------------------------------------------------------------------------------- computing
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


# ---------------------------------------------------------------------------------------------------------------- attention
@tilelink.program("S/R h D, T g D, T g D -> S/R h D")
def flash(q: Any, keys: Any, values: Any, out: Any, *, causal: bool = True) -> None:
    s, h, _ = tl.tile_id(out)
    g = h * tl.size(keys, 1) // tl.size(q, 1)
    rows, query = tl.tile_range(out, s), tl.tile_load(q, (s, h))
    top = tl.full([rows.shape[0]], NEG, tl.float32)
    total, acc = tl.zeros([rows.shape[0]], tl.float32), tl.zeros(query.shape, tl.float32)
    for t in tl.tiles(keys, axis=0, stop=tl.tile_end(out, s) if causal else None):
        tl.consumer_tile_wait(keys, (t, g))
        tl.consumer_tile_wait(values, (t, g))
        cols = tl.tile_range(keys, t)
        keep = (cols < tl.size(keys, 0))[None, :] & ((cols[None, :] <= rows[:, None]) | (not causal))
        score = tl.where(keep, tl.dot(query, tl.trans(tl.tile_load(keys, (t, g)))), NEG)
        new = tl.maximum(top, tl.max(score, 1))
        p, old = tl.exp(score - new[:, None]), tl.exp(top - new)
        acc = tl.dot(p.to(query.dtype), tl.tile_load(values, (t, g)), acc * old[:, None])
        total, top = total * old + tl.sum(p, 1), new
    tl.tile_store(out, (s, h), acc / total[:, None])


@tilelink.program("b g Q D, b S g D, b S g D -> c b g Q D f32, c b g Q f32, c b g Q f32")
def partial_decode(q: Any, keys: Any, values: Any, accs: Any, tops: Any, totals: Any) -> None:
    c, b, g, _, _ = tl.tile_id(accs)
    query = tl.tile_load(q, (b, g))
    top = tl.full([query.shape[0]], NEG, tl.float32)
    total, acc = tl.zeros([query.shape[0]], tl.float32), tl.zeros(query.shape, tl.float32)
    for t in tl.tiles(keys, axis=1, part=(c, tl.size(accs, 0))):
        keep = (tl.tile_range(keys, t) < tl.tile_end(keys, t))[None, :]
        score = tl.where(keep, tl.dot(query, tl.trans(tl.tile_load(keys, (b, t, g)))), NEG)
        new = tl.maximum(top, tl.max(score, 1))
        p, old = tl.exp(score - new[:, None]) * keep, tl.exp(top - new)
        acc = tl.dot(p.to(query.dtype), tl.tile_load(values, (b, t, g)), acc * old[:, None])
        total, top = total * old + tl.sum(p, 1), new
    tl.tile_store(accs, (c, b, g), acc)
    tl.tile_store(tops, (c, b, g), top)
    tl.tile_store(totals, (c, b, g), total)
    tl.producer_tile_notify(accs, (c, b, g))
    tl.producer_tile_notify(tops, (c, b, g))
    tl.producer_tile_notify(totals, (c, b, g))


@tilelink.program("s c b g Q D, s c b g Q, s c b g Q -> b g Q D")
def merge(accs: Any, tops: Any, totals: Any, out: Any) -> None:
    b, g, _, _ = tl.tile_id(out)
    top = tl.full([tl.tile_range(out, axis=2).shape[0]], NEG, tl.float32)
    total, acc = tl.zeros(top.shape, tl.float32), tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(accs, axis=0):
        for c in tl.tiles(accs, axis=1):
            tl.consumer_tile_wait(accs, (s, c, b, g))
            tl.consumer_tile_wait(tops, (s, c, b, g))
            tl.consumer_tile_wait(totals, (s, c, b, g))
            one = tl.tile_load(tops, (s, c, b, g))
            new = tl.maximum(top, one)
            old, this = tl.exp(top - new), tl.exp(one - new)
            acc = acc * old[:, None] + tl.tile_load(accs, (s, c, b, g)) * this[:, None]
            total, top = total * old + tl.tile_load(totals, (s, c, b, g)) * this, new
    tl.tile_store(out, (b, g), acc / total[:, None])
    tl.producer_tile_notify(out, (b, g))


# --------------------------------------------------------------------------------------------------------------- operators
@tilelink.operator("M/R K, K N -> M N")
def ag_gemm_ring(x: Any, weight: Any) -> Any:
    return matmul(ring_gather(x), weight)


@tilelink.operator("M K/R, K/R N -> M/R N")
def gemm_rs_epilogue(x: Any, weight: Any) -> Any:
    _, out = matmul_rs(x, weight, tilelink.symmetric("R M/R N"))
    return out


@tilelink.operator("M K/R, K/R N -> M/R N")
def gemm_rs_dma(x: Any, weight: Any) -> Any:
    return reduce(scatter_dma(matmul(x, weight)))


@tilelink.operator("M K/R, K/R N -> M N")
def gemm_ar(x: Any, weight: Any) -> Any:
    return gather(reduce(scatter(matmul(x, weight))))


@tilelink.operator("S/R h D -> S h/R D")
def ulysses(x: Any) -> Any:
    return keep_heads(to_heads(x))


@tilelink.operator("M K, K/R N -> M N")
def fsdp(x: Any, weight: Any) -> Any:
    return matmul_as_it_comes(x, gather(weight))


@tilelink.operator("M/R K, K I/R, K I/R, I/R K -> M/R K")
def mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return reduce(scatter(matmul(glu(gather(x), gate, up), down)))


@tilelink.operator("S/R h D, S/R g D, S/R g D -> S/R h D")
def ag_attention(q: Any, k: Any, v: Any, *, causal: bool = True) -> Any:
    return flash(q, gather(k, name="gather_k"), gather(v, name="gather_v"), causal=causal)


@tilelink.operator("b g Q D, b S/R g D, b S/R g D -> b g Q D")
def flash_decode(q: Any, keys: Any, values: Any, *, splits: int = 2) -> Any:
    accs, tops, totals = partial_decode(q, keys, values, c=splits)
    return merge(share(accs, name="share_accs"), share(tops, name="share_tops"), share(totals, name="share_totals"))


def elsewhere(owner: str) -> Any:
    """Rows to the ranks that `owner` names, twice their values and the number of the rank back."""

    @tilelink.operator("M/R K -> M/R K", name="elsewhere")
    def op(x: Any) -> Any:
        there, back = tilelink.symmetric("M K", owner=owner), tilelink.symmetric("M/R K")
        send(x, there)
        work(there, back)
        return keep(back)

    return op
