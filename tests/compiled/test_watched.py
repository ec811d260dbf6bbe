"""Kernels with waits that have a time limit, and traced ones, compile for every target, and leave all else as it is."""

from __future__ import annotations

import re

import pytest
import torch

from tests.compiled import hazards
from tests.compiled.checking import assert_compiles, emitted
from tests.compiled.compiling import EACH_TARGET, TARGETS, texts
from tests.compiled.test_large_tiles import SUBJECTS
from tests.compiled.test_placements import PLACEMENTS, of_rank
from tests.mapping.plans import emitted as source_of
from tests.operators.placements import Placed
from tilelink import copy_engine, sms
from tilelink.ir.kernel import Checks, KernelSource
from tilelink.ir.plan import Plan
from tilelink.ops import ag_gemm, ag_moe, gemm_rs

WATCHED = Checks(watchdog=True)


@pytest.mark.parametrize("target", EACH_TARGET)
def test_kernels(target: str) -> None:
    """One placement after the other, the targets taking turns; SMs, copy engines, fusion and a ring are among them. Large
    tiles are below."""
    small = [p for p in PLACEMENTS if not p.name.endswith("default")]
    for placed in small[list(TARGETS).index(target) :: 2 * len(TARGETS)]:
        plan, _ = emitted(placed.operator, of_rank(placed, 64, 64, 64), target)
        assert_compiles(plan, source_of(plan, WATCHED), target)


def product(plan: Plan, source: KernelSource) -> dict[str, str]:
    kernel = next(k.name for k in plan.kernels if any(path == "matmul" for path, _ in k.roles))
    return texts(plan, source, source.kernel(kernel), "sm_90")


@pytest.mark.each_triton
@pytest.mark.parametrize("name", ["ag pull", "rs copy engine"])
def test_products_stay_as_they_are(name: str) -> None:
    """Hazard 23: the wait is a loop of its own, outside the pipelined one; as much is in flight as without a limit."""
    operator, shapes = SUBJECTS[name]
    plan, plain = emitted(operator, [torch.empty(s, dtype=torch.bfloat16) for s in shapes], "sm_90")
    off, on = product(plan, plain), product(plan, source_of(plan, WATCHED))
    copies = [len(hazards.ASYNC_COPY.findall(asm["ttgir"])) for asm in (off, on)]
    assert copies[0] == copies[1] > 0
    assert hazards.loads_before_their_acquire(on["ttgir"]) == []
    assert hazards.loops_without_copies(on["ttgir"]) == []
    assert on["ptx"].count("wgmma.mma_async") == off["ptx"].count("wgmma.mma_async") == 4
    assert "globaltimer" in on["ptx"]
    assert "globaltimer" not in off["ptx"]


@pytest.mark.each_triton
def test_threads_leave_a_wait_together() -> None:
    """Every thread reads a clock of its own; what ends the loop is the answer of one thread's atomic, broadcast to all."""
    operator = ag_gemm.schedule(gather=copy_engine(push=False))
    plan, _ = emitted(operator, [torch.empty(s, dtype=torch.bfloat16) for s in ((64, 64), (64, 64))], "sm_90")
    source = source_of(plan, WATCHED)
    ptx = texts(plan, source, source.kernel("await_flag"), "sm_90")["ptx"]
    loop = ptx[ptx.index("%globaltimer") :]
    taken = re.search(r"@(%p\d+) atom\.global\.gpu\.relaxed\.or\.b64 (%rd\d+)", loop)
    assert taken is not None
    # Triton 3.9 shuffles within the one warp, 3.6 goes through shared memory.
    rest = loop[loop.index(taken[0]) + len(taken[0]) :]
    way = rf"mov\.b64\s+{{_, %r\d+}}, {taken[2]};.*?shfl\.sync|st\.shared\.b64 \[[^]]*\], {taken[2]};.*?bar\.sync.*?ld\.shared"
    answer = re.search(rf"({way}).*?setp\.\w+\.b\d+\s+(%p\d+)", rest, re.S)
    assert answer is not None
    assert "atom" not in answer[0]
    assert len(re.findall(rf"{answer[2]}\b", ptx)) > 1  # it decides something


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_every_look_may_leave_out_the_hosts_memory(target: str) -> None:
    """One look per wait, its read of the host's flag under a predicate: machine code then has it so, too."""
    operator = gemm_rs.schedule(matmul=sms(M=64, N=64, K=32, order="ring+1"))
    plan, _ = emitted(operator, [torch.empty(512, 64), torch.empty(64, 128)], target)
    source = source_of(plan, WATCHED)
    for kernel in source.kernels:
        ptx = texts(plan, source, kernel, target)["ptx"]
        looks = ptx.count("%globaltimer;")
        reads = re.findall(r"(@!?%p\d+\s+)?ld\.volatile\.", ptx)
        assert len(reads) == looks
        assert all(reads)


@pytest.mark.each_triton
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_debug_mode(target: str) -> None:
    """Reductions over index vectors and tables, beside everything else."""
    operator = ag_moe.schedule(
        gather=sms(2, M=32), gather_choice=sms(1, M=32), place=sms(T=32), grouped=sms(P=32, N=32, H=32)
    )
    tokens, weight = (torch.empty(s, dtype=torch.bfloat16) for s in ((64, 64), (8, 64, 64)))
    plan, _ = emitted(operator, [tokens, torch.empty(64, 2, dtype=torch.int32), weight], target)
    source = source_of(plan, Checks(watchdog=True, debug=True))
    assert source.text.count("shmem.check") > 2
    assert_compiles(plan, source, target, pipelined=False)


TRACED = [p for p in PLACEMENTS if p.name in ("ag_gemm SMs pull", "gemm_rs fused, reduction fused")]


@pytest.mark.parametrize("target", [pytest.param("sm_90", marks=pytest.mark.each_triton), "gfx942"])
@pytest.mark.parametrize("placed", TRACED, ids=str)
def test_traced_kernels(placed: Placed, target: str) -> None:
    """They load ahead as untraced ones do."""
    plan, source = emitted(placed.operator, of_rank(placed, 64, 64, 64), target)
    traced = source_of(plan, traced=True)
    assert_compiles(plan, traced, target)
    for decl in traced.kernels:
        if target == "sm_90" and decl.name != "await_flag":
            asm, plain = texts(plan, traced, decl, target), texts(plan, source, source.kernel(decl.name), target)
            assert "%globaltimer" in asm["ptx"]
            assert len(hazards.ASYNC_COPY.findall(asm["ttgir"])) == len(hazards.ASYNC_COPY.findall(plain["ttgir"]))


def test_there_is_something_to_trace() -> None:
    assert len(TRACED) == 2
