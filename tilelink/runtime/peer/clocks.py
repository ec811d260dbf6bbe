"""The clock that kernels read, and what streams' events are on it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from tilelink.device.clocks import clock

MEETINGS = 9


@triton.jit
def _read_clock(at):
    tl.store(at, clock())


def read(device: torch.device, stamps: Sequence[torch.cuda.Event]) -> list[int]:
    """Nanoseconds of the GPU's clock at some events."""
    now = torch.zeros(1, dtype=torch.int64, device=device)
    _read_clock[(1,)](now)
    torch.cuda.synchronize(device)
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    _read_clock[(1,)](now)
    after.record()
    torch.cuda.synchronize(device)
    middle = before.elapsed_time(after) / 2
    return [int(now) - round((s.elapsed_time(before) + middle) * 1e6) for s in stamps]


def together(device: torch.device, group: dist.ProcessGroup) -> list[int]:
    """Collective: this GPU's clock at moments when all ranks have just met."""
    found = torch.zeros(MEETINGS, dtype=torch.int64, device=device)
    meet = torch.zeros(1, device=device)
    for turn in range(MEETINGS):
        if group.size() > 1:
            dist.all_reduce(meet, group=group)
        _read_clock[(1,)](found[turn:])
        torch.cuda.synchronize(device)
    return found.tolist()
