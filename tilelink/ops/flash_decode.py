"""Decoding over a cache of keys and values that is split over the ranks (arXiv:2503.20313, section 5; split keys)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.attention import exponent, soften
from tilelink.ops.plain import gathered


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


def parts_of(tiles: int, positions: int) -> int:
    """Into how many parts to split each of so many sequences' groups of heads: rounds of 128 SMs per part, and a little for
    what each part more costs when all are put together."""
    most = max(1, min(32, positions // 1024))
    return min(range(1, most + 1), key=lambda c: -(-tiles * c // 128) / c * (1 + c / 64))


def looking(positions: int) -> Any:
    """How parts of so many positions are looked at: short ones by few warps, which meet sooner."""
    return tilelink.sms(S=64, num_warps=4 if positions <= 4096 else 8, num_stages=4)


def putting_together(groups: int, queries: int) -> Any:
    """How parts are put together, by the workers that have looked at them: in some 128 tiles, or one for each query."""
    rows = min(queries, groups * queries // 128)
    return tilelink.sms(Q=1 << max(0, rows - 1).bit_length(), joins="partial_decode")


@tilelink.operator("b g Q D, b S/R g D, b S/R g D, b i32 <S+1 -> b g Q D")
def flash_decode(q: Any, keys: Any, values: Any, lengths: Any, *, splits: int = 0, scale: float | None = None) -> Any:
    """Attention of one new position per sequence over a cache: `softmax(q @ keys.T * scale) @ values`.

    Args:
        q: the queries, `[b, g, Q, D]`: `Q` of each of `g` groups of heads; alike on all ranks.
        keys: this rank's positions of the cache, `[b, S/R, g, D]`, rows contiguous.
        values: as `keys`.
        lengths: positions that are there, `[b]` of i32, from 1 to `S`; alike on all ranks.
        splits: parts of a rank's positions that are looked at side by side; default: so many that 128 SMs have work of
            one size, up to 32, and not below some hundred positions.
        scale: of the scores, positive; default: `D ** -0.5`.

    Returns:
        `[b, g, Q, D]` in the dtype of `q`, alike on all ranks; partial sums travel in fp32.
    """
    groups = int(q.size("b")) * int(q.size("g"))
    parts = splits if splits else parts_of(groups, int(keys.size("S")))
    means = tilelink.symmetric("b g Q R c D", like=q, dtype="f32", c=parts)
    logs = tilelink.symmetric("b g Q R c", like=means)
    length = int(keys.size("S")) // (parts * int(means.size("R")))
    partial_decode(q, keys, values, lengths, means, logs, scale=exponent(q, scale), schedule=looking(length))
    return merge(q, means, logs, schedule=putting_together(groups, int(q.size("Q"))))


@flash_decode.reference
def reference(
    q: Any, keys: Any, values: Any, lengths: Any, *, splits: int = 0, scale: Any = None, group: Any = None
) -> Any:
    """The same in plain torch, one after the other."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    k, v = (gathered(t.transpose(0, 1), group).permute(1, 2, 0, 3) for t in (keys, values))
    there = torch.arange(k.shape[2], device=q.device) < lengths[:, None]
    return attend(q, k, v, attn_mask=there[:, None, None, :], scale=scale)
