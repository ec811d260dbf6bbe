"""The two programs of `flash_decode`: parts of the keys, and what they come to together."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.attention import soften


@tilelink.program(
    "b g Q D, b S/R g D, b S/R g D, b i32 <S+1, R c b g Q D f32, R c b g Q f32, R c b g Q f32 -> R/R c b g Q f32"
)
def partial_decode(
    q: Any, keys: Any, values: Any, lengths: Any, accs: Any, tops: Any, totals: Any, part: Any, *, scale: float
) -> None:
    """The `c`-th part of this rank's keys, to everyone: weighted values, the greatest score, and the sum of the weights."""
    r, c, b, g, _ = tl.tile_id(part)
    tl.consumer_tile_wait(lengths)
    query, length = tl.tile_load(q, (b, g)), tl.tile_load(lengths, b)
    top, total = tl.full([query.shape[0]], -1e30, tl.float32), tl.zeros([query.shape[0]], tl.float32)
    acc = tl.zeros(query.shape, tl.float32)
    for t in tl.tiles(keys, axis=1, part=(c, tl.size(part, 1))):
        keep = (tl.tile_range(keys, t) < tl.minimum(tl.tile_end(keys, t), length))[None, :]
        score = tl.dot(query, tl.trans(tl.tile_load(keys, (b, t, g))))
        weight, factor, top, total = soften(score, keep, scale, top, total)
        acc = tl.dot(weight.to(query.dtype), tl.tile_load(values, (b, t, g)), acc * factor[:, None])
    tl.tile_push_data(accs, (r, c, b, g), acc)
    tl.tile_push_data(tops, (r, c, b, g), top)
    tl.tile_push_data(totals, (r, c, b, g), total)
    tl.producer_tile_notify(accs, (r, c, b, g))
    tl.producer_tile_notify(tops, (r, c, b, g))
    tl.producer_tile_notify(totals, (r, c, b, g))


@tilelink.program("b g Q D, s c b g Q D f32, s c b g Q f32, s c b g Q f32 -> b g Q D")
def merge(q: Any, accs: Any, tops: Any, totals: Any, out: Any) -> None:
    """All parts of all ranks, each weighted by what its greatest score is to the greatest of all; of the dtype of `q`."""
    b, g, _, _ = tl.tile_id(out)
    top = tl.full([tl.tile_range(out, axis=2).shape[0]], -1e30, tl.float32)
    total, acc = tl.zeros(top.shape, tl.float32), tl.zeros(tl.tile_shape(out), tl.float32)
    for s in tl.tiles(accs, axis=0):
        for c in tl.tiles(accs, axis=1):
            tl.consumer_tile_wait(accs, (s, c, b, g))
            tl.consumer_tile_wait(tops, (s, c, b, g))
            tl.consumer_tile_wait(totals, (s, c, b, g))
            one = tl.tile_load(tops, (s, c, b, g))
            new = tl.maximum(top, one)
            factor, weight = tl.exp2(top - new), tl.exp2(one - new)
            acc = acc * factor[:, None] + tl.tile_load(accs, (s, c, b, g)) * weight[:, None]
            total, top = total * factor + tl.tile_load(totals, (s, c, b, g)) * weight, new
    tl.tile_store(out, (b, g), acc / total[:, None])
    tl.producer_tile_notify(out, (b, g))
