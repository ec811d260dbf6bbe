"""The tiles that reach cuBLAS, at sizes like those of a transformer: products by TMA, several stages in flight."""

from __future__ import annotations

import re

import pytest
import torch

from tests.compiled import hazards
from tests.compiled.checking import assert_compiles, emitted
from tests.compiled.compiling import texts
from tilelink import Operator, fused, sms
from tilelink.ir.schedule import Placement
from tilelink.ops import ag_gemm, ag_outer, gemm_rs, gemm_rs_ring, outer_ag


def _matmul(*order: str) -> Placement:
    return sms(M=128, N=256, K=64, num_warps=8, num_stages=3, order=order)


AG = ((2048, 1024), (1024, 512))
RS = ((8192, 256), (256, 1024))
SUBJECTS: dict[str, tuple[Operator, tuple[tuple[int, int], ...]]] = {
    "ag pull": (ag_gemm.schedule(gather=sms(8, M=128), matmul=_matmul("ring", "group 8")), AG),
    "rs fused": (gemm_rs.schedule(scatter=fused("matmul"), matmul=_matmul("ring+1")), RS),
    "rs copy engine": (gemm_rs.schedule(matmul=_matmul("ring+1", "group 8")), RS),
    "ring": (gemm_rs_ring.schedule(matmul=_matmul("ring+1")), RS),
    "ag, parts that end within a tile": (
        ag_gemm.schedule(matmul=_matmul("ring", "group 16")),
        ((997, 1024), (1024, 512)),
    ),
}


OUTER = sms(K=128, N=256, M=64, num_warps=8, num_stages=3)
GRADIENTS: dict[str, tuple[Operator, tuple[tuple[int, int], ...]]] = {
    "rows": (ag_outer.schedule(outer=OUTER), ((2048, 1024), (8192, 512))),
    "gradients": (outer_ag.schedule(outer=OUTER), ((8192, 1024), (2048, 512))),
}


def product(name: str, target: str) -> dict[str, str]:
    """The kernel with the products in it; every other one is checked on the way."""
    operator, shapes = (SUBJECTS | GRADIENTS)[name]
    plan, source = emitted(operator, [torch.empty(s, dtype=torch.bfloat16) for s in shapes], target)
    assert_compiles(plan, source, target)
    kernel = next(k.name for k in plan.kernels if any(path in ("matmul", "outer") for path, _ in k.roles))
    return texts(plan, source, source.kernel(kernel), target)


@pytest.mark.each_triton
@pytest.mark.parametrize("name", [*SUBJECTS, *GRADIENTS])
def test_the_dot_loop_becomes_a_pipelined_tma_matmul(name: str) -> None:
    """128×256×64 with 8 warps: four warp-group products a step, both operands by TMA, three stages in flight."""
    asm = product(name, "sm_90")
    assert asm["ptx"].count("wgmma.mma_async") == 4
    loads = re.findall(r"ttng.async_tma_copy_global_to_local", asm["ttgir"])
    assert len(loads) == 3 * 2  # two stages ahead of the loop, one in it
    assert "cp.async.cg" not in asm["ptx"]


def test_blackwell_has_products_of_its_own() -> None:
    asm = product("ag pull", "sm_100")
    assert "tcgen05.mma" in asm["ptx"]
    assert "ttng.async_tma_copy_global_to_local" in asm["ttgir"]


@pytest.mark.each_triton
def test_pushed_tiles_are_stored_in_vectors() -> None:
    ptx = product("rs fused", "sm_90")["ptx"]
    assert re.search(r"st\.global\.v4\.b32", ptx)
    assert hazards.narrow_stores(ptx) == []


@pytest.mark.each_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    operator = ag_gemm.schedule(gather=sms(8, M=64), matmul=sms(M=64, N=64, K=32, order="ring"))
    tensors = [torch.empty(s, dtype=dtype) for s in ((256, 128), (128, 256))]
    assert_compiles(*emitted(operator, tensors, "sm_90"), "sm_90")


@pytest.mark.each_triton
@pytest.mark.parametrize(("target", "wanted"), [("sm_90", [".maxnreg 168"]), ("gfx942", [])])
def test_a_limit_of_registers(target: str, wanted: list[str]) -> None:
    """Triton is told what the schedule says, where its compiler knows such a limit, and kernels of one block are not."""
    operator = ag_gemm.schedule(gather=sms(8, M=128), matmul=sms(M=64, N=64, K=64, maxnreg=168))
    shapes = ((256, 128), (128, 128))
    plan, source = emitted(operator, [torch.empty(s, dtype=torch.bfloat16) for s in shapes], target)
    found = {k.name: texts(plan, source, k, target) for k in source.kernels}
    limits = {name: re.findall(r"\.maxnreg \d+", asm.get("ptx", "")) for name, asm in found.items()}
    assert limits == {name: wanted if name == plan.kernels[0].name else [] for name in found}
