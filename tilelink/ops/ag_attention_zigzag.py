"""Causal attention whose rows are dealt out so that all ranks have as much to do (arXiv:2503.20313, section 3: f_R as a map)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.ag_attention import reference
from tilelink.ops.attention import check_heads, exponent, soften, tiles
from tilelink.ops.programs import gather, move

deal = tilelink.program("S/R ..., S ...", name="deal")(move)
MOVES = {"deal": tilelink.copy_engine(S=128), "settle": tilelink.sms(S=128)}


@tilelink.program("S h D, T g D, T g D, S/R h D")
def flash_there(q: Any, keys: Any, values: Any, back: Any, *, scale: float = 1.0) -> None:
    """Some rows of a head, of those that were dealt to this rank; the result goes to whoever has these positions."""
    s, h, _ = tl.tile_id(q)
    g = h * tl.size(keys, 1) // tl.size(q, 1)
    tl.consumer_tile_wait(q, (s, h))
    rows, query = tl.tile_range(q, s), tl.tile_load(q, (s, h))
    top, total = tl.full([rows.shape[0]], -1e30, tl.float32), tl.zeros([rows.shape[0]], tl.float32)
    acc = tl.zeros(query.shape, tl.float32)
    for t in tl.tiles(keys, axis=0, stop=tl.tile_end(q, s)):
        tl.consumer_tile_wait(keys, (t, g))
        tl.consumer_tile_wait(values, (t, g))
        key, value = tl.tile_load(keys, (t, g)), tl.tile_load(values, (t, g))
        score = tl.dot(query, tl.trans(key))
        weight, factor, top, total = soften(score, tl.tile_mask(keys, t, stop=rows + 1), scale, top, total)
        acc = tl.dot(weight.to(query.dtype), value, acc * factor[:, None])
    tl.tile_push_data(back, (s, h), acc / total[:, None])
    tl.producer_tile_notify(back, (s, h))


@tilelink.program("S h D -> S h D")
def settle(x: Any, out: Any) -> None:
    """Out of shared memory, where pushed rows arrive."""
    s, h, _ = tl.tile_id(out)
    tl.consumer_tile_wait(x, (s, h))
    tl.tile_store(out, (s, h), tl.tile_load(x, (s, h)))


@tilelink.operator("S/R h D, S/R g D, S/R g D -> S/R h D", schedule=MOVES)
def ag_attention_zigzag(q: Any, k: Any, v: Any, *, chunk: int = 128, scale: float | None = None) -> Any:
    """Causal `ag_attention` in which chunks of rows are dealt out to and fro over the ranks, and results sent back.

    Args, returns: as of `ag_attention`; a rank's part is a multiple of `chunk` rows, and tiles of `S` are not larger.
    """
    check_heads(q, k)
    turn, back = f"s // {chunk} % (2 * R)", tilelink.symmetric("S/R h D", like=q)
    there = tilelink.symmetric("S h D", like=q, owner=f"s, h, d -> {turn} + ({turn}) // R * (2 * R - 1 - 2 * ({turn}))")
    deal(q, there)
    keys, values = gather(k, name="gather_k"), gather(v, name="gather_v")
    flash_there(there, keys, values, back, scale=exponent(q, scale), schedule=tiles(q, "row"))
    return settle(back)


ag_attention_zigzag.reference(reference)
