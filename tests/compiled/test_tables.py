"""Tables of 64 bits compile, where coordinates of TMA and what workers remember of flags have 32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tests.compiled.checking import assert_compiles, emitted
from tests.compiled.compiling import texts
from tests.operators.test_debug import picked_from_all
from tests.operators.test_past_edges import many_of_data
from tests.operators.test_positions import by_tables
from tilelink import Operator, sms
from tilelink.ops.programs import gather

picked = tilelink.program("T H, P i64 -> P H", name="picked")(many_of_data.function)


@tilelink.program("P H, e+1 i64 offsets, e H N -> P/start N")
def grouped(rows: Any, start: Any, weight: Any, out: Any) -> None:
    p, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, p)
    acc = tl.zeros(tl.tile_shape(out), tl.float32)
    for h in tl.tiles(rows, axis=1):
        acc = tl.dot(tl.tile_load(rows, (p, h)), tl.tile_load(weight, (tl.segment(out, p), h, n)), acc)
    tl.tile_store(out, (p, n), acc)


@tilelink.operator("T/R H, P i64 -> P H")
def pick(x: Any, which: Any) -> Any:
    return picked(gather(x), which)


@tilelink.operator("P/R H, e+1 i64 offsets, e H N -> P N")
def products(x: Any, start: Any, weight: Any) -> Any:
    return grouped(gather(x), start, weight)


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def i64(n: int) -> torch.Tensor:
    return torch.empty(n, dtype=torch.int64)


WAITS: dict[str, tuple[Operator, list[torch.Tensor]]] = {
    "of rows, more flags than bits": (
        pick.schedule(gather=sms(2, M=4), picked=sms(P=64, H=64)), [bf16(256, 128), i64(64)]
    ),
    "of one row": (picked_from_all.schedule(gather=sms(2, M=4), pick_awaited=sms(H=64)), [bf16(256, 128), i64(64)]),
    "of segments": (
        products.schedule(gather=sms(2, M=32), grouped=sms(P=64, N=64, H=64)), [bf16(64, 128), i64(5), bf16(4, 128, 128)]
    ),
}  # fmt: skip


@pytest.mark.each_triton
def test_coordinates_have_32_bits() -> None:
    tensors = [bf16(4, 64, 128), bf16(2, 128, 64), i64(4), i64(4)]
    plan, source = emitted(by_tables.schedule(chosen=sms(M=64, N=64, K=64)), tensors, "sm_90")
    (kernel,) = source.kernels
    assert "async_tma_copy_global_to_local" in texts(plan, source, kernel, "sm_90")["ttgir"]


@pytest.mark.parametrize("name", WAITS)
def test_flags_that_were_awaited_have_32_bits(name: str) -> None:
    operator, tensors = WAITS[name]
    assert_compiles(*emitted(operator, tensors, "sm_90"), "sm_90", pipelined=False)
