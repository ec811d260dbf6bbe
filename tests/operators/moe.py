"""A small mixture of experts in the public language: routing tables made on the device, index vectors, a run-time split."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.programs import gather


@tilelink.program("T K i32 -> e i32")
def count(choice: Any, counts: Any) -> None:
    """How many of all choices fall on expert `e`."""
    e, n = tl.tile_id(counts), 0
    for t in tl.tiles(choice, axis=0):
        tl.consumer_tile_wait(choice, t)
        n += tl.sum((tl.tile_load(choice, t, other=-1) == e).to(tl.int32))
    tl.tile_store(counts, e, n)
    tl.producer_tile_notify(counts, e)


@tilelink.program("T K i32, e i32 -> T*K i32, e+1 i32, T K i32")
def place(choice: Any, counts: Any, order: Any, start: Any, slot: Any) -> None:
    """A stable sort by expert: the token of each row, where each expert's rows start, and the row of each choice."""
    e = tl.tile_id(counts)
    tl.consumer_tile_wait(counts)
    base = tl.sum(tl.where(tl.tile_range(counts) < e, tl.tile_load(counts), 0))
    for t in tl.tiles(choice, axis=0):
        tl.consumer_tile_wait(choice, t)
        hit = tl.tile_load(choice, t, other=-1) == e
        one = hit.to(tl.int32)
        at = base + tl.cumsum(tl.ravel(one)) - 1
        tl.tile_store(order, tl.where(tl.ravel(hit), at, -1), tl.ravel(tl.tile_range(choice, t)[:, None] + 0 * one))
        tl.tile_store(slot, t, tl.reshape(at, hit.shape), mask=hit)
        base += tl.sum(one)
    tl.tile_store(start, e + 1, base)
    if e == 0:
        tl.tile_store(start, 0, 0)
    tl.producer_tile_notify(order)
    tl.producer_tile_notify(start)
    tl.producer_tile_notify(slot)


@tilelink.program("T H, P i32, e+1 i32, e H N -> P/start N")
def grouped(rows: Any, order: Any, start: Any, weight: Any, out: Any) -> None:
    """One tile of the rows of one expert; how many rows it has is known on the device only."""
    p, n = tl.tile_id(out)
    e = tl.segment(out, p)
    tl.consumer_tile_wait(order)
    who = tl.tile_load(order, p, other=-1)
    tl.consumer_tile_wait(rows, who)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(rows, axis=1):
        acc = tl.dot(tl.tile_load(rows, (who, k)), tl.tile_load(weight, (e, k, n)), acc)
    tl.tile_store(out, (p, n), acc)
    tl.producer_tile_notify(out, (p, n))


@tilelink.operator("T/R H, T/R K i32, e H I/R -> P I/R, e+1 i32, T K i32")
def ag_moe(tokens: Any, choice: Any, weight: Any) -> Any:
    """Every rank's tokens through this rank's columns of the experts that they chose, sorted by expert."""
    choices = gather(choice, name="gather_choice")
    order, start, slot = place(choices, count(choices, e=weight.size("e")))
    return grouped(gather(tokens), order, start, weight), start, slot
