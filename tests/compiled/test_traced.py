"""The traced variant compiles, keeps all orders, and loads ahead as the untraced one does."""

from __future__ import annotations

import re

import pytest

from tests.compiled.checking import assert_compiles, emitted
from tests.compiled.compiling import texts
from tests.compiled.test_placements import of_rank
from tests.mapping.plans import emitted as source_of
from tests.operators.placements import Placed, placements

SOME = ("ag_gemm SMs pull", "gemm_rs fused, reduction fused")


@pytest.mark.parametrize("target", [pytest.param("sm_90", marks=pytest.mark.each_triton), "gfx942"])
@pytest.mark.parametrize("placed", [p for p in placements(tile=32) if p.name in SOME], ids=str)
def test_traced_kernels(placed: Placed, target: str) -> None:
    plan, source = emitted(placed.operator, of_rank(placed, 64, 64, 64), target)
    traced = source_of(plan, traced=True)
    assert_compiles(plan, traced, target)
    for decl in traced.kernels:
        if target == "sm_90" and decl.name != "await_flag":
            assert "%globaltimer" in texts(plan, traced, decl, target)["ptx"]
            plain = texts(plan, source, source.kernel(decl.name), target)["ttgir"]
            assert copies(texts(plan, traced, decl, target)["ttgir"]) == copies(plain)


def copies(ttgir: str) -> int:
    return len(re.findall(r"async_copy_global_to_local|async_tma_copy_global_to_local", ttgir))


def test_there_is_something_to_compile() -> None:
    assert {p.name for p in placements(tile=32)} >= set(SOME)
