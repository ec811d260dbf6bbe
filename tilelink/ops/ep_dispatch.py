"""Expert parallelism, there: each token to the ranks that hold the experts it chose, all to all and token by token."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops import plain
from tilelink.ops.routing import assign


@tilelink.program("T H, e C i32 <T, e R/R i32 <C+1 -> e/R R C H partial, e/R R i32")
def dispatch(x: Any, who: Any, many: Any, inbox: Any, counts: Any) -> None:
    """This rank's tokens of expert `e` to whoever has that expert."""
    e, s = tl.tile_id(many)
    tl.consumer_tile_wait(who, e)
    tl.consumer_tile_wait(many, (e, s))
    n = tl.tile_load(many, (e, s))
    tl.tile_push_data(counts, (e, s), n)
    tl.producer_tile_notify(counts, (e, s))
    for c in tl.tiles(inbox, axis=2, stop=n):
        token = tl.tile_load(who, (e, c), other=-1)
        tl.consumer_tile_wait(x, token)
        for h in tl.tiles(x, axis=1):
            tl.tile_push_data(inbox, (e, s, c, h), tl.tile_load(x, (token, h)))
    tl.producer_tile_notify(inbox, (e, s))


@tilelink.program("e r C H, e r i32 -> e r C H partial, e r i32")
def arrive(inbox: Any, counts: Any, rows: Any, sizes: Any) -> None:
    """Out of shared memory, what there is."""
    e, r = tl.tile_id(sizes)
    tl.consumer_tile_wait(counts, (e, r))
    n = tl.tile_load(counts, (e, r))
    tl.tile_store(sizes, (e, r), n)
    tl.consumer_tile_wait(inbox, (e, r))
    for c in tl.tiles(rows, axis=2, stop=n):
        for h in tl.tiles(rows, axis=3):
            tl.tile_store(rows, (e, r, c, h), tl.tile_load(inbox, (e, r, c, h)))


def send(x: Any, choice: Any, experts: int, capacity: int) -> tuple[Any, Any, Any]:
    """Tokens on their way: the inbox of each rank's experts and its counts, in shared memory, and who has which row."""
    who, many, at = assign(choice, C=capacity, e=experts)
    inbox, counts = dispatch(x, who, many, C=capacity, e=experts)
    return inbox, counts, at


@tilelink.operator(
    "T/R H, T/R k i32 <experts -> experts/R R C H partial, experts/R R i32, T/R k i32",
    schedule={
        "assign": tilelink.sms(T=512, num_warps=8),
        "dispatch": tilelink.sms(C=4, H=8192, order="ring", num_warps=16),
        "arrive": tilelink.sms(C=4, H=8192, num_warps=16),
    },
)
def ep_dispatch(x: Any, choice: Any, *, experts: int, capacity: int) -> Any:
    """Send each token to the experts that it chose, which are split over the ranks.

    An expert takes up to `capacity` tokens of each rank. Those beyond, the last in the order of the tokens, are dropped:
    they do not travel, and `ep_combine` adds nothing for them. With a capacity of `T/R`, and no token that chooses one
    expert twice, nothing is dropped.

    Args:
        x: this rank's tokens, `[T/R, H]`.
        choice: the experts of each of them, `[T/R, k]` int32, each below `experts`; −1: none.
        experts: how many there are on all ranks.
        capacity: rows that an expert has for each rank.

    Returns:
        `rows`: `[experts/R, R, capacity, H]`, for each expert of this rank the tokens of each rank, in their order; what
        lies past the count is not written. `counts`: `[experts/R, R]` int32, how many rows came. `at`: `[T/R, k]` int32,
        the row that each choice of this rank has with its expert, −1 where it was dropped; `ep_combine` takes it.
    """
    inbox, counts, at = send(x, choice, experts, capacity)
    rows, sizes = arrive(inbox, counts)
    return rows, sizes, at


@ep_dispatch.reference
def reference(x: Any, choice: Any, *, experts: int, capacity: int, group: Any = None) -> Any:
    """The same in plain torch, one after the other; rows past the count are 0."""
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size(group)
    order, start, slot = plain.tables(choice, experts)
    outbox = x.new_zeros(experts, capacity, x.shape[1])
    for e, (first, last) in enumerate(pairwise(start.tolist())):
        many = min(last - first, capacity)
        outbox[e, :many] = x[order[first : first + many].long()]
    rows, counts = (plain.exchanged(t, group) for t in (outbox, start.diff().clamp(max=capacity)))
    rows = rows.view(ranks, experts // ranks, capacity, -1).transpose(0, 1).contiguous()
    at = slot - start[choice.clamp(min=0).long()]
    at = torch.where((choice < 0) | (at >= capacity), -1, at)
    return rows, counts.view(ranks, -1).t().contiguous(), at
