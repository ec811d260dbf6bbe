"""Attention with keys and values that go round a ring, on `peer_tile_*` (arXiv:2310.01889; arXiv:2503.20313, figure 4)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.ag_attention import reference
from tilelink.ops.attention import check_heads, exponent, flash, tiles


@tilelink.program("T/R g D -> R/R T g D")
def hand_on(shard: Any, rows: Any) -> None:
    """Keep one's own rows, and what the next rank sends, and send both on to the rank before, up to the last in line."""
    s, t, g, _ = tl.tile_id(rows)
    owner = tl.rank_of(shard, t)
    if owner == s:
        tl.consumer_tile_wait(shard, (t, g))
        tl.tile_store(rows, (s, t, g), tl.tile_load(shard, (t, g)))
        tl.producer_tile_notify(rows, (s, t, g))
    else:
        tl.peer_tile_wait(rows, (s, t, g), s + 1)
    if owner != s - 1:
        tl.tile_push_data(rows, (s - 1, t, g), tl.tile_load(rows, (s, t, g)))
        tl.peer_tile_notify(rows, (s - 1, t, g), s - 1)


PASS = tilelink.sms(4, T=64, order="ring")


@tilelink.operator(
    "S/R h D, S/R g D, S/R g D -> S/R h D",
    schedule={"hand_on_k": PASS, "hand_on_v": PASS},
)
def ring_attention(q: Any, k: Any, v: Any, *, causal: bool = True, scale: float | None = None) -> Any:
    """`ag_attention` for ranks with a good link to their neighbours only: each sends to one rank and hears from one.

    Every rank keeps all keys and values that came by, `2 * S * g * D` elements a slot: the ring saves links and not memory.

    Args, returns: as of `ag_attention`.
    """
    check_heads(q, k)
    keys, values = hand_on(k, name="hand_on_k"), hand_on(v, name="hand_on_v")
    return flash(q, keys, values, causal=causal, scale=exponent(q, scale), schedule=tiles(q))


ring_attention.reference(reference)
