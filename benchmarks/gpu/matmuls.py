"""AG+GEMM, GEMM+RS and its ring in many placements, with data that shows mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.harness import Machine
from tilelink import copy_engine, fused, sms
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes and Triton's options of a matmul."""

    m: int
    n: int
    k: int
    warps: int
    stages: int = 3

    def matmul(self, *order: str) -> Any:
        return sms(M=self.m, N=self.n, K=self.k, num_warps=self.warps, num_stages=self.stages, order=order)


BIG = Tiles(128, 256, 64, 8)
SMALL = Tiles(64, 64, 64, 4)


def ag_schedules(tiles: Tiles) -> dict[str, Any]:
    matmul = tiles.matmul("ring", "group 16")
    placements = {
        "dma push": copy_engine(push=True),
        "dma push 2 chunks": copy_engine(M=1024, push=True),
        "dma pull": copy_engine(push=False),
        "sms pull": sms(8, M=128, order="ring"),
        "sms push": sms(8, M=128, order="ring", push=True),
        "own kernel push": sms(8, M=128, push=True, own_kernel=True, num_warps=8),
    }
    return {name: ag_gemm.schedule(gather=p, matmul=matmul) for name, p in placements.items()}


def rs_schedules(tiles: Tiles) -> dict[str, Any]:
    matmul = tiles.matmul("ring+1", "group 8")
    add = sms(M=16, N=512, num_warps=8)
    chunks = copy_engine(M=1024, order="ring+1")
    return {
        "fused push": gemm_rs.schedule(scatter=fused("matmul"), matmul=matmul, reduce=add),
        "fused push, fused reduce": gemm_rs.schedule(scatter=fused("matmul"), reduce=fused("matmul"), matmul=matmul),
        "dma, fused reduce": gemm_rs.schedule(scatter=chunks, reduce=fused("matmul"), matmul=matmul),
        "dma": gemm_rs.schedule(scatter=chunks, reduce=add, matmul=matmul),
        "sms push": gemm_rs.schedule(scatter=sms(8, M=128, order="ring+1"), reduce=add, matmul=matmul),
        "sms pull": gemm_rs.schedule(scatter=sms(8, M=128, push=False), reduce=add, matmul=matmul),
    }


def ring_schedules(tiles: Tiles) -> dict[str, Any]:
    matmul = tiles.matmul("ring+1", "group 8")
    apart = sms(16, M=tiles.m, N=tiles.n, order=("ring+1", "group 8"))
    return {
        "ring fused": gemm_rs_ring.schedule(matmul=matmul, ring=fused("matmul")),
        "ring 16 SMs": gemm_rs_ring.schedule(matmul=matmul, ring=apart),
    }


@dataclass(frozen=True, slots=True)
class Case:
    """This rank's arguments, its part of the result in fp32, and the sizes that shards leave open."""

    arguments: Tensors
    want: torch.Tensor
    given: dict[str, int]


def ag_case(machine: Machine, m: int, n: int, k: int, seed: int) -> Case:
    shards: list[torch.Tensor] = []
    for r in range(machine.ranks):
        low, high = machine.part(m, r)
        shards.append(machine.random(seed + r, high - low, k) * (r + 1))
    weight = machine.random(seed + 100 + machine.rank, k, n)
    return Case((shards[machine.rank], weight), torch.cat(shards).float() @ weight.float(), {"M": m})


def rs_case(machine: Machine, m: int, n: int, k: int, seed: int) -> Case:
    total = torch.zeros(m, n, device=machine.device)
    mine: Tensors = ()
    for r in range(machine.ranks):
        x, w = machine.random(seed + r, m, k) * (r + 1), machine.random(seed + 100 + r, k, n)
        total += x.float() @ w.float()
        if r == machine.rank:
            mine = (x, w)
    low, high = machine.part(m, machine.rank)
    return Case(mine, total[low:high].clone(), {})


@dataclass(frozen=True, slots=True)
class Subject:
    """An operator to be checked: how to make a case of it, and its placements."""

    make: Callable[[Machine, int, int, int, int], Case]
    schedules: Callable[[Tiles], dict[str, Any]]


SUBJECTS = {
    "ag_gemm": Subject(ag_case, ag_schedules),
    "gemm_rs": Subject(rs_case, rs_schedules),
    "gemm_rs_ring": Subject(rs_case, ring_schedules),
}
