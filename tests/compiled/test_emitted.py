"""Every emitted kernel compiles for every target without a GPU; what only machine code shows is asserted on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compiled.compiling import TARGETS, compile_kernel
from tilelink import copy_engine, fused, sms
from tilelink.ir.kernel import KernelSource
from tilelink.ir.plan import Plan
from tilelink.ir.topology import Device, Topology
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring
from tilelink.pipeline.arguments import bind

H200 = Device("NVIDIA H200", 132, 227 * 1024, 3, 90)


@dataclass(frozen=True, slots=True)
class Subject:
    """An operator as scheduled, at one size: `aligned` sizes take TMA, others pointers."""

    op: Any
    shapes: tuple[tuple[int, int], tuple[int, int]]


def _big(*order: str) -> Any:
    return sms(M=128, N=256, K=64, num_warps=8, num_stages=3, order=order)


AG = ((2048, 1024), (1024, 512))
RS = ((8192, 256), (256, 1024))
SUBJECTS: dict[str, Subject] = {
    "ag pull": Subject(ag_gemm.schedule(gather=sms(8, M=128), matmul=_big("ring", "group 8")), AG),
    "ag push": Subject(ag_gemm.schedule(gather=sms(8, M=128, push=True), matmul=_big("ring", "group 8")), AG),
    "ag copy engine": Subject(ag_gemm.schedule(gather=copy_engine(push=False), matmul=_big("ring")), AG),
    "ag ragged": Subject(ag_gemm.schedule(gather=sms(8, M=128), matmul=_big("ring")), ((997, 75), (75, 131))),
    "rs fused": Subject(gemm_rs.schedule(scatter=fused("matmul"), matmul=_big("ring+1")), RS),
    "rs copy engine": Subject(gemm_rs.schedule(matmul=_big("ring+1", "group 8")), RS),
    "rs reduce apart": Subject(gemm_rs.schedule(reduce=sms(M=16, N=512), matmul=_big("ring+1")), RS),
    "ring": Subject(gemm_rs_ring.schedule(matmul=_big("ring+1")), RS),
}


@cache
def emitted(name: str) -> tuple[Plan, KernelSource]:
    subject = SUBJECTS[name]
    tensors = [torch.empty(s, dtype=torch.bfloat16) for s in subject.shapes]
    bound = bind(subject.op.name, subject.op.signature, tensors, {}, 4, subject.op.loc)
    stages = subject.op.stages(bound, Topology(4, "peer", "peer", H200))
    return stages.plan, stages.source


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def compiled(name: str, kernel: str, target: str = "sm_90") -> dict[str, str]:
    plan, source = emitted(name)
    return compile_kernel(plan, source, source.kernel(kernel), target).asm


def main_kernel(name: str) -> str:
    """The kernel with the matmul in it."""
    plan, _ = emitted(name)
    return next(k.name for k in plan.kernels if any(path == "matmul" for path, _ in k.roles))


def in_order(text: str, *patterns: str) -> None:
    """Each pattern matches somewhere after the one before."""
    at = 0
    for pattern in patterns:
        found = re.search(pattern, text[at:])
        assert found is not None, f"{pattern} does not follow"
        at += found.end()


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("name", ["ag pull", "ag ragged", "rs fused", "rs copy engine", "ring"])
def test_every_kernel_compiles(name: str, target: str) -> None:
    _, source = emitted(name)
    code = {"gfx942": "amdgcn"}.get(target, "ptx")
    for kernel in source.kernels:
        assert compiled(name, kernel.name, target)[code]


@pytest.mark.parametrize("name", ["ag push", "ag copy engine", "rs reduce apart"])
def test_the_other_placements_compile(name: str) -> None:
    _, source = emitted(name)
    for kernel in source.kernels:
        assert compiled(name, kernel.name)["ptx"]


@pytest.mark.parametrize("name", ["ag pull", "rs copy engine", "ring"])
def test_the_dot_loop_becomes_a_pipelined_tma_matmul(name: str) -> None:
    """128×256×64 with 8 warps: four warp-group products a step, both operands by TMA, three stages in flight."""
    asm = compiled(name, main_kernel(name))
    assert asm["ptx"].count("wgmma.mma_async") == 4
    loads = re.findall(r"ttng.async_tma_copy_global_to_local", asm["ttgir"])
    assert len(loads) == 3 * 2  # two stages ahead of the loop, one in it
    assert "cp.async.cg" not in asm["ptx"]


def test_ragged_sizes_take_pointers() -> None:
    """75 columns of bf16 are 150 bytes: no TMA descriptor."""
    assert "cp.async.bulk.tensor" not in compiled("ag ragged", main_kernel("ag ragged"))["ptx"]


RELEASE = r"tt\.atomic_rmw .*(release|acq_rel), (gpu|sys)"
STORE = r"tt\.store|async_tma_copy_local_to_global"
BARRIER = r"(gpu|ttg)\.barrier"


@pytest.mark.parametrize("name", ["rs fused", "ring", "ag pull"])
def test_all_threads_have_stored_before_one_signals(name: str) -> None:
    """Hazard: Triton puts no barrier between the stores of all threads and the release of one."""
    lines = compiled(name, main_kernel(name))["ttgir"].splitlines()
    releases = [i for i, line in enumerate(lines) if re.search(RELEASE, line)]
    assert releases
    for at in releases:
        before = [line for line in lines[:at] if re.search(f"{STORE}|{BARRIER}", line)]
        assert re.search(BARRIER, before[-1]), lines[at]


def test_tma_stores_are_complete_before_they_are_signalled() -> None:
    """Hazard: Triton itself waits until a bulk store has been read, not until it is in memory."""
    ttgir = compiled("rs copy engine", main_kernel("rs copy engine"))["ttgir"]
    tail = ttgir[ttgir.index("async_tma_copy_local_to_global") :]
    in_order(tail, r"cp\.async\.bulk\.wait_group 0", r"fence\.proxy\.async", BARRIER, r"atomic_rmw .*acq_rel, gpu")


def test_tma_loads_follow_the_wait_and_its_fence() -> None:
    """Hazard: what others wrote through the generic proxy is read by the asynchronous one."""
    ttgir = compiled("ag pull", main_kernel("ag pull"))["ttgir"]
    acquire = max(m.start() for m in re.finditer(r"tt\.atomic_rmw .*acquire, gpu", ttgir))
    in_order(ttgir[acquire:], r"fence\.proxy\.async", r"async_tma_copy_global_to_local")


def test_waited_tensors_are_not_loaded_before_their_acquire() -> None:
    """Hazard: the pipeliner moves loads above a conditional acquire. The wait stands outside the pipelined loop."""
    ttgir = compiled("ag pull", main_kernel("ag pull"))["ttgir"]
    last_acquire = max(m.start() for m in re.finditer(r"tt\.atomic_rmw .*acquire, gpu", ttgir))
    first_load = ttgir.index("async_tma_copy_global_to_local")
    assert last_acquire < first_load


def test_pushed_tiles_are_stored_in_vectors() -> None:
    """Hazard: a translated pointer loses its alignment, and stores become two bytes wide."""
    ptx = compiled("rs fused", main_kernel("rs fused"))["ptx"]
    assert re.search(r"st\.global\.v4\.b32", ptx)
    assert not re.search(r"st\.global\.b16", ptx)
