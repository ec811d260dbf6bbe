"""Expert parallelism, there, in half the bytes: tokens travel as fp8 with a scale each, made on the way out."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops.ep_dispatch import reference as exact
from tilelink.ops.routing import assign


@tilelink.program("T H, e C i32 <T, e R/R i32 <C+1 -> e/R R C H f8e4m3 partial, e/R R C f32 partial, e/R R i32")
def dispatch_fp8(x: Any, who: Any, many: Any, inbox: Any, scales: Any, counts: Any) -> None:
    """`dispatch`, each row divided by its scale: 448, the largest number of e4m3, stands for its largest element."""
    e, s = tl.tile_id(many)
    tl.consumer_tile_wait(who, e)
    tl.consumer_tile_wait(many, (e, s))
    n = tl.tile_load(many, (e, s))
    tl.tile_push_data(counts, (e, s), n)
    tl.producer_tile_notify(counts, (e, s))
    for c in tl.tiles(inbox, axis=2, stop=n):
        token = tl.tile_load(who, (e, c), other=-1)
        tl.consumer_tile_wait(x, token)
        most = tl.zeros([token.shape[0]], tl.float32)
        for h in tl.tiles(x, axis=1):
            most = tl.maximum(most, tl.max(tl.abs(tl.tile_load(x, (token, h)).to(tl.float32)), 1))
        scale = tl.where(most > 0, most / 448, 1)
        for h in tl.tiles(x, axis=1):
            tl.tile_push_data(inbox, (e, s, c, h), tl.tile_load(x, (token, h)) / scale[:, None])
        tl.tile_push_data(scales, (e, s, c), scale)
    tl.producer_tile_notify(inbox, (e, s))
    tl.producer_tile_notify(scales, (e, s))


@tilelink.program("e r C H, e r C, e r i32 -> e r C H partial, e r C f32 partial, e r i32")
def arrive_fp8(inbox: Any, scales: Any, counts: Any, rows: Any, scale: Any, sizes: Any) -> None:
    """Out of shared memory, what there is."""
    e, r = tl.tile_id(sizes)
    tl.consumer_tile_wait(counts, (e, r))
    n = tl.tile_load(counts, (e, r))
    tl.tile_store(sizes, (e, r), n)
    tl.consumer_tile_wait(scales, (e, r))
    tl.consumer_tile_wait(inbox, (e, r))
    for c in tl.tiles(rows, axis=2, stop=n):
        tl.tile_store(scale, (e, r, c), tl.tile_load(scales, (e, r, c)))
        for h in tl.tiles(rows, axis=3):
            tl.tile_store(rows, (e, r, c, h), tl.tile_load(inbox, (e, r, c, h)))


@tilelink.operator(
    "T/R H, T/R k i32 <experts -> experts/R R C H f8e4m3 partial, experts/R R C f32 partial, experts/R R i32, T/R k i32",
    schedule={
        "assign": tilelink.sms(T=512, num_warps=8),
        "dispatch_fp8": tilelink.sms(C=4, H=8192, order="ring", num_warps=16),
        "arrive_fp8": tilelink.sms(C=4, H=8192, num_warps=16),
    },
)
def ep_dispatch_fp8(x: Any, choice: Any, *, experts: int, capacity: int) -> Any:
    """`ep_dispatch` with a payload of fp8 (e4m3) and a scale for each row; for GPUs that have this type, so not for sm_80.

    Args:
        x: this rank's tokens, `[T/R, H]`.
        choice: the experts of each of them, `[T/R, k]` int32, each below `experts`; −1: none.
        experts: how many there are on all ranks.
        capacity: rows that an expert has for each rank; tokens beyond are dropped, as `ep_dispatch` says.

    Returns:
        `rows`: `[experts/R, R, capacity, H]` fp8 e4m3; `scale`: `[experts/R, R, capacity]` fp32, and a token is
        `rows * scale`; `counts` and `at` as of `ep_dispatch`.
    """
    who, many, at = assign(choice, C=capacity, e=experts)
    inbox, scales, counts = dispatch_fp8(x, who, many, C=capacity, e=experts)
    rows, scale, sizes = arrive_fp8(inbox, scales, counts)
    return rows, scale, sizes, at


@ep_dispatch_fp8.reference
def reference(x: Any, choice: Any, *, experts: int, capacity: int, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    import torch

    rows, counts, at = exact(x.float(), choice, experts=experts, capacity=capacity, group=group)
    most = rows.abs().amax(-1)
    scale = torch.where(most > 0, most / 448, 1.0)
    there = torch.arange(capacity, device=x.device) < counts[..., None]  # past the count all is 0
    return (rows / scale[..., None]).to(torch.float8_e4m3fn), scale * there, counts, at
