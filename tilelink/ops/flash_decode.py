"""Decoding over a cache of keys and values that is split over the ranks (arXiv:2503.20313, section 5; split keys)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.attention import exponent
from tilelink.ops.decoding import merge, partial_decode
from tilelink.ops.parts import gathered


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
