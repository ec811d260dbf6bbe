"""Attention over sequences that are split over the ranks, whose keys are gathered meanwhile (arXiv:2503.20313, section 5)."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ops.attention import check_heads, exponent, flash, placed
from tilelink.ops.plain import gathered
from tilelink.ops.programs import gather


@tilelink.operator("S/R h D, S/R g D, S/R g D -> S/R h D")
def ag_attention(q: Any, k: Any, v: Any, *, causal: bool = True, scale: float | None = None) -> Any:
    """`softmax(q @ k.T * scale) @ v` per head, over the keys of all ranks; `h` is a multiple of `g` (grouped queries).

    Args:
        q: this rank's positions, `[S/R, h, D]`.
        k: this rank's keys, `[S/R, g, D]`, contiguous.
        v: this rank's values, `[S/R, g, D]`, contiguous.
        causal: position s sees positions up to s, counted over all ranks.
        scale: of the scores, positive; default: `D ** -0.5`.

    Returns:
        `[S/R, h, D]` in the dtype of `q`; scores and sums are fp32. Every rank keeps all keys and values meanwhile. With
        `causal` the last ranks have the most to do: `ag_attention_zigzag` spreads the rows.

    Raises:
        ValueError: `h` is no multiple of `g`; the scale is not positive.

    On GPUs torch's attention takes each rank's keys as they arrive, where it can (heads of multiples of 8 elements up to
    256 in bf16 or fp16), and else `flash`.
    """
    check_heads(q, k)
    keys, values = gather(k, name="gather_k"), gather(v, name="gather_v")
    return flash(q, keys, values, causal=causal, scale=exponent(q, scale), schedule=placed(q))


def plain(q: Any, k: Any, v: Any, keep: Any, scale: float | None, group: Any) -> Any:
    """Attention over everyone's keys in plain torch; `keep(rows, columns)` says which global positions see which."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import scaled_dot_product_attention as attend

    everyone = [gathered(t, group) for t in (k, v)]
    rows = torch.arange(len(q), device=q.device)[:, None] + dist.get_rank(group) * len(q)
    mask = keep(rows, torch.arange(len(everyone[0]), device=q.device)[None, :])
    turned = [t.transpose(0, 1) for t in (q, *everyone)]
    return attend(*turned, attn_mask=mask, scale=scale, enable_gqa=True).transpose(0, 1).contiguous()


@ag_attention.reference
def reference(
    q: Any, k: Any, v: Any, *, causal: bool = True, scale: Any = None, chunk: int = 0, group: Any = None
) -> Any:
    """The same in plain torch, one after the other."""
    return plain(q, k, v, lambda rows, columns: (columns <= rows) | (not causal), scale, group)
