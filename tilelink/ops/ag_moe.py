"""All-gather, gathering of tokens and grouped matmul, overlapped (arXiv:2503.20313, section 5: MoE, first half)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops import plain
from tilelink.ops.programs import gather
from tilelink.ops.routing import ROUTED, tables


@tilelink.program("T H, P i32 <T, e+1 i32 offsets, e H N -> P/start N")
def grouped(rows: Any, order: Any, start: Any, weight: Any, out: Any) -> None:
    """One tile of the rows of one expert. It waits for the ranks that its tokens are from, and for no others."""
    p, n = tl.tile_id(out)
    e = tl.segment(out, p)
    tl.consumer_tile_wait(order)
    who = tl.tile_load(order, p, other=-1)
    tl.consumer_tile_wait(rows, who)
    tl.consumer_tile_wait(weight, e)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(rows, axis=1):
        acc = tl.dot(tl.tile_load(rows, (who, k)), tl.tile_load(weight, (e, k, n)), acc)
    tl.tile_store(out, (p, n), acc)
    tl.producer_tile_notify(out, (p, n))


@tilelink.operator(
    "T/R H, T/R k i32 <e, e H I/R -> T*k I/R, e+1 i32 offsets, T k i32 permutation",
    schedule={
        **ROUTED,
        "grouped": tilelink.sms(P=128, N=256, H=64, order=("across 2", "group 16"), num_warps=8, num_stages=3),
    },
)
def ag_moe(tokens: Any, choice: Any, weight: Any) -> Any:
    """Every rank's tokens through this rank's columns of the experts that they chose.

    A tile of an expert's rows begins as soon as the ranks have arrived whose tokens it holds; this rank's come first.

    Args:
        tokens: this rank's tokens, `[T/R, H]`.
        choice: the experts of each of them, `[T/R, k]` int32, each below `e`; all ranks together choose `T*k` times.
        weight: this rank's columns of every expert, `[e, H, I/R]`.

    Returns:
        `hidden`: `[T*k, I/R]` in the dtype of `tokens`, accumulated in fp32, a row for each choice of all ranks, sorted
        by expert, then by token from this rank's own on, in a ring; `start`: `[e+1]` int32, where each expert's rows
        begin; `slot`: `[T, k]` int32, the row of each choice. `moe_rs` takes all three.
    """
    order, start, slot = tables(gather(choice, name="gather_choice"), weight.size("e"), ring=True)
    return grouped(gather(tokens), order, start, weight), start, slot


@ag_moe.reference
def reference(tokens: Any, choice: Any, weight: Any, *, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    order, start, slot = plain.routed(choice, weight.shape[0], group)
    return plain.grouped(plain.gathered(tokens, group)[order.long()], start, weight), start, slot
