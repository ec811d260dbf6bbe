"""AG+GEMM and GEMM+RS among their contenders. On simulated ranks our own halves, one after the other, stand in for libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilelink.bench.contest import (
    ASYNC_TP,
    COMM,
    GEMM,
    NO_GPU,
    OURS,
    OWN_COMM,
    TRITON,
    UNFUSED,
    Contest,
    Place,
    Sizes,
    Variants,
    same,
)
from tilelink.bench.parts import all_gather, gemm_like, reduce_scatter
from tilelink.bench.subjects.subject import BenchCase, Subject
from tilelink.bench.workloads import MLPS
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring


def ag_contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """`all_gather(x) @ weight`; M, N (of one rank) and K."""
    m, n, k = (sizes[d] for d in "MNK")
    each, mine = place.part(m)
    padded = place.random(each, k)
    x, weight = padded[:mine], place.random(k, n)
    rows, out = place.random(place.backend.ranks * each, k), place.empty(m, n)
    contest = Contest(inputs=[padded, weight, rows], outputs=[out])
    for name, op in ours.items():
        contest.enter(name, op, (x, weight), M=m)
    lone, lib = gemm_like(ours[OURS]), place.libraries
    contest.used.append(lone)

    def unfused() -> torch.Tensor:
        lib.all_gather_into_tensor(rows, padded)
        return torch.mm(rows[:m], weight, out=out)

    contest.add(TRITON, lambda: lone(rows[:m], weight, out=out))
    contest.add(GEMM, lambda: torch.mm(rows[:m], weight, out=out), library=True)
    contest.add(COMM, lambda: lib.all_gather_into_tensor(rows, padded), library=True)
    if place.simulated:
        contest.add(OWN_COMM, lambda: all_gather(x, M=m))
        contest.rival(UNFUSED, lambda: lone(all_gather(x, M=m), weight))
    else:
        contest.rival(UNFUSED, unfused)
    _async_tp(
        contest,
        place,
        m,
        lambda group: torch.ops.symm_mem.fused_all_gather_matmul(x, [weight], 0, group),
        lambda result: result[1][0],
    )
    return contest


def rs_contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """`reduce_scatter(x @ weight)`; M, N and K, which is global."""
    m, n, k = sizes["M"], sizes["N"], place.part(sizes["K"])[1]
    each, mine = place.part(m)
    x, weight = place.random(m, k), place.random(k, n)
    partial, summed = place.random(place.backend.ranks * each, n), place.empty(each, n)
    contest = Contest(inputs=[x, weight, partial], outputs=[summed])
    for name, op in ours.items():
        contest.enter(name, op, (x, weight), K=sizes["K"])
    lone, lib = gemm_like(ours[OURS]), place.libraries
    contest.used.append(lone)

    def unfused() -> torch.Tensor:
        torch.mm(x, weight, out=partial[:m])
        lib.reduce_scatter_tensor(summed, partial)
        return summed[:mine]

    contest.add(TRITON, lambda: lone(x, weight, out=partial[:m]))
    contest.add(GEMM, lambda: torch.mm(x, weight, out=partial[:m]), library=True)
    contest.add(COMM, lambda: lib.reduce_scatter_tensor(summed, partial), library=True)
    if place.simulated:
        contest.add(OWN_COMM, lambda: reduce_scatter(partial[:m], M=m))
        contest.rival(UNFUSED, lambda: reduce_scatter(lone(x, weight), M=m))
    else:
        contest.rival(UNFUSED, unfused)
    _async_tp(
        contest,
        place,
        m,
        lambda group: torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight, "sum", 0, group),
    )
    return contest


def _async_tp(
    contest: Contest, place: Place, m: int, run: Callable[[str], Any], reads: Callable[[Any], Any] = same
) -> None:
    """PyTorch's asynchronous tensor parallelism, where this torch has it and can split the rows."""
    if place.group is None:
        contest.missing[ASYNC_TP] = NO_GPU
        return
    if m % place.backend.ranks:
        contest.missing[ASYNC_TP] = f"{m} rows are not a multiple of {place.backend.ranks}"
        return
    if place.backend.ranks == 1:
        contest.missing[ASYNC_TP] = "one rank"
        return
    try:
        from torch.distributed import _symmetric_memory as symmetric
    except ImportError as error:
        contest.missing[ASYNC_TP] = str(error)
        return
    if not hasattr(symmetric, "enable_symm_mem_for_group"):
        contest.missing[ASYNC_TP] = f"torch {torch.__version__} has none"
        return
    group = place.group
    symmetric.enable_symm_mem_for_group(group)  # pyright: ignore[reportArgumentType]
    contest.add(ASYNC_TP, lambda: run(group), lambda: reads(run(group)))


def _ag_shapes(ranks: int) -> list[BenchCase]:
    return [BenchCase(m.name, dict(zip("MNK", m.ag_gemm(ranks), strict=True))) for m in MLPS]


def _rs_shapes(_: int) -> list[BenchCase]:
    return [BenchCase(m.name, {"M": m.tokens, "N": m.hidden, "K": m.intermediate}) for m in MLPS]


SMALL = {"M": 512, "N": 256, "K": 256}
AG = "cuBLAS after NCCL's all-gather, and async-TP"
RS = "NCCL's reduce-scatter after cuBLAS, and async-TP"

SUBJECTS = (
    Subject("ag_gemm", ag_gemm, _ag_shapes, ag_contest, SMALL, AG, "M"),
    Subject("gemm_rs", gemm_rs, _rs_shapes, rs_contest, SMALL, RS, "M"),
    Subject("gemm_rs_ring", gemm_rs_ring, _rs_shapes, rs_contest, SMALL, RS, "M"),
)
