"""Time on a GPU: the clock that kernels read, what streams' events are on it, and how long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from tilelink.device.clocks import clock
from tilelink.errors import TilelinkError

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


# ---------------------------------------------------------------------------------------------------------------------
# How long a call takes on a GPU: all ranks begin together, the host is ahead, and the second-level cache is cold.

AHEAD = 750.0
"""Microseconds, at least, in which the host enqueues the call: launches are not what is timed."""
MOST = 20_000.0
"""Microseconds of such a start, at most."""
CYCLES = 2000
"""Of a GPU in a microsecond, at most."""
DEADLINE = 60.0
"""Seconds after which a call counts as one that will never end."""


class Stopwatch:
    """Times calls of one rank on the current stream."""

    def __init__(self, device: torch.device) -> None:
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        self._cold = torch.zeros(max(1, 3 * cache // 4), dtype=torch.float32, device=device)
        self._sink = torch.zeros((), dtype=torch.float32, device=device)
        self._together = torch.zeros(1, device=device)

    def time(self, call: Callable[[], Any], host_us: float, group: dist.ProcessGroup) -> tuple[float, bool]:
        """Milliseconds on this rank's device, and whether it began before the host had enqueued all of the call. Collective:
        all ranks of `group` begin together. `host_us`: microseconds that the host may take; its start is twice as long.
        Raises TL460, the call does not end."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # Read three times the cache's size: lines that a write leaves behind would have to be written back meanwhile.
        torch.sum(self._cold, dim=0, out=self._sink)
        torch.cuda._sleep(int(CYCLES * min(max(AHEAD, 2 * host_us), MOST)))
        if group.size() > 1:
            dist.all_reduce(self._together, group=group)
        start.record()
        call()
        end.record()
        late, begun = start.query(), time.monotonic()
        while not end.query():
            if time.monotonic() - begun > DEADLINE:
                raise TilelinkError(
                    "TL460",
                    f"a call has not ended after {DEADLINE:.0f} s",
                    why="some rank waits for a signal that does not come, or did not make the call",
                    hint="end all processes; run the same schedule in the simulated backend, which says who waits for what",
                )
            time.sleep(1e-4)
        return start.elapsed_time(end), late
