"""Timings: everything that is compared runs interleaved in one run, on inputs that rotate so that L2 is not reused.

A time is the maximum over ranks; the figure is the median of the rounds. The clock of a GPU drops under load: compare
within a table only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cases import BIG, SUBJECTS, Machine
from benchmarks.workloads import MLPS
from tilelink.errors import TilelinkError

ROTATE = 3
Run = Callable[[int], Any]


def timings(machine: Machine, rows: list[dict[str, Any]], rounds: int, budget_s: float) -> None:
    """cuBLAS and NCCL one after the other, each alone, async tensor parallelism, and every placement of ours."""
    import torch.distributed._symmetric_memory as symm

    group = dist.group.WORLD
    assert group is not None
    symm.enable_symm_mem_for_group(group.group_name)
    started = time.time()
    for name in ("ag_gemm", "gemm_rs"):
        for mlp in MLPS:
            if machine.worst(time.time() - started) > budget_s:
                rows.append({"operator": name, "case": mlp.name, "problem": "not timed: out of time", "ok": True})
                continue
            shape = mlp.ag_gemm(machine.ranks) if name == "ag_gemm" else mlp.gemm_rs(machine.ranks)
            ours = SUBJECTS[name].schedules(BIG)
            others = ag_contenders if name == "ag_gemm" else rs_contenders
            table = others(machine, *shape, group.group_name, ours)
            rows += _rows(machine, name, mlp.name, shape, *interleaved(machine, table, rounds))
            for op in ours.values():
                op.close()
            torch.cuda.empty_cache()


def _rows(
    machine: Machine,
    name: str,
    case: str,
    shape: tuple[int, int, int],
    times: dict[str, list[float]],
    host: dict[str, list[float]],
) -> list[dict[str, Any]]:
    middle = {label: statistics.median(t) for label, t in times.items()}
    sequential, gemm = middle["sequential"], middle["cublas"]
    out: list[dict[str, Any]] = []
    for label, ms in middle.items():
        row: dict[str, Any] = {
            "operator": name,
            "case": case,
            "world": machine.ranks,
            "m": shape[0],
            "n": shape[1],
            "k": shape[2],
            "contender": label,
            "ms": ms,
            "ms_min": min(times[label]),
            "ms_max": max(times[label]),
            "host_us": statistics.median(host[label]),
            "ms_sequential": sequential,
            "ms_gemm": gemm,
            "ms_comm": middle["nccl"],
            "efficiency": (sequential - ms) / (sequential - gemm),
            "ok": True,
        }
        out.append(row)
        if machine.rank == 0:
            print(f"{name} {case} {label:26s} {ms:7.3f} ms  E {row['efficiency']:6.2f}  host {row['host_us']:4.0f} us")
    return out


def ag_contenders(machine: Machine, m: int, n: int, k: int, group: str, ours: dict[str, Any]) -> dict[str, Run]:
    xs = [machine.random(17 * i + machine.rank, m // machine.ranks, k) for i in range(ROTATE)]
    ws = [machine.random(31 * i + machine.rank, k, n) for i in range(ROTATE)]
    rows = machine.random(3, m, k)

    def sequential(i: int) -> Any:
        dist.all_gather_into_tensor(rows, xs[i])
        return rows @ ws[i]

    table: dict[str, Run] = {
        "cublas": lambda i: rows @ ws[i],
        "nccl": lambda i: dist.all_gather_into_tensor(rows, xs[i]),
        "sequential": sequential,
        "async-tp": lambda i: torch.ops.symm_mem.fused_all_gather_matmul(xs[i], [ws[i]], 0, group),
    }
    return table | {label: lambda i, op=op: op(xs[i], ws[i]) for label, op in ours.items()}


def rs_contenders(machine: Machine, m: int, n: int, k: int, group: str, ours: dict[str, Any]) -> dict[str, Run]:
    xs = [machine.random(17 * i + machine.rank, m, k) for i in range(ROTATE)]
    ws = [machine.random(31 * i + machine.rank, k, n) for i in range(ROTATE)]
    partial = machine.random(3, m, n)
    mine = machine.random(4, m // machine.ranks, n)

    def sequential(i: int) -> Any:
        torch.mm(xs[i], ws[i], out=partial)
        return dist.reduce_scatter_tensor(mine, partial)

    table: dict[str, Run] = {
        "cublas": lambda i: torch.mm(xs[i], ws[i], out=partial),
        "nccl": lambda i: dist.reduce_scatter_tensor(mine, partial),
        "sequential": sequential,
        "async-tp": lambda i: torch.ops.symm_mem.fused_matmul_reduce_scatter(xs[i], ws[i], "sum", 0, group),
    }
    return table | {label: lambda i, op=op: op(xs[i], ws[i]) for label, op in ours.items()}


def interleaved(
    machine: Machine, table: dict[str, Run], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Milliseconds per contender and round, and microseconds of this rank's host per call."""
    alive = {label: run for label, run in table.items() if _warm(machine, label, run)}
    times: dict[str, list[float]] = {label: [] for label in alive}
    host: dict[str, list[float]] = {label: [] for label in alive}
    for turn in range(rounds):
        for label, run in alive.items():
            dist.barrier()
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(1_500_000)  # the host gets ahead: launches are not what is timed
            start.record()
            began = time.perf_counter()
            run(turn % ROTATE)
            host[label].append((time.perf_counter() - began) * 1e6)
            end.record()
            torch.cuda.synchronize()
            times[label].append(machine.worst(start.elapsed_time(end)))
    return times, host


def _warm(machine: Machine, label: str, run: Run) -> bool:
    """Whether a contender runs on every rank; one that does not is named, and left out everywhere."""
    failed = 0.0
    try:
        for i in range(ROTATE):
            run(i)
        torch.cuda.synchronize()
    except (TilelinkError, RuntimeError) as problem:
        failed = 1.0
        print(f"rank {machine.rank}: {label} is missing: {str(problem).splitlines()[0]}", flush=True)
    return machine.worst(failed) == 0
