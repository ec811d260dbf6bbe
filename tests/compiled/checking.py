"""What must hold of every compiled kernel, whatever the operator and the placement."""

from __future__ import annotations

from typing import Any

import torch

from tests.compiled import hazards
from tests.compiled.compiling import CAPABILITIES, functions, texts
from tilelink import Operator
from tilelink.ir.kernel import KernelDecl, KernelSource
from tilelink.ir.plan import Plan
from tilelink.ir.topology import Device, RankAxis, Topology
from tilelink.pipeline.arguments import bind

RANKS = 4


def emitted(
    operator: Operator,
    tensors: list[torch.Tensor],
    target: str,
    backend: str = "peer",
    reach: str = "peer",
    *,
    axes: tuple[RankAxis, ...] = (),
    **given: Any,
) -> tuple[Plan, KernelSource]:
    """For the device that the target stands for: with TMA from sm_90 on, by pointers elsewhere."""
    device = Device(target, 132, 227 * 1024, 3, CAPABILITIES[target])
    topology = Topology(RANKS, backend, reach, device, axes)
    stages = operator.compiled(bind(operator, tensors, given, topology))
    return stages.plan, stages.source


def assert_compiles(plan: Plan, source: KernelSource, target: str, *, pipelined: bool = True) -> None:
    """Compiles all kernels, and looks for every hazard that a kernel can have.

    `pipelined`: sizes and strides allow each loop of products to load ahead, and stores to be wide; then they are.
    """
    for decl in source.kernels:
        asm = texts(plan, source, decl, target)
        assert hazards.unguarded_releases(asm["ttgir"]) == []
        if target == "gfx942":
            _check_amd(asm, decl)
        else:
            _check_nvidia(asm, pipelined, tma="shmem.async_load_fence" in functions(source, decl.name))


def _check_amd(asm: dict[str, str], decl: KernelDecl) -> None:
    assert "s_endpgm" in asm["amdgcn"]
    # A kernel of one wave has no barriers.
    assert decl.options.num_warps == 1 or hazards.unguarded_amd_releases(asm["amdgcn"]) == []


def _check_nvidia(asm: dict[str, str], pipelined: bool, tma: bool) -> None:
    assert ".visible .entry" in asm["ptx"]
    assert hazards.unguarded_releases(asm["ptx"]) == []
    assert hazards.unfinished_bulk_stores(asm["ptx"]) == []
    assert hazards.loads_before_their_acquire(asm["ttgir"]) == []
    if pipelined:
        assert hazards.loops_without_copies(asm["ttgir"]) == []
        assert hazards.narrow_stores(asm["ptx"]) == []
    if tma:
        assert hazards.unfenced_bulk_loads(asm["ptx"]) == []
