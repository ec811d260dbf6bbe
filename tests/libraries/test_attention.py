"""Attention run by run: what its blocks are, what merging them gives, and that its kernel compiles."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import triton
from triton.compiler import ASTSource
from triton.runtime.interpreter import InterpretedFunction

from tests.compiled.compiling import EACH_TARGET, TARGETS
from tests.selection import table
from tilelink.ir.schedule import Shaped
from tilelink.ir.topology import Device
from tilelink.libraries import attending, merging
from tilelink.libraries.merging import Part

SPANS = [((8, 16), (8, 16)), ((8, 16), (0, 8)), ((8, 16), (4, 12)), ((8, 16), (12, 20)), ((8, 16), (10, 13)),
         ((8, 16), (0, 30)), ((8, 16), (16, 24)), ((8, 16), (15, 17))]  # fmt: skip


@table("rows, keys", SPANS)
def test_blocks_are_what_lies_under_the_diagonal(rows: tuple[int, int], keys: tuple[int, int]) -> None:
    seen = torch.zeros(rows[1], keys[1], dtype=torch.int)
    for (first, end), (begin, last), masked in attending.blocks(rows, keys):
        assert not masked or (first, end) == (begin, last)
        block = torch.ones(end - first, last - begin, dtype=torch.int)
        seen[first:end, begin:last] += block.tril() if masked else block
    wanted = torch.arange(keys[1])[None, :] <= torch.arange(rows[1])[:, None]
    assert torch.equal(seen[rows[0] :, keys[0] :], wanted[rows[0] :, keys[0] :].int())


@pytest.mark.parametrize("cut", [1, 5, 12, 30])
def test_runs_of_any_length_make_the_whole(cut: int) -> None:
    """Rows in the middle of what the keys are of; some runs begin behind some rows, and the last behind all of them."""
    q, keys, values = torch.randn(9, 4, 8), torch.randn(30, 2, 8), torch.randn(30, 2, 8)
    runs = [
        attending.attention(
            q, keys[t : t + cut], values[t : t + cut], at={"S": (12, 21), "T": (t, t + cut)}, causal=True, scale=0.4
        )
        for t in range(0, 30, cut)
    ]
    out = torch.full((9, 4, 8), math.nan)
    merging.merge(runs, out=out)
    score = torch.einsum("shd,thd->hst", q, keys.repeat_interleave(2, 1)) * 0.4 * math.log(2)
    mask = torch.arange(30)[None, :] <= torch.arange(12, 21)[:, None]
    weight = score.masked_fill(~mask, -math.inf).softmax(-1)
    torch.testing.assert_close(out, torch.einsum("hst,thd->shd", weight, values.repeat_interleave(2, 1)))


def parts_of(count: int, rows: int, heads: int, d: int, dtype: torch.dtype) -> list[list[Part]]:
    found = [(torch.randn(rows, heads, d).to(dtype), torch.randn(heads, rows) * 3) for _ in range(count)]
    found[0][1][0, : rows // 2] = -math.inf
    return [[part] for part in found]


@pytest.mark.each_triton
@pytest.mark.parametrize(("count", "rows", "d", "dtype"), [(3, 70, 24, torch.bfloat16), (1, 5, 64, torch.float32)])
def test_the_kernel_merges_as_torch_does(
    monkeypatch: pytest.MonkeyPatch, count: int, rows: int, d: int, dtype: torch.dtype
) -> None:
    """Rows that see nothing in one run, or in none."""
    jitted: Any = merging.merge_runs
    monkeypatch.setattr(merging, "merge_runs", InterpretedFunction(jitted.fn))
    runs = parts_of(count, rows, 2, d, dtype)
    out, wanted = (torch.full((rows, 2, d), math.nan, dtype=dtype) for _ in range(2))
    merging.merge(runs, out=wanted)
    merging.launch([part for run in runs for part in run], out)
    assert not wanted.isnan().any()
    close = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out, wanted, rtol=close, atol=close)


def test_where_nothing_is_seen_there_is_nothing() -> None:
    out = torch.full((2, 3, 4), math.nan)
    merging.merge([], out=out)
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("target", EACH_TARGET)
def test_the_kernel_reads_and_writes_sixteen_bytes_at_a_time(target: str) -> None:
    runs = 3
    kernel: Any = merging.merge_runs
    compiled_in = {"RUNS": runs, "D": 128, "BLOCK_D": 128, "BLOCK": merging.ROWS, "stride_d": 1}
    kinds: dict[str, Any] = {"values": ("*bf16",) * runs, "sums": ("*fp32",) * runs, "out": "*bf16"}
    signature = {n: "constexpr" if n in compiled_in else kinds.get(n, "i32") for n in kernel.arg_names}
    constants = {(kernel.arg_names.index(n),): value for n, value in compiled_in.items()}
    places = [(k, i) for k in range(2) for i in range(runs)] + [(k,) for k in range(2, 7)]
    attrs = {place: [["tt.divisibility", 16]] for place in places}
    source = ASTSource(kernel, signature, constants, attrs)
    asm = triton.compile(source, target=TARGETS[target], options={"num_warps": 8}).asm
    if target == "gfx942":
        assert "global_load_dwordx4" in asm["amdgcn"]
    else:
        assert asm["ptx"].count("ld.global.v4.b32") == 4 * runs
        assert asm["ptx"].count("st.global.v4.b32") == 4


@table(
    "dtype, d, why",
    [
        ("bf16", 128, ""),
        ("f16", 256, ""),
        ("f32", 64, "torch's kernels attend in bf16 and fp16, and this is f32"),
        ("bf16", 20, "torch's kernels take heads of multiples of 8 elements up to 256, and these have 20"),
    ],
)
def test_what_kernels_take_is_known_before(dtype: str, d: int, why: str) -> None:
    assert attending.refuses(Shaped((4, 2, d), dtype)) == why


def test_amd_has_its_own_kernel() -> None:
    assert "NVIDIA" in attending.refuses(Shaped((4, 2, 64), "bf16", Device("MI300X", 304, capability=94)))
