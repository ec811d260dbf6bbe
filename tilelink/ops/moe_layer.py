"""A mixture-of-experts layer, tensor-parallel and overlapped (arXiv:2503.20313, section 5: MoE)."""

from __future__ import annotations

from typing import Any

import tilelink
import tilelink.language as tl
from tilelink.ops import plain
from tilelink.ops.moe_rs import moe_rs
from tilelink.ops.moe_rs import reference as moe_rs_reference
from tilelink.ops.programs import gather
from tilelink.ops.routing import ROUTED, tables


@tilelink.program("T H, P i32 <T, e+1 i32 offsets, e H N, e H N -> P/start N")
def grouped_glu(rows: Any, order: Any, start: Any, gate: Any, up: Any, out: Any) -> None:
    """`silu(x @ gate) * (x @ up)` of one tile of the rows of one expert, the activation in the epilogue."""
    p, n = tl.tile_id(out)
    e = tl.segment(out, p)
    tl.consumer_tile_wait(order)
    who = tl.tile_load(order, p, other=-1)
    tl.consumer_tile_wait(rows, who)
    tl.consumer_tile_wait(gate, e)
    tl.consumer_tile_wait(up, e)
    a, b = tl.zeros(tl.tile_shape(out), tl.float32), tl.zeros(tl.tile_shape(out), tl.float32)
    for k in tl.tiles(rows, axis=1):
        x = tl.tile_load(rows, (who, k))
        a, b = tl.dot(x, tl.tile_load(gate, (e, k, n)), a), tl.dot(x, tl.tile_load(up, (e, k, n)), b)
    tl.tile_store(out, (p, n), a * tl.sigmoid(a) * b)
    tl.producer_tile_notify(out, (p, n))


@tilelink.operator(
    "T/R H, T/R k i32 <e, T/R k f32, e H I/R, e H I/R, e I/R H -> T/R H",
    schedule={
        **ROUTED,
        "gather_score": tilelink.sms(2, M=1024, push=True),
        # Two accumulators; as in `ag_moe`.
        "grouped_glu": tilelink.sms(P=128, N=128, H=64, order=("across", "group 16"), num_warps=8, num_stages=3),
    },
)
def moe_layer(tokens: Any, choice: Any, score: Any, gate: Any, up: Any, down: Any) -> Any:
    """Each token through the experts that it chose, `(silu(x @ gate) * (x @ up)) @ down`, weighted and summed.

    Args:
        tokens: this rank's tokens, `[T/R, H]`.
        choice: the experts of each of them, `[T/R, k]` int32, each below `e`; −1: none.
        score: the weight of each choice, `[T/R, k]` fp32.
        gate: this rank's columns of every expert, `[e, H, I/R]`.
        up: the same of the second matrix, `[e, H, I/R]`.
        down: this rank's rows of every expert, `[e, I/R, H]`.

    Returns:
        this rank's tokens, `[T/R, H]` in the dtype of `tokens`.
    """
    order, start, slot = tables(gather(choice, name="gather_choice"), gate.size("e"), ring=True)
    hidden = grouped_glu(gather(tokens), order, start, gate, up)
    return moe_rs(hidden, start, slot, down, gather(score, name="gather_score"))


@moe_layer.reference
def reference(tokens: Any, choice: Any, score: Any, gate: Any, up: Any, down: Any, *, group: Any = None) -> Any:
    """The same in plain torch, one after the other."""
    from torch.nn.functional import silu

    order, start, slot = plain.routed(choice, gate.shape[0], group)
    rows = plain.gathered(tokens, group)[order.long()]
    hidden = silu(plain.grouped(rows, start, gate)) * plain.grouped(rows, start, up)
    return moe_rs_reference(hidden, start, slot, down, plain.gathered(score, group), group=group)
