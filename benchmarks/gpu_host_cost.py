"""What a cached call costs its host, for every placement; beside one launch by Triton, one by torch, and graph replay.

    torchrun --nproc-per-node=4 benchmarks/gpu_host_cost.py --out host.json

Microseconds, the slowest rank's. `host`: until the call returns, in batches that leave no queue full; `eager`, `replay`:
per call on the GPU, back to back, eagerly and as a captured graph.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.cases import BIG, SUBJECTS, Machine
from benchmarks.judging import Sheet, judged

BATCH, BATCHES = 20, 30


@triton.jit
def touch(data, other, count):
    """Two pointers and a size."""
    tl.store(data + tl.program_id(0), tl.load(other + tl.program_id(0)) + count)


@triton.jit
def copy_tile(target, source):
    """Two TMA descriptors."""
    target.store([0, 0], source.load([0, 0]))


def host(call: Callable[[], Any]) -> float:
    """Median over batches of the microseconds until a call returns."""
    found: list[float] = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(BATCH):
            call()
        found.append((time.perf_counter() - begin) / BATCH * 1e6)
    torch.cuda.synchronize()
    return statistics.median(found)


def device(call: Callable[[], Any]) -> float:
    """Microseconds of a call on the GPU, back to back."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    found: list[float] = []
    for _ in range(BATCHES):
        dist.barrier()
        start.record()
        for _ in range(BATCH):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / BATCH * 1e3)
    return statistics.median(found)


def placements(machine: Machine, m: int, n: int, k: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, subject in SUBJECTS.items():
        case = subject.make(machine, m, n, k, 1)
        for schedule, op in subject.schedules(BIG).items():
            out = op(*case.arguments, **case.given)
            call = partial(op, *case.arguments, out=out, **case.given)
            for _ in range(4):
                call()
            row: dict[str, Any] = {"operator": name, "schedule": schedule, "ok": True}
            row["host_us"] = machine.worst(host(partial(op, *case.arguments, **case.given)))
            row["host_out_us"] = machine.worst(host(call))
            row["eager_us"] = machine.worst(device(call))
            torch.cuda.synchronize()
            dist.barrier()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            row["replay_us"] = machine.worst(device(graph.replay))
            row["replay_host_us"] = machine.worst(host(graph.replay))
            torch.cuda.synchronize()
            dist.barrier()
            del graph
            op.close()
            rows.append(row)
    return rows


def others(machine: Machine) -> list[dict[str, Any]]:
    """Launches of one kernel, by Triton and by torch."""
    a, b = (torch.zeros(256, 256, dtype=torch.bfloat16, device=machine.device) for _ in range(2))
    words = torch.zeros(64, dtype=torch.int64, device=machine.device)

    def tiles() -> None:
        copy_tile[(1,)](TensorDescriptor.from_tensor(a, [64, 64]), TensorDescriptor.from_tensor(b, [64, 64]))

    calls: dict[str, Callable[[], Any]] = {
        "Triton, 3 arguments": lambda: touch[(1,)](words, words, 3),
        "Triton, 2 TMA descriptors": tiles,
        "torch.mm": lambda: torch.mm(a, b),
        "torch.mm, out": lambda: torch.mm(a, b, out=a),
        "torch.empty": lambda: torch.empty((256, 256), dtype=torch.bfloat16, device=machine.device),
    }
    rows: list[dict[str, Any]] = []
    for name, call in calls.items():
        call()
        rows.append({"operator": "one launch", "schedule": name, "ok": True, "host_us": machine.worst(host(call))})
    return rows


def check(sheet: Sheet, m: int, n: int, k: int) -> None:
    for row in others(sheet.machine) + placements(sheet.machine, m, n, k):
        numbers = (f"{key.removesuffix('_us')} {value:.1f}" for key, value in row.items() if key.endswith("_us"))
        sheet.add(row, f"{row['operator']:13s} {row['schedule']:26s} {'  '.join(numbers)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--shape", type=int, nargs=3, default=(2048, 1024, 512), metavar=("M", "N", "K"))
    options = parser.parse_args()
    return judged(lambda sheet: check(sheet, *options.shape), options.out)


if __name__ == "__main__":
    sys.exit(main())
