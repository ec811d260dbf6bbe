"""Copies by all threads of a program: how wide their accesses are."""

from __future__ import annotations

import re

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilelink.device import peer


@triton.jit
def copy(dst, src, count):
    peer.copy_block(dst, src, count)


@pytest.mark.each_triton
@pytest.mark.parametrize(("dtype", "narrow"), [("bf16", "b16"), ("fp32", "b32"), ("fp8e4nv", "b8")])
def test_whole_vectors_wherever_the_length_has_them_and_single_elements_where_it_ends_inside_one(
    dtype: str, narrow: str
) -> None:
    aligned = [["tt.divisibility", 16]]
    source = ASTSource(
        copy, {"dst": f"*{dtype}", "src": f"*{dtype}", "count": "i32"}, {}, {(0,): aligned, (1,): aligned}
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    accesses = re.findall(r"(@%p\d+ )?((?:ld|st)\.global\.\S+)", ptx)
    wanted = {(whole, f"{access}.global.v4.b32") for whole in (True, False) for access in ("ld", "st")}
    wanted |= {(False, f"{access}.global.{narrow}") for access in ("ld", "st")}
    assert {(not mask, access) for mask, access in accesses} == wanted
