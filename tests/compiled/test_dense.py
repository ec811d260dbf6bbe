"""The library's collectives, attention and decoding compile for every target, by default, and keep their orders."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tests.compiled import checking, hazards
from tests.compiled.checking import assert_compiles, emitted
from tests.compiled.compiling import EACH_TARGET, compile_kernel, functions, kernel_of, texts
from tilelink import Operator, ops, sms
from tilelink.runtime.kernels import compiling


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def i32(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.int32)


SMALL = sms(S=64, T=32)
HEADS = [bf16(128, 2, 64), bf16(128, 1, 64), bf16(128, 1, 64)]
OPERATORS: dict[str, tuple[Operator, list[torch.Tensor]]] = {
    "all_reduce_one_shot": (ops.all_reduce_one_shot, [bf16(8, 2048)]),
    "all_reduce_two_shot": (ops.all_reduce_two_shot, [bf16(64, 512)]),
    "all_reduce_ring": (ops.all_reduce_ring, [bf16(64, 512)]),
    "gemm_ar_one_shot": (ops.gemm_ar_one_shot, [bf16(32, 128), bf16(128, 128)]),
    "ag_attention": (ops.ag_attention.schedule(flash=SMALL), HEADS),
    "ag_attention_varlen": (ops.ag_attention_varlen.schedule(flash_varlen=SMALL), [*HEADS, i32(5)]),
    "ring_attention": (ops.ring_attention.schedule(flash=SMALL), HEADS),
    "ag_attention_zigzag": (ops.ag_attention_zigzag.schedule(flash_there=SMALL), HEADS),
}


@pytest.mark.parametrize("target", EACH_TARGET)
@pytest.mark.parametrize("name", OPERATORS)
def test_kernels(name: str, target: str) -> None:
    operator, tensors = OPERATORS[name]
    assert_compiles(*emitted(operator, tensors, target), target)


@pytest.mark.parametrize("target", EACH_TARGET)
def test_decoding(target: str) -> None:
    """A group has fewer queries than a product has rows; greatest scores and sums are stored one by one."""
    tensors = [bf16(2, 1, 8, 64), bf16(2, 128, 1, 64), bf16(2, 128, 1, 64), i32(2)]
    plan, source = emitted(ops.flash_decode, tensors, target)
    assert_compiles(plan, source, target, pipelined=False)
    kernel = next(k for k in source.kernels if "tl.dot" in functions(source, k.name))
    if target != "gfx942":
        loops = list(hazards.dot_loops(texts(plan, source, kernel, target)["ttgir"]))
        slow = hazards.loops_without_copies(texts(plan, source, kernel, target)["ttgir"])
        # The other one is of the tile in which a part ends.
        assert (len(loops), len(slow)) == (2, 1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["one_shot", "two_shot", "ring"])
def test_sums_of_other_dtypes(form: str, dtype: torch.dtype) -> None:
    """A loop whose sum changes its dtype on the way does not compile."""
    tensors = [torch.empty(64, 512, dtype=dtype)]
    assert_compiles(*emitted(getattr(ops, f"all_reduce_{form}"), tensors, "sm_90"), "sm_90", pipelined=False)


@pytest.mark.each_triton
@pytest.mark.parametrize(("allowed", "precision"), [("ieee", "tf32x3"), ("tf32", "tf32")])
def test_products_of_fp32_round_as_those_of_torch(
    allowed: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    plan, source = emitted(ops.ag_gemm, [torch.empty(256, 512), torch.empty(512, 256)], "sm_90")
    kernel = next(k for k in source.kernels if "tl.dot" in functions(source, k.name))
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = allowed
    try:
        with compiling(kernel_of(source, kernel)):
            compiled = compile_kernel(plan, source, kernel, "sm_90", num_stages=2)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert set(re.findall(r"inputPrecision = (\w+)", compiled.asm["ttir"])) == {precision}
    assert compiled.metadata.shared <= 227 * 1024


def test_products_of_small_integers() -> None:
    """They are added up in int32, as tensor cores do."""
    tensors = [torch.empty(256, 512, dtype=torch.int8), torch.empty(512, 256, dtype=torch.int8)]
    plan, source = emitted(ops.ag_gemm, tensors, "sm_90")
    assert_compiles(plan, source, "sm_90")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_rows_dealt_out_are_spread_over_the_workers(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker takes each 132nd tile of all ranks' and leaves out others': an order that goes with how rows are dealt out
    would give some workers all that there is to do."""
    monkeypatch.setattr(checking, "RANKS", ranks)
    plan, _ = emitted(ops.ag_attention_zigzag, [bf16(16384 // ranks, 32, 128)] * 3, "sm_90")
    step = plan.step("flash_there")
    place = step.turns(plan.env(0))["i0"] % (2 * ranks)
    own = np.flatnonzero(np.minimum(place, 2 * ranks - 1 - place) == 0)
    each = np.bincount(own % 132, minlength=132)
    assert each.max() <= 1.3 * each.mean()


@pytest.mark.each_triton
def test_whole_tiles_of_keys_go_without_masks() -> None:
    """Two loops: one that TMA copies ahead for and that compares nothing, then one for the tiles that need it."""
    plan, source = emitted(ops.ring_attention, [bf16(1024, 1, 128)] * 3, "sm_90")
    kernel = next(k for k in source.kernels if "tl.dot" in functions(source, k.name))
    found = list(hazards.dot_loops(texts(plan, source, kernel, "sm_90")["ttgir"]))
    whole, others = (
        "\n".join(lines[loop.first : loop.last]) for lines, loop in sorted(found, key=lambda f: f[1].first)
    )
    compares = re.compile(r"arith\.(select|cmpi) .*tensor<")
    assert compares.search(others)
    assert not compares.search(whole)
    assert "async_tma_copy_global_to_local" in whole
    assert whole.count("ttng.wait_barrier") == 1
    assert "tt.load" not in whole
    assert "async_copy_global_to_local" not in whole


@pytest.mark.each_triton
@pytest.mark.parametrize(("d", "dtype"), [(96, torch.bfloat16), (256, torch.bfloat16), (128, torch.float32)])
def test_heads_fit_into_an_h200(d: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tiles that the operator ships, of fp32 with one stage and three products of tf32: 227 KiB of shared memory."""
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32x3")
    stages = 1 if dtype == torch.float32 else 3 if d == 96 else 2
    plan, source = emitted(ops.ring_attention, [torch.empty(256, 1, d, dtype=dtype)] * 3, "sm_90")
    kernel = next(k for k in source.kernels if "tl.dot" in functions(source, k.name))
    compiled = compile_kernel(plan, source, kernel, "sm_90", num_stages=stages)
    assert stages == 1 or hazards.loops_without_copies(compiled.asm["ttgir"]) == []
    assert 0 < compiled.metadata.shared <= 227 * 1024
