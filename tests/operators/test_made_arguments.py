"""Programs of the library wait for all that they read: what is usually an argument may be what another step makes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tilelink
import tilelink.language as tl
from tilelink import ops
from tilelink.frontend.program import Program
from tilelink.ir.program import Load, Wait, walk
from tilelink.ops.ep_combine import collect, send_back
from tilelink.ops.ep_dispatch import send
from tilelink.ops.programs import gather, matmul


def programs() -> Iterator[tuple[str, Program]]:
    for module in pkgutil.iter_modules(ops.__path__):
        for name, found in vars(importlib.import_module(f"{ops.__name__}.{module.name}")).items():
            if isinstance(found, Program):
                yield name, found


def test_what_is_read_is_waited_for() -> None:
    missing: dict[str, set[str]] = {}
    for name, program in programs():
        body, inputs = tuple(walk(program.captured.body)), {p.name for p in program.captured.params if p.role == "in"}
        read = {op.param for op in body if isinstance(op, Load)} & inputs
        left = read - {op.param for op in body if isinstance(op, Wait)}
        if left:
            missing[name] = left
    assert missing == {}


@tilelink.program("K N i8, N f32 -> K N f32")
def widened(weight: Any, scale: Any, out: Any) -> None:
    k, n = tl.tile_id(out)
    tl.consumer_tile_wait(weight, (k, n))
    tl.consumer_tile_wait(scale, n)
    tl.tile_store(out, (k, n), tl.tile_load(weight, (k, n)).to(tl.float32) * tl.tile_load(scale, n)[None, :])
    tl.producer_tile_notify(out, (k, n))


@tilelink.operator("M/R K, K N i8, N f32 -> M N")
def of_bytes(x: Any, weight: Any, scale: Any) -> Any:
    return matmul(gather(x), widened(weight, scale))


PLACED = {
    "one after the other": {},
    "at a time": {"widened": tilelink.sms(2, K=16, N=16, own_kernel=True)},
    "rows by copy engine": {"gather": tilelink.copy_engine(M=8, push=True), "widened": tilelink.sms(K=32, N=16)},
}


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_weight_of_bytes(ranks: int, placed: str) -> None:
    torch.manual_seed(0)
    x = [torch.randn(11, 40) for _ in range(ranks)]
    weight = [torch.randint(-9, 9, (40, 24), dtype=torch.int8) for _ in range(ranks)]
    scale = [torch.rand(24) for _ in range(ranks)]
    for y, w, s in zip(of_bytes.schedule(**PLACED[placed])(x, weight, scale), weight, scale, strict=True):
        torch.testing.assert_close(y, torch.cat(x) @ (w.float() * s), rtol=1e-4, atol=1e-4)


@tilelink.program("T H, H e -> T k i32 <e, T k f32")
def best(x: Any, router: Any, choice: Any, score: Any) -> None:
    """The expert that suits a token best, and how well."""
    t, k = tl.tile_id(choice)
    tl.consumer_tile_wait(x, t)
    tl.consumer_tile_wait(router)
    each = tl.dot(tl.tile_load(x, t), tl.tile_load(router), input_precision="ieee")
    each = tl.where(tl.tile_range(router, axis=1)[None, :] < tl.size(router, 1), each, -1e30)
    tl.tile_store(choice, (t, k), tl.argmax(each, 1))
    tl.tile_store(score, (t, k), tl.max(each, 1))
    tl.producer_tile_notify(choice, (t, k))
    tl.producer_tile_notify(score, (t, k))


@tilelink.operator("T/R H, H experts -> T/R H")
def there_and_back(x: Any, router: Any, *, capacity: int) -> Any:
    """Each token to the best expert and back, by its score."""
    choice, score = best(x, router, k=1)
    inbox, counts, at = send(x, choice, router.size("experts"), capacity)
    return collect(*send_back(inbox, counts), choice, at, score)


def test_a_choice_that_is_made() -> None:
    torch.manual_seed(0)
    ranks, router = 2, torch.randn(16, 16)
    x = [torch.randn(12, 16) for _ in range(ranks)]
    back = there_and_back(x, [router] * ranks, capacity=12)
    for y, mine in zip(back, x, strict=True):
        torch.testing.assert_close(y, (mine @ router).max(1, keepdim=True).values * mine, rtol=1e-4, atol=1e-4)
