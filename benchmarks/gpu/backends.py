"""Check the backends on GPUs, and measure their copies; one process per GPU.

    timeout 300 torchrun --standalone --nproc-per-node=4 -m benchmarks.gpu.backends --out benchmarks/results

Ends with a table, and status 0 if all is well, 1 otherwise (of torchrun too). It cannot hang: kernels poll a bounded
number of times, a stream that waits too long for a doorbell is released by the host, collectives time out, and a watchdog
ends the process.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from triton.errors import TritonError

from benchmarks.harness import parser, table, write
from tilelink.errors import TilelinkError
from tilelink.ir.plan import MAIN
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime import environment, kernels
from tilelink.runtime.backend import Call, Copy, Descriptor, View, WaitDoorbell, Work
from tilelink.runtime.nvshmem import NvshmemBackend, library
from tilelink.runtime.peer import Arena, GpuBackend, PeerBackend

MIB = 1024 * 1024
POLLS = 20_000_000
"""Times a kernel looks for a signal, some seconds, before it gives up."""
PATIENCE = 20.0
"""Seconds that the host waits for a stream."""
WATCHDOG = 240
"""Seconds after which the process ends, whatever it is doing."""

# An arena: flags first, then what a peer puts there.
SIGNAL, DOORBELL, DATA = 0, 8, 4096
LANES = 1024


@triton.jit
def exchange(seen, data, context, signal_at, data_at, total, polls, COUNT: tl.constexpr):
    """Write to the next rank and signal it; wait for the previous one and read what it wrote."""
    me = tl.load(context)
    ranks = tl.load(context + 1)
    here = tl.load(context + 2 + me)
    there = tl.load(context + 2 + (me + 1) % ranks)
    lanes = tl.arange(0, COUNT)
    target = tl.multiple_of((there + data_at).to(tl.pointer_type(tl.int32)), 16)
    tl.store(target + lanes, (me * 100000 + total * 10000 + lanes).to(tl.int32))
    tl.debug_barrier()
    tl.atomic_xchg((there + signal_at).to(tl.pointer_type(tl.int64)), total, sem="release", scope="sys")
    word = (here + signal_at).to(tl.pointer_type(tl.int64))
    got = tl.atomic_add(word, 0, sem="acquire", scope="sys")
    while (got < total) & (polls > 0):
        got = tl.atomic_add(word, 0, sem="acquire", scope="sys")
        polls -= 1
    source = tl.multiple_of((here + data_at).to(tl.pointer_type(tl.int32)), 16)
    tl.store(data + lanes, tl.load(source + lanes))
    tl.store(seen, got)


@triton.jit
def double(data, COUNT: tl.constexpr):
    """Multiply by two in place."""
    lanes = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.store(data + lanes, tl.load(data + lanes) * 2)


@triton.jit
def copy_tile(target, source):
    """Copy the first tile by TMA, both ways through host descriptors."""
    target.store([0, 0], source.load([0, 0]))


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what it found; `seconds` on the slowest rank."""

    check: str
    ok: bool
    seconds: float
    detail: str


class Failed(Exception):
    """A check did not find what it should."""


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise Failed(message)


def equal(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    wrong = int((found != wanted).sum())
    expect(wrong == 0, f"{what}: {wrong} of {wanted.numel()} elements are wrong")


def view(arena: torch.Tensor, at: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` elements at byte `at` of an arena's uint8 tensor."""
    return arena[at : at + count * dtype.itemsize].view(dtype)


def word(arena: torch.Tensor, at: int) -> torch.Tensor:
    return view(arena, at, 1, torch.int64)


def action(backend: GpuBackend, stream: int, work: Work) -> Callable[[], None]:
    """Enqueues work on the stream with this number."""
    call = Call({}, 0, backend, backend.main_stream())
    return partial(backend.step(work, stream, call), call)


def copying(target: torch.Tensor, source: torch.Tensor, pe: int | None = None) -> Copy:
    """To `target` in the instance of rank `pe`."""
    to, start = (tuple((0, n) for n in t.shape) for t in (target, source))
    return Copy(View(target, to, pe), View(source, start))


def sync(doorbell: torch.Tensor, what: str) -> None:
    """Wait for the device, at most PATIENCE; ring `doorbell` if a stream waits for it in vain, and fail."""
    done = torch.cuda.Event()
    deadline = time.monotonic() + PATIENCE
    done.record()
    while not done.query() and time.monotonic() < deadline:
        time.sleep(0.0005)
    if not done.query():
        with torch.cuda.stream(torch.cuda.Stream()):
            doorbell.fill_(1)
        torch.cuda.synchronize()
        raise Failed(f"{what}: the stream still waited for its doorbell after {PATIENCE:.0f} s")
    torch.cuda.synchronize()


def check_arena(backend: GpuBackend, arena: Arena) -> str:
    context = arena.context.tolist()
    expect(context[:2] == [backend.rank, backend.ranks], f"context begins with {context[:2]}")
    expect(context[2 + backend.rank] == arena.local.data_ptr(), "context does not hold the own address")
    expect(len(context) == 2 + 2 * backend.ranks, f"context has {len(context)} flags")
    expect(int(arena.local.count_nonzero()) == 0, "the arena is not zeroed")
    if backend.topology.reach == "peer":
        expect(all(arena.peers[pe].data_ptr() == context[2 + pe] for pe in range(backend.ranks)), "peers disagree")
    return str(backend.topology.device)


def check_exchange(backend: GpuBackend, arena: Arena) -> str:
    """A kernel writes to a peer by translated pointers and signals it."""
    data, seen = backend.maker((LANES,), torch.int32)(), backend.zeros(1, torch.int64)
    before = (backend.rank - 1) % backend.ranks
    for total in (1, 2, 3):
        args = {"seen": seen, "data": data.fill_(-1), "context": arena.context, "signal_at": SIGNAL, "data_at": DATA}
        args |= {"total": total, "polls": POLLS, "COUNT": LANES}
        backend.main_stream().launch(exchange, 1, args, KernelOptions(4, 1))
        torch.cuda.synchronize()
        expect(int(seen) == total, f"signal is {int(seen)} instead of {total}")
        wanted = before * 100000 + total * 10000 + torch.arange(LANES, device=backend.device)
        equal(data, wanted, f"data of rank {before}")
        backend.barrier()
    return "3 rounds"


def check_doorbell(backend: GpuBackend, arena: Arena) -> str:
    """Copy engine: data, then a signal, to the next rank; its stream waits for the doorbell and copies on."""
    to, before = (backend.rank + 1) % backend.ranks, (backend.rank - 1) % backend.ranks
    source = view(arena.local, DATA, 2 * LANES, torch.int32)[:LANES]
    one, landing = word(arena.local, DOORBELL + 8), view(arena.local, DATA, 2 * LANES, torch.int32)[LANES:]
    target = view(arena.peers[to], DATA, 2 * LANES, torch.int32)[LANES:]
    result, doorbell, side = backend.maker((LANES,), torch.int32)(), word(arena.local, DOORBELL), backend.side_stream(1)
    one.fill_(1)
    for turn in range(1, 6):
        source.copy_(torch.arange(LANES, device=backend.device) * turn + backend.rank)
        landing.fill_(-1)
        backend.barrier()
        side.wait(backend.main_stream().record())
        signal = copying(word(arena.peers[to], DOORBELL), one, to)
        for work in (copying(target, source, to), signal, WaitDoorbell(doorbell), copying(result, landing)):
            action(backend, 1, work)()
        backend.main_stream().wait(side.record())
        sync(doorbell, "doorbell")
        equal(result, torch.arange(LANES, device=backend.device) * turn + before, f"data of rank {before}")
        expect(int(doorbell) == 0, "the doorbell was not set back")
        backend.barrier()
    return "5 turns"


def check_strided(backend: GpuBackend, arena: Arena) -> str:
    """Rows with a pitch, to the next rank."""
    to, before = (backend.rank + 1) % backend.ranks, (backend.rank - 1) % backend.ranks
    shape, pitch = (37, 96), 160
    landing = view(arena.local, DATA, shape[0] * pitch, torch.int16).fill_(-1).view(shape[0], pitch)
    target = view(arena.peers[to], DATA, shape[0] * pitch, torch.int16).view(shape[0], pitch)
    stage = view(arena.local, MIB, 2 * shape[0] * shape[1], torch.int16).view(shape[0], 2 * shape[1])
    stage.copy_(torch.arange(stage.numel(), device=backend.device).view(stage.shape) + backend.rank)
    backend.barrier()
    action(backend, MAIN, copying(target[:, 32 : 32 + shape[1]], stage[:, : shape[1]], to))()
    backend.barrier()
    wanted = torch.full((shape[0], pitch), -1, dtype=torch.int16, device=backend.device)
    wanted[:, 32 : 32 + shape[1]] = (stage - backend.rank + before)[:, : shape[1]]
    equal(landing, wanted, f"rows of rank {before}")
    return f"{shape[0]} rows of {2 * shape[1]} bytes"


def check_graph(backend: GpuBackend, arena: Arena) -> str:
    """Capture fork, copy, signal, doorbell, copy, join and a launch; replay with fresh data."""
    to, before = (backend.rank + 1) % backend.ranks, (backend.rank - 1) % backend.ranks
    source, one = view(arena.local, DATA, LANES, torch.int32), word(arena.local, DOORBELL + 8)
    landing = view(arena.local, MIB, LANES, torch.int32)
    result, doorbell = backend.maker((LANES,), torch.int32)(), word(arena.local, DOORBELL)
    one.fill_(1)
    backend.main_stream().launch(double, 1, {"data": result, "COUNT": LANES}, KernelOptions(4, 1))
    torch.cuda.synchronize()

    def step() -> None:
        expect(backend.capturing(), "capturing() does not notice the capture")
        main, side = backend.main_stream(), backend.side_stream(1)
        side.wait(main.record())
        data = copying(view(arena.peers[to], MIB, LANES, torch.int32), source, to)
        signal = copying(word(arena.peers[to], DOORBELL), one, to)
        for work in (data, signal, WaitDoorbell(doorbell), copying(result, landing)):
            action(backend, 1, work)()
        main.wait(side.record())
        main.launch(double, 1, {"data": result, "COUNT": LANES}, KernelOptions(4, 1))

    graph = torch.cuda.CUDAGraph()
    backend.barrier()
    # NCCL's watchdog thread queries events meanwhile, which the default mode takes for a mistake of the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    for turn in range(10):
        source.copy_(torch.arange(LANES, device=backend.device) + 1000 * turn + backend.rank)
        landing.fill_(-1)
        backend.barrier()
        graph.replay()
        sync(doorbell, "replayed doorbell")
        equal(result, 2 * (torch.arange(LANES, device=backend.device) + 1000 * turn + before), f"replay {turn}")
        backend.barrier()
    return "10 replays"


def check_descriptor(backend: GpuBackend, arena: Arena) -> str:
    """Host TMA descriptors, the target's being of a peer's memory."""
    if backend.topology.device.capability < 90 or torch.version.hip:
        return "no TMA here"
    to, before = (backend.rank + 1) % backend.ranks, (backend.rank - 1) % backend.ranks
    tile = torch.arange(64 * 64, device=backend.device).view(64, 64).to(torch.float16)
    target = view(arena.peers[to], MIB, 64 * 64, torch.float16).view(64, 64)
    args = {"target": Descriptor(target, (64, 64)), "source": Descriptor(tile + backend.rank, (64, 64))}
    backend.main_stream().launch(copy_tile, 1, args, KernelOptions(4, 1))
    backend.barrier()
    equal(view(arena.local, MIB, 64 * 64, torch.float16).view(64, 64), tile + before, f"tile of rank {before}")
    return "64×64 fp16"


def check_refusals(backend: GpuBackend, arena: Arena) -> str:
    """More workers than can be resident, and a tensor on the CPU."""
    data = backend.zeros(LANES, torch.int32)
    compiled = double.warmup(data=data, COUNT=LANES, grid=(1,), num_warps=32, num_stages=1)
    resident = kernels.resident_workers(compiled)
    expect(resident >= backend.topology.device.sms, f"only {resident} workers are resident")
    stream = backend.main_stream()
    for code, workers, tensor in (("TL405", resident + 1, data), ("TL425", 1, data.cpu())):
        try:
            stream.launch(double, workers, {"data": tensor, "COUNT": LANES}, KernelOptions(32, 1))
        except TilelinkError as error:
            expect(error.code == code, f"{error.code} instead of {code}")
        else:
            raise Failed(f"{code} was not raised")
    torch.cuda.synchronize()
    return f"{resident} workers of 32 warps"


def check_launch_cost(backend: GpuBackend, arena: Arena) -> str:
    """Host time of a launch, of a copy and of a doorbell."""
    stream, doorbell = backend.main_stream(), word(arena.local, DOORBELL)
    data, other = backend.zeros(LANES, torch.int32), backend.zeros(LANES, torch.int32)
    launch = host_micros(lambda: stream.launch(double, 1, {"data": data, "COUNT": LANES}, KernelOptions(4, 1)))
    copy, wait = host_micros(action(backend, MAIN, copying(data, other))), action(backend, MAIN, WaitDoorbell(doorbell))

    def ring() -> None:
        doorbell.fill_(1)
        wait()

    fill = host_micros(lambda: doorbell.fill_(0))
    return f"launch {launch:.1f} µs, copy {copy:.1f} µs, doorbell {host_micros(ring) - fill:.1f} µs"


def host_micros(action: Callable[[], Any], times: int = 200) -> float:
    action()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        action()
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return spent / times * 1e6


def check_bandwidth(backend: GpuBackend, arena: Arena) -> str:
    """Push to the next rank on a side stream, all ranks at once; GB/s of the slowest rank."""
    found = []
    for mib in (1, 8, 64):
        source = backend.maker((mib * MIB,), torch.uint8)().random_()
        target = arena.peers[(backend.rank + 1) % backend.ranks][MIB : MIB + mib * MIB]
        rate = min(backend.agree(push_rate(backend, target, source)))
        found.append(f"{mib} MiB {rate:.0f}")
        backend.barrier()
        got = arena.local[MIB : MIB + mib * MIB]
        checksums = backend.agree(int(source.view(torch.int32).sum(dtype=torch.int64)))
        mine = int(got.view(torch.int32).sum(dtype=torch.int64))
        expect(mine == checksums[(backend.rank - 1) % backend.ranks], f"{mib} MiB arrived changed")
    return "GB/s: " + ", ".join(found)


def push_rate(backend: GpuBackend, target: torch.Tensor, source: torch.Tensor) -> float:
    times, stream, push = [], backend.side_stream(1), action(backend, 1, copying(target, source))
    for _ in range(12):
        backend.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream.stream)
        push()
        end.record(stream.stream)
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return source.numel() / statistics.median(times[2:]) / 1e6


Check = Callable[[GpuBackend, Arena], str]
HOST_CHECKS: tuple[Check, ...] = (check_arena, check_doorbell, check_strided)
PEER_CHECKS: tuple[Check, ...] = (*HOST_CHECKS, check_exchange, check_descriptor, check_graph)
ALL_CHECKS: tuple[Check, ...] = (*PEER_CHECKS, check_refusals, check_launch_cost, check_bandwidth)


class Report:
    """Runs checks until the first that fails: afterwards streams and flags are in no known state.

    Args:
        out: where the results go as JSON.
    """

    def __init__(self, out: Path | None) -> None:
        self.results: list[Result] = []
        self._out = out

    def run(self, name: str, check: Callable[[], str]) -> None:
        begin = time.perf_counter()
        try:
            detail = check()
        except (Failed, TilelinkError, TritonError, AssertionError, RuntimeError, OSError) as error:
            self._fail(name, time.perf_counter() - begin, f"rank {dist.get_rank()}: {type(error).__name__}: {error}")
            return
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, time.perf_counter() - begin)
        self.results.append(Result(name, True, max(found), detail))

    def finish(self) -> None:
        write(
            self._out,
            "backends",
            [asdict(r) for r in self.results],
            gpus=dist.get_world_size(),
            backend="peer and nvshmem",
        )
        table([(r.check, r.ok, r.seconds, r.detail) for r in self.results])
        sys.stdout.flush()

    def _fail(self, name: str, seconds: float, problem: str) -> None:
        """End this process, without the orderly end that would wait for streams and ranks; torchrun ends the others."""
        self.results.append(Result(name, False, seconds, problem.splitlines()[0]))
        print(problem, file=sys.stderr, flush=True)
        self.finish()
        os._exit(1)


def check_backend(report: Report, name: str, make: Callable[[], GpuBackend], checks: tuple[Check, ...]) -> None:
    """Make a backend and an arena, run the checks, free both."""
    made: list[GpuBackend] = []
    arenas: list[Arena] = []

    def start() -> str:
        made.append(make())
        arenas.append(made[0].arena(66 * MIB))
        return f"{made[0].topology.ranks} ranks, reach {made[0].topology.reach}"

    def finish() -> str:
        arenas[0].free()
        return ""

    report.run(f"{name}: start", start)
    for check in checks:
        report.run(f"{name}: {check.__name__.removeprefix('check_')}", lambda check=check: check(made[0], arenas[0]))
    report.run(f"{name}: free", finish)


def check_all(report: Report) -> None:
    check_backend(report, "peer", PeerBackend, ALL_CHECKS)
    if importlib.util.find_spec("nvshmem") is None:
        report.results.append(Result("nvshmem", True, 0.0, "skipped: nvshmem4py is not installed"))
        return
    check_backend(report, "nvshmem", NvshmemBackend, (*PEER_CHECKS, check_bandwidth))
    check_backend(report, "network", lambda: NvshmemBackend(reach="network"), HOST_CHECKS)

    def stop() -> str:
        library.stop()
        return ""

    report.run("nvshmem: stop", stop)


def main() -> int:
    out: Path | None = parser(__doc__).parse_args().out
    local = environment.local_rank()
    if local is None or not torch.cuda.is_available():
        print("start with torchrun on a machine with GPUs", file=sys.stderr)
        return 2
    faulthandler.dump_traceback_later(WATCHDOG, exit=True)
    environment.disable_multicast()
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60), device_id=device)
    report = Report(out)
    check_all(report)
    if dist.get_rank() == 0:
        report.finish()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
