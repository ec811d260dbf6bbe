"""Tile programs that route: from the experts that tokens chose to tables that say which row is whose (G13).

Everything here runs on the device. The tables are arguments of no call and sizes of no plan: a plan has room for every
routing, and programs read from the tables how much of it is used.
"""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl

ROUTED = {
    # Choices are few: workers send them before a copy engine would have begun.
    "gather_choice": tilelink.sms(2, M=1024, push=True),
    "count": tilelink.sms(T=2048, num_warps=8),
    "place": tilelink.sms(T=2048, num_warps=8),
}
"""Placements of an operator that routes the tokens of all ranks."""


@tilelink.program("T k i32 <e -> e i32")
def count(choice: Any, counts: Any) -> None:
    """How many choices fall on each expert. A choice of −1 falls on none."""
    e, n = tl.tile_id(counts), 0
    for t in tl.tiles(choice, axis=0):
        tl.consumer_tile_wait(choice, t)
        n += tl.sum((tl.tile_load(choice, t, other=-1) == e).to(tl.int32))
    tl.tile_store(counts, e, n)
    tl.producer_tile_notify(counts, e)


@tilelink.program("T k i32 <e, e i32 -> T*k i32 <T, e+1 i32 offsets, T k i32 permutation")
def place(choice: Any, counts: Any, order: Any, start: Any, slot: Any, *, ring: bool = False) -> None:
    """Sort the choices by expert, those of one expert by token, so that the tokens of a rank stay together.

    `order`: the token of each row. `start`: where each expert's rows begin. `slot`: the row of each choice, −1 where a
    choice is −1. `ring`: the tokens are of all ranks, and an expert's rows begin with this rank's, as they come in a ring.
    """
    e = tl.tile_id(counts)
    tl.consumer_tile_wait(counts)
    base = tl.sum(tl.where(tl.tile_range(counts) < e, tl.tile_load(counts), 0))
    mine = tl.rank() * tl.cdiv(tl.size(choice, 0), tl.num_ranks()) * ring
    for turn in range(2):
        for t in tl.tiles(choice, axis=0, start=mine * (1 - turn), stop=mine if turn else tl.size(choice, 0)):
            tl.consumer_tile_wait(choice, t)
            chosen = tl.tile_load(choice, t, other=-1)
            one = (chosen == e).to(tl.int32)
            at = tl.where(tl.ravel(one) > 0, base + tl.cumsum(tl.ravel(one)) - 1, -1)
            tl.tile_store(order, at, tl.ravel(tl.tile_range(choice, t)[:, None] + 0 * one))
            # The first expert's tile answers for those of no expert.
            tl.tile_store(slot, t, tl.reshape(at, one.shape), mask=chosen == tl.where((chosen < 0) & (e == 0), -1, e))
            base += tl.sum(one)
    tl.tile_store(start, e + 1, base)
    if e == 0:
        tl.tile_store(start, 0, 0)
    tl.producer_tile_notify(order)
    tl.producer_tile_notify(start)
    tl.producer_tile_notify(slot)
