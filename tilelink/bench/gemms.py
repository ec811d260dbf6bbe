"""AG+GEMM and GEMM+RS among their contenders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tilelink.bench.contest import (
    ASYNC_TP,
    COMM,
    GEMM,
    OURS,
    OWN_COMM,
    SEQUENTIAL,
    TRITON,
    Contest,
    Place,
    Run,
    Sizes,
    Variants,
)
from tilelink.bench.parts import all_gather, gemm_like, reduce_scatter

NO_GPU = "simulated: there is no GPU"


def ag_contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """`all_gather(x) @ weight`; M, N (of one rank) and K."""
    m, n, k = (sizes[d] for d in "MNK")
    each, mine = place.part(m)
    padded = place.random(each, k)
    x, weight = padded[:mine], place.random(k, n)
    rows, out = place.random(place.world.ranks * each, k), place.empty(m, n)
    contest = Contest(inputs=[padded, weight, rows])
    for name, op in ours.items():
        contest.enter(name, op, (x, weight), M=m)
    lone = gemm_like(ours[OURS])
    contest.used.append(lone)
    contest.runs[TRITON] = lambda: lone(rows[:m], weight, out=out)
    if place.simulated:
        _simulated(contest, lambda: all_gather(x, M=m), lambda whole: lone(whole, weight))
        return contest
    contest.runs[GEMM] = lambda: torch.mm(rows[:m], weight, out=out)
    contest.runs[COMM] = lambda: dist.all_gather_into_tensor(rows, padded)

    def sequential() -> torch.Tensor:
        dist.all_gather_into_tensor(rows, padded)
        return torch.mm(rows[:m], weight, out=out)

    contest.runs[SEQUENTIAL] = sequential
    _async_tp(contest, place, m, lambda group: torch.ops.symm_mem.fused_all_gather_matmul(x, [weight], 0, group))
    return contest


def rs_contest(place: Place, sizes: Sizes, ours: Variants) -> Contest:
    """`reduce_scatter(x @ weight)`; M, N and K, which is global."""
    m, n, k = sizes["M"], sizes["N"], place.part(sizes["K"])[1]
    each, mine = place.part(m)
    x, weight = place.random(m, k), place.random(k, n)
    partial, summed = place.random(place.world.ranks * each, n), place.empty(each, n)
    contest = Contest(inputs=[x, weight, partial])
    for name, op in ours.items():
        contest.enter(name, op, (x, weight), K=sizes["K"])
    lone = gemm_like(ours[OURS])
    contest.used.append(lone)
    contest.runs[TRITON] = lambda: lone(x, weight, out=partial[:m])
    if place.simulated:
        _simulated(contest, lambda: lone(x, weight), lambda p: reduce_scatter(p, M=m))
        contest.runs[OWN_COMM] = lambda: reduce_scatter(partial[:m], M=m)
        return contest
    contest.runs[GEMM] = lambda: torch.mm(x, weight, out=partial[:m])
    contest.runs[COMM] = lambda: dist.reduce_scatter_tensor(summed, partial)

    def sequential() -> torch.Tensor:
        torch.mm(x, weight, out=partial[:m])
        dist.reduce_scatter_tensor(summed, partial)
        return summed[:mine]

    contest.runs[SEQUENTIAL] = sequential
    _async_tp(
        contest,
        place,
        m,
        lambda group: torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight, "sum", 0, group),
    )
    return contest


def _simulated(contest: Contest, first: Run, second: Callable[[Any], Any]) -> None:
    """What stands in for cuBLAS and NCCL where there are none: our own halves, one after the other."""
    contest.missing |= dict.fromkeys((GEMM, COMM, ASYNC_TP), NO_GPU)
    contest.runs.setdefault(OWN_COMM, first)
    contest.runs[SEQUENTIAL] = lambda: second(first())


def _async_tp(contest: Contest, place: Place, m: int, run: Callable[[str], Any]) -> None:
    """PyTorch's asynchronous tensor parallelism, where this torch has it and can split the rows."""
    if m % place.world.ranks:
        contest.missing[ASYNC_TP] = f"{m} rows are not a multiple of {place.world.ranks}"
        return
    if place.world.ranks == 1:
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
    assert group is not None
    symmetric.enable_symm_mem_for_group(group)  # pyright: ignore[reportArgumentType]
    contest.runs[ASYNC_TP] = lambda: run(group)
