"""The two programs of `flash_decode`: parts of the keys, and what they come to together."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.attention import soften


@tilelink.program(
    "b g Q D, b S/R g D, b S/R g D, b i32 <S+1, b g Q R c D f32, b g Q R c f32 -> b g Q R/R c f32",
)
def partial_decode(
    q: Any, keys: Any, values: Any, lengths: Any, means: Any, logs: Any, part: Any, *, scale: float = 1.0
) -> None:
    """The `c`-th part of this rank's keys, to everyone: weighted values, and the logarithm of what the weights add up to."""
    b, g, n, r, c = tl.tile_id(part)
    tl.consumer_tile_wait(lengths)
    tl.consumer_tile_wait(q, (b, g, n))
    query, length = tl.tile_load(q, (b, g, n)), tl.tile_load(lengths, b)
    top, total = tl.full([query.shape[0]], -1e30, tl.float32), tl.zeros([query.shape[0]], tl.float32)
    acc = tl.zeros(query.shape, tl.float32)
    for t in tl.tiles(keys, axis=1, stop=length, part=(c, tl.size(part, 4))):
        tl.consumer_tile_wait(keys, (b, t, g))
        tl.consumer_tile_wait(values, (b, t, g))
        keep = tl.tile_mask(keys, t)
        key, value = tl.tile_load(keys, (b, t, g)), tl.tile_load(values, (b, t, g))
        score = tl.dot(query, tl.trans(key))
        weight, factor, top, total = soften(score, keep, scale, top, total)
        acc = tl.dot(weight.to(query.dtype), value, acc * factor[:, None])
    # The greatest weight is 1; without a position there is none, and the part counts for nothing beside `top`.
    total = tl.maximum(total, 1.0)
    tl.tile_push_data(means, (b, g, n, r, c), acc / total[:, None])
    tl.tile_push_data(logs, (b, g, n, r, c), top + tl.log2(total))
    tl.producer_tile_notify(means, (b, g, n, r, c))
    tl.producer_tile_notify(logs, (b, g, n, r, c))


@tilelink.program("b g Q D, b g Q s P D f32, b g Q s P f32 -> b g Q D")
def merge(q: Any, means: Any, logs: Any, out: Any) -> None:
    """All parts of all ranks, each as much as its weights are of all weights; of the dtype of `q`."""
    b, g, n, _ = tl.tile_id(out)
    tl.consumer_tile_wait(logs, (b, g, n))
    parts = tl.tile_load(logs, (b, g, n), other=-1e30)
    top = tl.max(tl.max(parts, 2), 1)
    total = tl.sum(tl.sum(tl.exp2(parts - top[:, None, None]), 2), 1)
    acc = tl.zeros([parts.shape[0], parts.shape[2], tl.tile_range(out, axis=3).shape[0]], tl.float32)
    for s in tl.tiles(means, axis=3):
        tl.consumer_tile_wait(means, (b, g, n, s))
        weight = tl.exp2(tl.tile_load(logs, (b, g, n, s), other=-1e30) - top[:, None])
        acc += tl.tile_load(means, (b, g, n, s)) * weight[:, :, None]
    tl.tile_store(out, (b, g, n), tl.sum(acc, 1) / total[:, None])
    tl.producer_tile_notify(out, (b, g, n))
