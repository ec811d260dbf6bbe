"""What a GPU machine shows: correctness of every operator, placement and shape, then a first timing table.

    torchrun --nproc-per-node=4 benchmarks/gpu_check.py --out results.json [--world nvshmem] [--only SECTION ...]

Data shows mistakes: rank r's input is scaled by r + 1, results are poisoned with NaN before each run, errors are relative
Frobenius norms against fp32. Timings interleave all contenders in one run on fresh random inputs that rotate, so that
L2 is not reused; a time is the maximum over ranks, the figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.workloads import MLPS, RAGGED
from tilelink import copy_engine, fused, sms
from tilelink.errors import TilelinkError
from tilelink.ops import ag_gemm, gemm_rs, gemm_rs_ring

BIG = dict(M=128, N=256, K=64, num_warps=8, num_stages=3)
SMALL = dict(M=64, N=64, K=64, num_warps=4, num_stages=3)
RING = ("ring", "group 8")
RING1 = ("ring+1", "group 8")


def ag_schedules(tiles: dict[str, int]) -> dict[str, Any]:
    mm = sms(**tiles, order=RING)
    return {
        "dma push": ag_gemm.schedule(gather=copy_engine(push=True), matmul=mm),
        "dma push 2 chunks": ag_gemm.schedule(gather=copy_engine(M=1024, push=True), matmul=mm),
        "dma pull": ag_gemm.schedule(gather=copy_engine(push=False), matmul=mm),
        "sms pull": ag_gemm.schedule(gather=sms(8, M=128, order="ring"), matmul=mm),
        "sms push": ag_gemm.schedule(gather=sms(8, M=128, order="ring", push=True), matmul=mm),
        "own kernel push": ag_gemm.schedule(gather=sms(8, M=128, push=True, own_kernel=True, num_warps=8), matmul=mm),
    }


def rs_schedules(tiles: dict[str, int]) -> dict[str, Any]:
    mm = sms(**tiles, order=RING1)
    add = sms(M=16, N=512, num_warps=8)
    return {
        "fused push": gemm_rs.schedule(scatter=fused("matmul"), matmul=mm, reduce=add),
        "fused push, fused reduce": gemm_rs.schedule(scatter=fused("matmul"), reduce=fused("matmul"), matmul=mm),
        "dma, fused reduce": gemm_rs.schedule(scatter=copy_engine(M=1024, order="ring+1"), reduce=fused("matmul"), matmul=mm),
        "dma": gemm_rs.schedule(scatter=copy_engine(M=1024, order="ring+1"), reduce=add, matmul=mm),
        "sms push": gemm_rs.schedule(scatter=sms(8, M=128, order="ring+1"), reduce=add, matmul=mm),
        "sms pull": gemm_rs.schedule(scatter=sms(8, M=128, push=False), reduce=add, matmul=mm),
    }


def ring_schedules(tiles: dict[str, int]) -> dict[str, Any]:
    mm = sms(**tiles, order=RING1)
    walk = {k: v for k, v in tiles.items() if k != "K"}
    return {
        "ring fused": gemm_rs_ring.schedule(matmul=mm, ring=fused("matmul")),
        "ring 16 SMs": gemm_rs_ring.schedule(matmul=mm, ring=sms(16, **walk, order=RING1)),
    }


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative Frobenius norm; infinite if anything is NaN."""
    if got.numel() == 0:
        return 0.0
    value = float((got.float() - want).norm() / want.norm().clamp_min(1e-30))
    return value if value == value else float("inf")


class Machine:
    """The group's processes: random inputs that every rank can reproduce, and agreement on times."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", torch.cuda.current_device())

    def random(self, seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(dtype)

    def worst(self, value: float) -> float:
        t = torch.tensor([value], device=self.device, dtype=torch.float64)
        dist.all_reduce(t, op=dist.ReduceOp.MAX)
        return float(t)


def part_of(m: int, rank: int, ranks: int) -> tuple[int, int]:
    each = max(1, -(-m // ranks))
    return min(rank * each, m), min((rank + 1) * each, m)


def ag_case(machine: Machine, m: int, n: int, k: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, dict[str, int]]:
    lo, hi = part_of(m, machine.rank, machine.ranks)
    full = torch.cat([machine.random(seed + r, h - low, k) * (r + 1) for r in range(machine.ranks)
                      for low, h in [part_of(m, r, machine.ranks)]])
    w = machine.random(seed + 100 + machine.rank, k, n)
    return (full[lo:hi].clone(), w), full.float() @ w.float(), {"M": m}


def rs_case(machine: Machine, m: int, n: int, k: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, dict[str, int]]:
    lo, hi = part_of(m, machine.rank, machine.ranks)
    total = torch.zeros(m, n, device=machine.device)
    mine: tuple[torch.Tensor, ...] = ()
    for r in range(machine.ranks):
        x, w = machine.random(seed + r, m, k) * (r + 1), machine.random(seed + 100 + r, k, n)
        total += x.float() @ w.float()
        if r == machine.rank:
            mine = (x, w)
    return mine, total[lo:hi], {}


CASES: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, Any]]]] = {
    "ag_gemm": (ag_case, ag_schedules),
    "gemm_rs": (rs_case, rs_schedules),
    "gemm_rs_ring": (rs_case, ring_schedules),
}


def run_checked(machine: Machine, op: Any, args: tuple[torch.Tensor, ...], want: torch.Tensor, more: dict[str, int]) -> float:
    out = torch.full(want.shape, float("nan"), dtype=args[0].dtype, device=machine.device)
    op(*args, out=out, **more)
    torch.cuda.synchronize()
    return error(out, want)


def correctness(machine: Machine, rows: list[dict[str, Any]], shapes: list[tuple[str, Callable[[str], tuple[int, int, int]]]],
                tiles: dict[str, int], only: set[str]) -> None:
    for name, (case, schedules) in CASES.items():
        for label, shape in shapes:
            m, n, k = shape(name)
            args, want, more = case(machine, m, n, k, seed=7)
            for schedule, op in schedules(tiles).items():
                if only and schedule not in only:
                    continue
                row: dict[str, Any] = {"operator": name, "case": label, "schedule": schedule, "m": m, "n": n, "k": k}
                try:
                    found = max(run_checked(machine, op, args, want, more) for _ in range(3))
                    row["error"] = machine.worst(found)
                    row["ok"] = row["error"] < 2e-2
                except TilelinkError as problem:
                    row |= {"ok": False, "problem": str(problem).splitlines()[0]}
                rows.append(row)
                op.close()
                if machine.rank == 0:
                    print(f"{name:13s} {label:10s} {schedule:26s} {row.get('error', row.get('problem'))}", flush=True)
            del args, want
            torch.cuda.empty_cache()


def many_calls(machine: Machine, rows: list[dict[str, Any]], calls: int) -> None:
    """Back-to-back calls with changing inputs and sizes, bit for bit equal to the first run of the same input."""
    for name, (case, schedules) in CASES.items():
        schedule, op = next(iter(schedules(BIG).items()))
        sizes = (2048, 1024, 1536)
        inputs = [case(machine, m, 1024, 512, seed=s) for s, m in enumerate(sizes)]
        firsts = [op(*args, **more).clone() for args, _, more in inputs]
        wrong = torch.zeros((), dtype=torch.int64, device=machine.device)
        for call in range(calls):
            args, _, more = inputs[call % len(inputs)]
            wrong += (op(*args, **more) != firsts[call % len(inputs)]).sum()
        worst = max(error(f, want) for f, (_, want, _) in zip(firsts, inputs, strict=True))
        bad = machine.worst(float(wrong))
        rows.append({"operator": name, "case": f"{calls} calls", "schedule": schedule, "error": machine.worst(worst),
                     "ok": bad == 0 and worst < 2e-2})
        op.close()
        if machine.rank == 0:
            print(f"{name:13s} {calls} calls, 3 sizes: {int(bad)} elements differ", flush=True)


def graphs(machine: Machine, rows: list[dict[str, Any]]) -> None:
    """A captured call replayed on new inputs, eager calls in between."""
    for name, (case, schedules) in CASES.items():
        for schedule, op in schedules(BIG).items():
            if "own kernel" in schedule:
                continue
            args, _, more = case(machine, 2048, 1024, 512, seed=1)
            out = op(*args, **more)
            op(*args, out=out, **more)
            torch.cuda.synchronize()
            dist.barrier()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                op(*args, out=out, **more)
            worst = 0.0
            for replay in range(20):
                fresh, want, _ = case(machine, 2048, 1024, 512, seed=1000 * replay)
                for a, b in zip(args, fresh, strict=True):
                    a.copy_(b)
                out.fill_(float("nan"))
                graph.replay()
                if replay % 3 == 2:
                    worst = max(worst, error(op(*args, **more), want))
                torch.cuda.synchronize()
                worst = max(worst, error(out, want))
            found = machine.worst(worst)
            rows.append({"operator": name, "case": "graph replay", "schedule": schedule, "error": found, "ok": found < 2e-2})
            op.close()
            if machine.rank == 0:
                print(f"{name:13s} graph replay {schedule:26s} {found:.1e}", flush=True)


def timings(machine: Machine, rows: list[dict[str, Any]], rounds: int, budget_s: float) -> None:
    """cuBLAS+NCCL one after the other, cuBLAS alone, NCCL alone, async tensor parallelism, and every schedule of ours."""
    import torch.distributed._symmetric_memory as symm

    group = dist.group.WORLD
    assert group is not None
    symm.enable_symm_mem_for_group(group.group_name)
    started = time.time()
    for name in ("ag_gemm", "gemm_rs"):
        case, schedules = CASES[name]
        for mlp in MLPS:
            if machine.worst(time.time() - started) > budget_s:
                rows.append({"operator": name, "case": mlp.name, "problem": "not timed: out of time", "ok": True})
                continue
            m, n, k = getattr(mlp, name)(machine.ranks)
            contenders, close = contenders_of(machine, name, m, n, k, schedules(BIG), group.group_name)
            found, host = interleaved(machine, contenders, rounds)
            base, gemm, comm = found["sequential"], found["cublas"], found["nccl"]
            for label, times in found.items():
                middle = statistics.median(times)
                row = {"operator": name, "case": mlp.name, "world": machine.ranks, "contender": label, "m": m, "n": n, "k": k,
                       "ms": middle, "host_us": statistics.median(host[label]), "ms_min": min(times), "ms_max": max(times),
                       "ms_sequential": statistics.median(base), "ms_gemm": statistics.median(gemm), "ms_comm": statistics.median(comm), "ok": True}
                row["efficiency"] = (row["ms_sequential"] - middle) / (row["ms_sequential"] - row["ms_gemm"])
                rows.append(row)
                if machine.rank == 0:
                    print(f"{name} {mlp.name} {label:28s} {middle:7.3f} ms  E {row['efficiency']:6.2f}  host {row['host_us']:4.0f} us", flush=True)
            for op in close:
                op.close()
            torch.cuda.empty_cache()


def contenders_of(machine: Machine, name: str, m: int, n: int, k: int, ours: dict[str, Any], group: str) -> tuple[dict[str, Callable[[int], Any]], list[Any]]:
    rotate = 3
    ranks = machine.ranks
    if name == "ag_gemm":
        xs = [machine.random(17 * i + machine.rank, m // ranks, k) for i in range(rotate)]
        ws = [machine.random(31 * i + machine.rank, k, n) for i in range(rotate)]
        rows = torch.empty(m, k, dtype=torch.bfloat16, device=machine.device)

        def comm(i: int) -> Any:
            return dist.all_gather_into_tensor(rows, xs[i])

        def gemm(i: int) -> Any:
            return rows @ ws[i]

        def async_tp(i: int) -> Any:
            return torch.ops.symm_mem.fused_all_gather_matmul(xs[i], [ws[i]], 0, group)
    else:
        xs = [machine.random(17 * i + machine.rank, m, k) for i in range(rotate)]
        ws = [machine.random(31 * i + machine.rank, k, n) for i in range(rotate)]
        part = torch.empty(m, n, dtype=torch.bfloat16, device=machine.device)
        mine = torch.empty(m // ranks, n, dtype=torch.bfloat16, device=machine.device)

        def comm(i: int) -> Any:
            return dist.reduce_scatter_tensor(mine, part)

        def gemm(i: int) -> Any:
            return torch.mm(xs[i], ws[i], out=part)

        def async_tp(i: int) -> Any:
            return torch.ops.symm_mem.fused_matmul_reduce_scatter(xs[i], ws[i], "sum", 0, group)

    def sequential(i: int) -> Any:
        if name == "ag_gemm":
            comm(i)
            return gemm(i)
        gemm(i)
        return comm(i)

    out: dict[str, Callable[[int], Any]] = {"cublas": gemm, "nccl": comm, "sequential": sequential, "async-tp": async_tp}
    for label, op in ours.items():
        out[label] = lambda i, op=op: op(xs[i], ws[i])
    return out, list(ours.values())


def interleaved(
    machine: Machine, contenders: dict[str, Callable[[int], Any]], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Milliseconds per contender and round, the maximum over ranks; microseconds of this rank's host per call."""
    alive: dict[str, Callable[[int], Any]] = {}
    for label, run in contenders.items():
        failed = 0.0
        try:
            for i in range(3):
                run(i)
            torch.cuda.synchronize()
        except (TilelinkError, RuntimeError) as problem:
            failed = 1.0
            if machine.rank == 0:
                print(f"{label}: {str(problem).splitlines()[0]}", flush=True)
        if machine.worst(failed) == 0:
            alive[label] = run
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
            run(turn % 3)
            host[label].append((time.perf_counter() - began) * 1e6)
            end.record()
            torch.cuda.synchronize()
            times[label].append(machine.worst(start.elapsed_time(end)))
    return times, host


def commit() -> str:
    """The commit of this tree; the file COMMIT says it where the tree is a copy without its history."""
    noted = Path("COMMIT")
    if noted.exists():
        return noted.read_text().strip()
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", nargs="*", default=["ragged", "mlp", "calls", "graphs", "time"])
    parser.add_argument("--schedules", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=200.0, help="seconds for timings")
    options = parser.parse_args()
    import tilelink

    rows: list[dict[str, Any]] = []

    def body() -> None:
        machine = Machine()
        chosen = set(options.schedules)
        ragged = [(f"{r}x{n}x{k}", lambda op, r=r, n=n, k=k: (r * machine.ranks, n, k)) for r, n, k in RAGGED]
        ragged.append(("empty rank", lambda op: (2 * machine.ranks - 3 if machine.ranks > 2 else 1, 256, 128)))
        mlps = [(p.name, lambda op, p=p: getattr(p, "ag_gemm" if op == "ag_gemm" else "gemm_rs")(machine.ranks)) for p in MLPS]
        sections: dict[str, Callable[[], None]] = {
            "ragged": lambda: correctness(machine, rows, ragged, SMALL, chosen),
            "mlp": lambda: correctness(machine, rows, mlps, BIG, chosen),
            "calls": lambda: many_calls(machine, rows, options.calls),
            "graphs": lambda: graphs(machine, rows),
            "time": lambda: timings(machine, rows, options.rounds, options.budget),
        }
        for name in options.only:
            started = time.time()
            sections[name]()
            if machine.rank == 0:
                print(f"== {name}: {time.time() - started:.0f} s", flush=True)
                save(options.out, rows)

    tilelink.launch(body)
    bad = [r for r in rows if not r["ok"]]
    if dist.get_rank() == 0:
        save(options.out, rows)
        print(f"{len(rows)} rows, {len(bad)} bad")
        for r in bad:
            print("BAD", {k: r[k] for k in ("operator", "case", "schedule", "error", "problem") if k in r})
    dist.destroy_process_group()
    return 1 if bad else 0


def save(path: Path | None, rows: list[dict[str, Any]]) -> None:
    if path is None:
        return
    about = {"gpu": torch.cuda.get_device_name(), "gpus": dist.get_world_size(), "torch": torch.__version__,
             "triton": triton.__version__, "commit": commit(), "python": sys.version.split()[0]}
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
        raise
    sys.exit(code)
