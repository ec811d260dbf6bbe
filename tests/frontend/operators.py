"""Programs and operators for the frontend's tests: the library's and those of `tests/operators/language.py` as they are,
and some that only these tests need. Nothing is run here.
"""

from __future__ import annotations

import tilelink.language as tl
from tests.operators.language import glu, matmul_rs, ring_gather, scatter_dma  # noqa: F401
from tilelink import ops
from tilelink.frontend import inline, parse_signature, program, symmetric
from tilelink.ops.ag_moe import grouped
from tilelink.ops.gemm_rs_ring import ring  # noqa: F401  # for texts of programs
from tilelink.ops.moe_rs import combine, grouped_down
from tilelink.ops.programs import gather, matmul, move, reduce, scatter, share  # noqa: F401

NEG = -1e30


# ---------------------------------------------------------------------------------------------------------------- attention
@program("S/R h D, T g D, T g D -> S/R h D")
def flash(q, keys, values, out, *, causal=True):
    s, h, _ = tl.tile_id(out)
    g = h * tl.size(keys, 1) // tl.size(q, 1)
    rows, query = tl.tile_range(out, s), tl.tile_load(q, (s, h))
    top, total, acc = (
        tl.full([rows.shape[0]], NEG, tl.float32),
        tl.zeros([rows.shape[0]], tl.float32),
        tl.zeros(query.shape, tl.float32),
    )
    for t in tl.tiles(keys, axis=0, stop=tl.tile_end(out, s) if causal else None):
        tl.consumer_tile_wait(keys, (t, g))
        tl.consumer_tile_wait(values, (t, g))
        cols = tl.tile_range(keys, t)
        keep = (cols < tl.tile_end(keys, t))[None, :] & ((cols[None, :] <= rows[:, None]) | (not causal))
        score = tl.where(keep, tl.dot(query, tl.trans(tl.tile_load(keys, (t, g)))), NEG)
        new = tl.maximum(top, tl.max(score, 1))
        p, old = tl.exp(score - new[:, None]), tl.exp(top - new)
        acc = tl.dot(p, tl.tile_load(values, (t, g)), acc * old[:, None])
        total, top = total * old + tl.sum(p, 1), new
    tl.tile_store(out, (s, h), acc / total[:, None])


@program("b g Q D, b S g D, b S g D -> c b g Q D f32, c b g Q f32, c b g Q f32")
def partial_decode(q, keys, values, accs, tops, totals):
    c, b, g, _, _ = tl.tile_id(accs)
    query = tl.tile_load(q, (b, g))
    top, total, acc = (
        tl.full([query.shape[0]], NEG, tl.float32),
        tl.zeros([query.shape[0]], tl.float32),
        tl.zeros(query.shape, tl.float32),
    )
    for t in tl.tiles(keys, axis=1, part=(c, tl.size(accs, 0))):
        keep = (tl.tile_range(keys, t) < tl.tile_end(keys, t))[None, :]
        score = tl.where(keep, tl.dot(query, tl.trans(tl.tile_load(keys, (b, t, g)))), NEG)
        new = tl.maximum(top, tl.max(score, 1))
        p, old = tl.exp(score - new[:, None]) * keep, tl.exp(top - new)
        acc = tl.dot(p, tl.tile_load(values, (b, t, g)), acc * old[:, None])
        total, top = total * old + tl.sum(p, 1), new
    tl.tile_store(accs, (c, b, g), acc)
    tl.tile_store(tops, (c, b, g), top)
    tl.tile_store(totals, (c, b, g), total)
    tl.producer_tile_notify(accs, (c, b, g))
    tl.producer_tile_notify(tops, (c, b, g))
    tl.producer_tile_notify(totals, (c, b, g))


@program("s c b g Q D, s c b g Q, s c b g Q -> b g Q D")
def merge(accs, tops, totals, out):
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


# ------------------------------------------------------------------------------------------------------------------- routing
@program("T k i32 <e -> e i32")
def count(choice, counts):
    """How many choices fall on each expert. A choice of −1 falls on none."""
    e, n = tl.tile_id(counts), 0
    for t in tl.tiles(choice, axis=0):
        tl.consumer_tile_wait(choice, t)
        n += tl.sum((tl.tile_load(choice, t, other=-1) == e).to(tl.int32))
    tl.tile_store(counts, e, n)
    tl.producer_tile_notify(counts, e)


@program("T k i32 <e, e i32 -> T*k i32 <T, e+1 i32 offsets, T k i32 permutation")
def place(choice, counts, order, start, slot):
    e = tl.tile_id(counts)
    tl.consumer_tile_wait(counts)
    base = tl.sum(tl.where(tl.tile_range(counts) < e, tl.tile_load(counts), 0))
    for t in tl.tiles(choice, axis=0):
        tl.consumer_tile_wait(choice, t)
        chosen = tl.tile_load(choice, t, other=-1)
        one = (chosen == e).to(tl.int32)
        at = tl.where(tl.ravel(one) > 0, base + tl.cumsum(tl.ravel(one)) - 1, -1)
        tl.tile_store(order, at, tl.ravel(tl.tile_range(choice, t)[:, None] + 0 * one))
        tl.tile_store(slot, t, tl.reshape(at, one.shape), mask=chosen == e)
        base += tl.sum(one)
    tl.tile_store(start, e + 1, base)
    if e == 0:
        tl.tile_store(start, 0, 0)
    tl.producer_tile_notify(order)
    tl.producer_tile_notify(start)
    tl.producer_tile_notify(slot)


# --------------------------------------------------------------------------------------------------------- expert parallelism
@program("T H, P i32, e+1 i32, e R/R i32 -> e/R R C H, e/R R i32")
def dispatch(x, order, start, mine, inbox, counts):
    e, s = tl.tile_id(mine)
    tl.consumer_tile_wait(order)
    tl.consumer_tile_wait(start)
    first, n = tl.tile_load(start, e), tl.tile_load(start, e + 1) - tl.tile_load(start, e)
    for c in tl.tiles(inbox, axis=2, stop=n):
        at = tl.where(tl.tile_range(inbox, c) < n, tl.tile_range(inbox, c), -1)
        who = tl.tile_load(order, tl.where(at >= 0, first + at, -1), other=-1)
        tl.tile_push_data(inbox, (e, s, at), tl.tile_load(x, who))
    tl.tile_push_data(counts, (e, s), n)
    tl.producer_tile_notify(inbox, (e, s))
    tl.producer_tile_notify(counts, (e, s))


@program("e r C H, e r i32, e H N -> e r C N")
def expert_matmul(inbox, sizes, weight, out):
    e, r, c, n = tl.tile_id(out)
    tl.consumer_tile_wait(sizes, (e, r))
    if tl.tile_begin(out, c) < tl.tile_load(sizes, (e, r)):
        tl.consumer_tile_wait(inbox, (e, r, c))
        acc = tl.zeros(tl.tile_shape(out), tl.float32)
        for k in tl.tiles(inbox, axis=3):
            acc = tl.dot(tl.tile_load(inbox, (e, r, c, k)), tl.tile_load(weight, (e, k, n)), acc)
        tl.tile_store(out, (e, r, c, n), acc)
    tl.producer_tile_notify(out, (e, r, c, n))


@program("e/R R C H, e/R R i32 -> e R/R C H")
def send_back(y, counts, back):
    e, s, c, h = tl.tile_id(y)
    tl.consumer_tile_wait(y, (e, s, c, h))
    tl.consumer_tile_wait(counts, (e, s))
    if tl.tile_begin(y, c) < tl.tile_load(counts, (e, s)):
        tl.tile_push_data(back, (e, s, c, h), tl.tile_load(y, (e, s, c, h)))
    tl.producer_tile_notify(back, (e, s, c, h))


@program("e C H, T K i32, T K i32, e+1 i32, T K -> T H")
def collect(back, choice, slot, start, gate, out):
    t, h = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    tl.consumer_tile_wait(slot)
    tl.consumer_tile_wait(start)
    for k in tl.static_range(tl.size(choice, 1)):
        e = tl.tile_load(choice, (t, k), other=-1)
        at = tl.tile_load(slot, (t, k)) - tl.tile_load(start, e)
        tl.consumer_tile_wait(back, (e, at, h))
        acc += tl.tile_load(gate, (t, k))[:, None] * tl.tile_load(back, (e, at, h))
    tl.tile_store(out, (t, h), acc)


# ------------------------------------------------------------------------------------------- operators: signature and body
class Operator:
    """What stands for the pipeline's object: it only inlines."""

    def __init__(self, signature, fn):
        self.signature = parse_signature(signature)
        self.fn = fn
        self.name = fn.__name__

    def __call__(self, *tensors, name=None, **keywords):
        return inline(name or self.name, self.fn, self.signature, tensors, keywords)


def operator(signature):
    return lambda fn: Operator(signature, fn)


def of_library(op):
    return Operator(str(op.signature), op.fn)


ag_gemm, gemm_rs, gemm_rs_ring = map(of_library, (ops.ag_gemm, ops.gemm_rs, ops.gemm_rs_ring))


@operator("M/R K, K N -> M N")
def ag_gemm_ring(x, weight):
    return matmul(ring_gather(x), weight)


@operator("M K/R, K/R N -> M/R N")
def gemm_rs_epilogue(x, weight):
    _, out = matmul_rs(x, weight, symmetric("R M/R N"))
    return out


@operator("M N -> M N")
def all_reduce(x, *, shots=2):
    return reduce(share(x)) if shots == 1 else gather(reduce(scatter(x)))


@operator("M/R K, K I/R, K I/R, I/R K -> M/R K")
def mlp(x, gate, up, down):
    return reduce(scatter(matmul(glu(gather(x), gate, up), down)))


@operator("M/R K, K I/R, I/R K -> M/R K")
def mlp_composed(x, up, down):
    return gemm_rs(ag_gemm(x, up), down)


@operator("T/R H, T/R K i32, e H I/R -> P I/R, e+1 i32, T K i32")
def ag_moe(tokens, choice, weight):
    choices = gather(choice, name="gather_choice")
    order, start, slot = place(choices, count(choices, e=weight.size("e")))
    return grouped(gather(tokens), order, start, weight), start, slot


@operator("T/R H, T/R K i32, T/R K f32, e H I/R, e I/R H -> T/R H")
def moe_layer(tokens, choice, gate, up, down):
    hidden, start, slot = ag_moe(tokens, choice, up)
    gates = gather(gate, name="gather_gate")
    return reduce(scatter(combine(grouped_down(hidden, start, down), slot, gates)))


@operator("S/R h D, S/R g D, S/R g D -> S/R h D")
def ag_attention(q, k, v, *, causal=True):
    return flash(q, gather(k, name="gather_k"), gather(v, name="gather_v"), causal=causal)


@operator("b g Q D, b S/R g D, b S/R g D -> b g Q D")
def flash_decode(q, keys, values, *, splits=8):
    accs, tops, totals = partial_decode(q, keys, values, c=splits)
    return merge(share(accs, name="share_accs"), share(tops, name="share_tops"), share(totals, name="share_totals"))


@operator("T/R H, T/R K i32 -> e/R R C H, e/R R i32, T/R K i32, e+1 i32")
def ep_dispatch(x, choice, *, experts, capacity):
    mine = count(choice, e=experts)
    order, start, slot = place(choice, mine)
    inbox, counts = dispatch(x, order, start, mine, C=capacity, e=experts)
    return inbox, counts, slot, start


@operator("e/R R C H, e/R R i32, T/R K i32, T/R K i32, e+1 i32, T/R K -> T/R H")
def ep_combine(y, counts, choice, slot, start, gate):
    return collect(send_back(y, counts), choice, slot, start, gate)


@operator("T/R H, T/R K i32, T/R K, e/R H H -> T/R H")
def ep_layer(x, choice, gate, weight, *, capacity):
    inbox, counts, slot, start = ep_dispatch(x, choice, experts=weight.size("e"), capacity=capacity)
    y = expert_matmul(inbox, counts, weight)
    return ep_combine(y, counts, choice, slot, start, gate)
