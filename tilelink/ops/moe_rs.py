"""Grouped matmul, top-k weighted sum and reduce-scatter, overlapped (arXiv:2503.20313, section 5: MoE, second half)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops import plain
from tilelink.ops.programs import reduce, scatter
from tilelink.ops.reduce_scatter import reference as reduce_scattered


@tilelink.program("P I, e+1 i32 offsets, e I H -> P/start H")
def grouped_down(hidden: Any, start: Any, weight: Any, out: Any) -> None:
    """One tile of the rows of one expert."""
    p, h = tl.tile_id(out)
    e = tl.segment(out, p)
    tl.consumer_tile_wait(hidden, p)
    tl.consumer_tile_wait(weight, e)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(hidden, axis=1):
        acc = tl.dot(tl.tile_load(hidden, (p, k)), tl.tile_load(weight, (e, k, h)), acc)
    tl.tile_store(out, (p, h), acc)
    tl.producer_tile_notify(out, (p, h))


@tilelink.program("P H, T k i32 permutation, T k f32 -> T H")
def combine(expert: Any, slot: Any, score: Any, out: Any) -> None:
    """The weighted sum of what a token's experts made, in fp32."""
    t, h = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    tl.consumer_tile_wait(slot)
    tl.consumer_tile_wait(score, t)
    for k in tl.static_range(tl.size(slot, 1)):
        at = tl.tile_load(slot, (t, k), other=-1)
        tl.consumer_tile_wait(expert, (at, h))
        weight = tl.where(at < 0, 0, tl.tile_load(score, (t, k)))
        acc += weight[:, None] * tl.tile_load(expert, (at, h))
    tl.tile_store(out, (t, h), acc)
    tl.producer_tile_notify(out, (t, h))


@tilelink.operator(
    "T*k I/R, e+1 i32 offsets, T k i32 permutation, e I/R H, T k f32 -> T/R H",
    schedule={
        # One after the other, each on all SMs (`bench-moe_rs-h200-4.json`): beside the product, 12 workers that sum took the
        # longest by far, and 32 still did, on two GPUs.
        "grouped_down": tilelink.sms(P=128, H=256, I=64, order="group 8", num_warps=8, num_stages=3),
        "combine": tilelink.sms(T=16, H=512, order="ring+1", num_warps=8),
        "scatter": tilelink.fused("combine"),
    },
)
def moe_rs(hidden: Any, start: Any, slot: Any, weight: Any, score: Any) -> Any:
    """Rows sorted by expert through their experts, summed for each token, and added up over the ranks.

    Args:
        hidden: this rank's columns, `[T*k, I/R]`, a row for each choice of all ranks, sorted by expert.
        start: where each expert's rows begin, `[e+1]` int32, from 0, sorted.
        slot: the row of each choice, `[T, k]` int32; −1: the choice adds nothing.
        weight: this rank's rows of every expert, `[e, I/R, H]`.
        score: the weight of each choice, `[T, k]` fp32.

    Returns:
        this rank's tokens, `[T/R, H]` in the dtype of `hidden`; partial sums travel in that dtype.
    """
    return reduce(scatter(combine(grouped_down(hidden, start, weight), slot, score)))


@moe_rs.reference
def reference(hidden: Any, start: Any, slot: Any, weight: Any, score: Any, *, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    return reduce_scattered(plain.summed(plain.grouped(hidden, start, weight), slot, score), group=group)
