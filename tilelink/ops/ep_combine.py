"""Expert parallelism, and back: what the experts made to the ranks of the tokens, weighted and summed."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops import plain


@tilelink.program("e/R R C H, e/R R i32 -> e R/R C H partial, e R/R i32")
def send_back(y: Any, counts: Any, back: Any, sent: Any) -> None:
    """What expert `e` made of a rank's tokens to that rank."""
    e, s = tl.tile_id(counts)
    tl.consumer_tile_wait(counts, (e, s))
    n = tl.tile_load(counts, (e, s))
    tl.tile_push_data(sent, (e, s), n)
    tl.producer_tile_notify(sent, (e, s))
    for c in tl.tiles(y, axis=2, stop=n):
        for h in tl.tiles(y, axis=3):
            tl.consumer_tile_wait(y, (e, s, c, h))
            tl.tile_push_data(back, (e, s, c, h), tl.tile_load(y, (e, s, c, h)))
    tl.producer_tile_notify(back, (e, s))


@tilelink.program("e C H, e i32, T k i32 <e, T k i32 <C, T k f32 -> T H")
def collect(back: Any, sent: Any, choice: Any, at: Any, score: Any, out: Any) -> None:
    """The weighted sum of what came back for each token, in fp32."""
    t, h = tl.tile_id(out)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    tl.consumer_tile_wait(choice, t)
    tl.consumer_tile_wait(at, t)
    tl.consumer_tile_wait(score, t)
    # A few tokens have chosen experts of all ranks.
    tl.consumer_tile_wait(sent)
    tl.consumer_tile_wait(back)
    for k in tl.static_range(tl.size(choice, 1)):
        e = tl.tile_load(choice, (t, k), other=-1)
        row = tl.tile_load(at, (t, k), other=-1)
        row = tl.where(row < tl.tile_load(sent, e), row, -1)
        weight = tl.where(row < 0, 0, tl.tile_load(score, (t, k)))
        acc += weight[:, None] * tl.tile_load(back, (e, row, h))
    tl.tile_store(out, (t, h), acc)


@tilelink.operator(
    "experts/R R C H, experts/R R i32 <C+1, T/R k i32 <experts, T/R k i32 <C, T/R k f32 -> T/R H",
    schedule={"send_back": tilelink.sms(C=4, H=8192, num_warps=16), "collect": tilelink.sms(T=8, H=1024, num_warps=8)},
)
def ep_combine(y: Any, counts: Any, choice: Any, at: Any, score: Any) -> Any:
    """Send what the experts made back to the tokens' ranks, and sum it for each token.

    Args:
        y: what this rank's experts made of the rows of `ep_dispatch`, `[experts/R, R, C, H]`; what lies past the count is
            not read.
        counts: `[experts/R, R]` int32, as `ep_dispatch` gives it.
        choice: this rank's choices, `[T/R, k]` int32, as `ep_dispatch` took them.
        at: the row that each of them has with its expert, `[T/R, k]` int32, as `ep_dispatch` gives it.
        score: the weight of each choice, `[T/R, k]` fp32.

    Returns:
        this rank's tokens, `[T/R, H]` in the dtype of `y`. A choice that was dropped, or is −1, adds nothing.
    """
    back, sent = send_back(y, counts)
    return collect(back, sent, choice, at, score)


@ep_combine.reference
def reference(y: Any, counts: Any, choice: Any, at: Any, score: Any, *, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    import torch

    back, there = (plain.exchanged(t.transpose(0, 1), group) for t in (y, counts))
    missing = (choice < 0) | (at < 0) | (at >= there.flatten()[choice.clamp(min=0).long()])
    return plain.summed(back.flatten(0, 2), torch.where(missing, -1, choice * y.shape[2] + at), score)
