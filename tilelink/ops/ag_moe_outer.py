"""All-gather and a product over the rows of each expert: gradients of experts that meet gathered tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops import plain
from tilelink.ops.programs import gather
from tilelink.ops.routing import ROUTED, tables


@tilelink.program("T H, P i32 <T, e+1 i32 offsets, P N -> e H N")
def grouped_outer(rows: Any, order: Any, start: Any, others: Any, out: Any) -> None:
    """One tile of `rows[order].T @ others` over the rows of one expert, in the order of the ring; 0 if it has none."""
    e, h, n = tl.tile_id(out)
    tl.consumer_tile_wait(order)
    tl.consumer_tile_wait(start)
    first, last = tl.tile_load(start, e), tl.tile_load(start, e + 1)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for p in tl.tiles(order, axis=0, start=first, stop=last):
        rows_of = tl.tile_range(order, p)
        at = tl.where(rows_of < last, rows_of, -1)
        who = tl.tile_load(order, at, other=-1)
        tl.consumer_tile_wait(rows, who)
        tl.consumer_tile_wait(others, (at, n))
        acc = tl.dot(tl.trans(tl.tile_load(rows, (who, h))), tl.tile_load(others, (at, n)), acc)
    tl.tile_store(out, (e, h, n), acc)


@tilelink.operator(
    "T/R H, T/R k i32 <experts, T*k N -> experts H N",
    schedule=ROUTED,
)
def ag_moe_outer(tokens: Any, choice: Any, others: Any, *, experts: int) -> Any:
    """For each expert `all_gather(tokens)[its].T @ others[its]`: its gradient in `ag_moe`, `others` that of the result.

    Args:
        tokens: this rank's tokens, `[T/R, H]`.
        choice: the experts of each of them, `[T/R, k]` int32, each below `experts`; −1: none.
        others: `[T*k, N]`, a row for each choice of all ranks, sorted as `ag_moe` has them.
        experts: how many there are.

    Returns:
        `[experts, H, N]` in the dtype of `tokens`, accumulated in fp32.
    """
    order, start, _ = tables(gather(choice, name="gather_choice"), experts, ring=True)
    return grouped_outer(gather(tokens), order, start, others)


@ag_moe_outer.reference
def reference(tokens: Any, choice: Any, others: Any, *, experts: int, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    import torch

    order, start, _ = plain.routed(choice, experts, group)
    rows = plain.gathered(tokens, group)[order.long()]
    return torch.stack([rows[a:b].t() @ others[a:b] for a, b in pairwise(start.tolist())])
