"""What a cached call costs its host, for every placement; beside one launch by Triton, one by torch, and graph replay.

    torchrun --nproc-per-node=4 -m benchmarks.gpu.host_cost_placements --out benchmarks/results

Microseconds, the slowest rank's. `host`: until the call returns, in batches that leave no queue full; `eager`, `replay`:
per call on the GPU, back to back, eagerly and as a captured graph.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.gpu.matmuls import BIG, SUBJECTS
from benchmarks.harness import Machine, Sheet, captured, device_us, host_us, judged, parser

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
    """Microseconds until a call returns."""

    def together() -> None:
        torch.cuda.synchronize()
        dist.barrier()

    return host_us(call, together, BATCH, BATCHES)


def device(call: Callable[[], Any]) -> float:
    """Microseconds of a call on the GPU, back to back."""
    found: list[float] = []
    for _ in range(BATCHES):
        dist.barrier()
        found.append(device_us(call, BATCH))
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
            graph, _ = captured(call)
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
    given = parser(__doc__)
    given.add_argument("--shape", type=int, nargs=3, default=(2048, 1024, 512), metavar=("M", "N", "K"))
    options = given.parse_args()
    return judged("host-cost-placements", lambda sheet: check(sheet, *options.shape), options.out)


if __name__ == "__main__":
    sys.exit(main())
