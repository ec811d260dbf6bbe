"""The two programs of `flash_decode`: parts of the keys, and what they come to together."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.attention import soften


@tilelink.program(
    "b g Q D, b S/R g D, b S/R g D, b i32 <S+1, b g R c Q D f32, b g R c Q f32 -> b g R/R c Q f32",
)
def partial_decode(
    q: Any, keys: Any, values: Any, lengths: Any, means: Any, logs: Any, part: Any, *, scale: float
) -> None:
    """The `c`-th part of this rank's keys, to everyone: weighted values, and the logarithm of what the weights add up to."""
    b, g, r, c, _ = tl.tile_id(part)
    tl.consumer_tile_wait(lengths)
    query, length = tl.tile_load(q, (b, g)), tl.tile_load(lengths, b)
    top, total = tl.full([query.shape[0]], -1e30, tl.float32), tl.zeros([query.shape[0]], tl.float32)
    acc = tl.zeros(query.shape, tl.float32)
    for t in tl.tiles(keys, axis=1, stop=length, part=(c, tl.size(part, 3))):
        keep = (tl.tile_range(keys, t) < tl.tile_end(keys, t))[None, :]
        score = tl.dot(query, tl.trans(tl.tile_load(keys, (b, t, g))))
        weight, factor, top, total = soften(score, keep, scale, top, total)
        acc = tl.dot(weight.to(query.dtype), tl.tile_load(values, (b, t, g)), acc * factor[:, None])
    # The greatest weight is 1; without a position there is none, and the part counts for nothing beside `top`.
    total = tl.maximum(total, 1.0)
    tl.tile_push_data(means, (b, g, r, c), acc / total[:, None])
    tl.tile_push_data(logs, (b, g, r, c), top + tl.log2(total))
    tl.producer_tile_notify(means, (b, g, r, c))
    tl.producer_tile_notify(logs, (b, g, r, c))


@tilelink.program("b g Q D, b g s P Q D f32, b g s P Q f32 -> b g Q D")
def merge(q: Any, means: Any, logs: Any, out: Any) -> None:
    """All parts of all ranks, each as much as its weights are of all weights; of the dtype of `q`."""
    b, g, _, _ = tl.tile_id(out)
    top = tl.full([tl.tile_range(out, axis=2).shape[0]], -1e30, tl.float32)
    total, acc = tl.zeros(top.shape, tl.float32), tl.zeros(tl.tile_shape(out), tl.float32)
    tl.consumer_tile_wait(means, (b, g))
    tl.consumer_tile_wait(logs, (b, g))
    for s in tl.static_range(tl.size(means, 2)):
        parts = tl.tile_load(logs, (b, g, s), other=-1e30)
        new = tl.maximum(top, tl.max(parts, 0))
        factor, weight = tl.exp2(top - new), tl.exp2(parts - new[None, :])
        acc = acc * factor[:, None] + tl.sum(tl.tile_load(means, (b, g, s)) * weight[:, :, None], 0)
        total, top = total * factor + tl.sum(weight, 0), new
    tl.tile_store(out, (b, g), acc / total[:, None])
    tl.producer_tile_notify(out, (b, g))
