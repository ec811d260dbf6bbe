"""Attention over packed sequences of any lengths, split over the ranks wherever that cuts (arXiv:2503.20313, section 5)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.ag_attention import plain
from tilelink.ops.attention import check_heads, exponent, soften, tiles
from tilelink.ops.programs import gather

FAR = tl.constexpr(2147483647)


@tilelink.program("S/R h D, T g D, T g D, e+1 i32 offsets -> S/R h D")
def flash_varlen(q: Any, keys: Any, values: Any, starts: Any, out: Any, *, causal: bool, scale: float = 1.0) -> None:
    """Some rows of a head, and of the keys those of the sequences that the rows are in."""
    s, h, _ = tl.tile_id(out)
    g = h * tl.size(keys, 1) // tl.size(q, 1)
    tl.consumer_tile_wait(q, (s, h))
    rows, query = tl.tile_range(out, s), tl.tile_load(q, (s, h))
    tl.consumer_tile_wait(starts)
    table = tl.tile_load(starts, other=FAR)[None, :]
    behind = table > rows[:, None]
    begin, end = tl.max(tl.where(behind, 0, table), 1), tl.min(tl.where(behind, table, FAR), 1)
    last = tl.tile_end(out, s) if causal else tl.minimum(tl.max(end, 0), tl.size(keys, 0))
    top, total = tl.full([rows.shape[0]], -1e30, tl.float32), tl.zeros([rows.shape[0]], tl.float32)
    acc = tl.zeros(query.shape, tl.float32)
    for t in tl.tiles(keys, axis=0, start=tl.min(begin, 0), stop=last):
        tl.consumer_tile_wait(keys, (t, g))
        tl.consumer_tile_wait(values, (t, g))
        keep = tl.tile_mask(keys, t, start=begin, stop=tl.minimum(end, rows + 1) if causal else end)
        key, value = tl.tile_load(keys, (t, g)), tl.tile_load(values, (t, g))
        score = tl.dot(query, tl.trans(key))
        weight, factor, top, total = soften(score, keep, scale, top, total)
        acc = tl.dot(weight.to(query.dtype), value, acc * factor[:, None])
    tl.tile_store(out, (s, h), acc / total[:, None])


@tilelink.operator("S/R h D, S/R g D, S/R g D, e+1 i32 offsets -> S/R h D")
def ag_attention_varlen(q: Any, k: Any, v: Any, starts: Any, *, causal: bool = True, scale: float | None = None) -> Any:
    """`ag_attention` in which positions see their own sequence only; `starts`, `[e+1]` of i32 and alike on all ranks, says
    where each of `e` sequences begins, and where the last ends, which is `S` (`cu_seqlens`). Values that are not finite may make
    rows of sequences beside theirs no numbers."""
    check_heads(q, k)
    keys, values = gather(k, name="gather_k"), gather(v, name="gather_v")
    return flash_varlen(q, keys, values, starts, causal=causal, scale=exponent(q, scale), schedule=tiles(q))


@ag_attention_varlen.reference
def reference(q: Any, k: Any, v: Any, starts: Any, *, causal: bool = True, scale: Any = None, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""

    def keep(rows: Any, columns: Any) -> Any:
        alike = (starts[1:, None, None] <= rows).sum(0) == (starts[1:, None, None] <= columns).sum(0)
        return alike & ((columns <= rows) | (not causal))

    return plain(q, k, v, keep, scale, group)
