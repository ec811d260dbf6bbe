"""Kernels of operators with two axes of ranks, for GPUs that are not there."""

from __future__ import annotations

import pytest
import torch

from examples.data_and_tensor_parallel import LINEAR
from examples.two_levels import GATHER, SCATTER
from tests.compiled.checking import assert_compiles, emitted
from tests.compiled.compiling import EACH_TARGET, texts
from tilelink import copy_engine, sms
from tilelink.ir.topology import RankAxis

DATA = (RankAxis("DP", 2), RankAxis("TP", 2))
NODES = (RankAxis("NODE", 2, "network"), RankAxis("GPU", 2))
TILES = sms(M=64, N=64, K=64, num_stages=2)
SCHEDULES = {
    "SMs": LINEAR.schedule(gather_rows=sms(4, M=64), gather_weight=sms(4, M=64, push=True), matmul=TILES),
    "copy engines": LINEAR.schedule(gather_rows=copy_engine(push=True), gather_weight=copy_engine(M=64), matmul=TILES),
}


def made(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("target", EACH_TARGET)
def test_a_product_that_waits_along_two_axes(target: str) -> None:
    plan, source = emitted(SCHEDULES["SMs"], [made(64, 128), made(64, 64)], target, axes=DATA)
    assert_compiles(plan, source, target, pipelined=False)


def test_copy_engines_along_two_axes() -> None:
    plan, source = emitted(SCHEDULES["copy engines"], [made(64, 128), made(64, 64)], "sm_90", axes=DATA)
    assert_compiles(plan, source, "sm_90", pipelined=False)


@pytest.mark.usefixtures("_unlinked")
def test_two_levels_put_across_the_network_and_hand_on_inside() -> None:
    gathering = emitted(GATHER, [made(1, 1, 64, 64)], "sm_90", "nvshmem", "network", axes=NODES)
    scattering = emitted(SCATTER, [made(2, 2, 64, 64)], "sm_90", "nvshmem", "network", axes=NODES)
    for plan, source in (gathering, scattering):
        asm = [texts(plan, source, decl, "sm_90")["ptx"] for decl in source.kernels]
        assert any("nvshmemx_putmem_nbi_block" in text for text in asm)
        assert not any("nvshmemx_getmem_nbi_block" in text for text in asm)
