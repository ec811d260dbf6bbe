"""A GPU that is not there: real operators, real kernels, Triton's own launcher, and a driver that only takes notes."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver as active

from tilelink.ir.topology import Device, Topology
from tilelink.runtime import kernels
from tilelink.runtime.memory import Arenas
from tilelink.runtime.peer import Arena, GpuBackend, driver, packing
from tilelink.runtime.peer.streams import CudaStream, Launcher
from tilelink.runtime.watchdog import Guard, StoreWatcher, this_process

CPU = torch.device("cpu")
MAIN = 7
"""Handle of the caller's stream; side streams have 100 and their number."""
H200 = Device("H200", sms=132, shared_bytes=232448, copy_engines=3, capability=90)
COMPILER = shutil.which("cc")


class Notes:
    """What the driver was asked to do."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.fake_text.restype = ctypes.c_char_p
        library.fake_calls.restype = ctypes.c_long

    def start(self, write: bool = True) -> None:
        """Forget everything; then note calls, or only count them."""
        self._library.fake_start(int(write))

    def lines(self) -> list[str]:
        return self._library.fake_text().decode().splitlines()

    def count(self) -> int:
        return self._library.fake_calls()

    def fail(self, status: int) -> None:
        """Answer so from now on; 0 is success."""
        self._library.fake_fail(status)

    def describe(self, compiled: Any) -> None:
        """Note the parameters of this kernel's launches from now on."""
        sizes = packing.declared_sizes(compiled.asm["ptx"], compiled.name)
        self._library.fake_parameters(
            ctypes.c_uint64(compiled.function), len(sizes), (ctypes.c_int * len(sizes))(*sizes)
        )


class Stream:
    """As much of `torch.cuda.Stream` as streams of a backend need."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream, self.device_index = handle, 0

    def record_event(self) -> int:
        return self.cuda_stream

    def wait_event(self, event: int) -> None:
        WAITED.append((self.cuda_stream, event))


WAITED: list[tuple[int, int]] = []
"""A stream's handle, and the handle of the one whose work it waits for."""
CURRENT: list[int] = [MAIN]
"""Handles of the streams that torch's work goes to, the innermost last."""


def current_stream(device: int | None = None) -> Stream:
    return Stream(CURRENT[-1])


def set_stream(stream: Stream) -> None:
    CURRENT[-1] = stream.cuda_stream


@contextmanager
def entered(stream: Stream) -> Iterator[None]:
    """As `torch.cuda.stream`."""
    CURRENT.append(stream.cuda_stream)
    try:
        yield
    finally:
        CURRENT.pop()


class FakeBackend(GpuBackend):
    """Rank `rank` of `ranks`, whose peers' memory is this process's and which nobody else runs in."""

    alive = True  # pyright: ignore[reportAssignmentType]
    name = "fake"  # pyright: ignore[reportAssignmentType]

    def __init__(self, rank: int, ranks: int, notes: Notes) -> None:
        self.device, self.rank, self.ranks = CPU, rank, ranks
        self.members = self.numbers = tuple(range(ranks))
        self.topology = Topology(ranks, "peer", "peer", H200)
        self.launcher = Launcher(CPU, prepare=notes.describe)
        self.is_capturing = False
        self.arenas = Arenas()
        self._mains: dict[int, CudaStream] = {}
        self._called: dict[bool, CudaStream] = {}
        self._thread = threading.local()
        self._current_handle = lambda index: CURRENT[-1]

    def _take(self, nbytes: int) -> Arena:
        peers = tuple(torch.zeros(nbytes + 256, dtype=torch.uint8) for _ in range(self.ranks))
        peers = tuple(p[-p.data_ptr() % 256 :][:nbytes] for p in peers)
        return Arena(self, peers[self.rank], peers, tuple(p.data_ptr() for p in peers), lambda: None)

    def shared_words(self, count: int, *, on_host: bool) -> torch.Tensor:
        return self.zeros(count, torch.int64)

    def watch_over(self, guard: Guard, doorbells: Callable[[], list[torch.Tensor]]) -> StoreWatcher:
        """The thread as on a GPU; the peers' processes are this one, and nobody leaves word."""
        peers = {rank: this_process() for rank in range(self.ranks) if rank != self.rank}
        board = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        watcher = StoreWatcher(guard, self.ranks, peers, board, lambda: None)
        watcher.start()
        return watcher

    def side_stream(self, index: int) -> CudaStream:
        return CudaStream(Stream(100 + index), self.launcher)  # pyright: ignore[reportArgumentType]

    def agree(self, value: Any) -> list[Any]:
        self._require_no_capture("ranks cannot agree")
        return [value] * self.ranks

    def barrier(self) -> None: ...

    def capturing(self) -> bool:
        return self.is_capturing


@cache
def build() -> tuple[Path, ctypes.CDLL]:
    """The driver as a shared library, and the folder it lies in.

    Once in a process: a second copy would have counters and notes of its own, and what Triton compiles against it
    types of its own, while kernels and modules that were loaded with the first stay in Triton's caches.
    """
    assert COMPILER is not None
    folder = Path(tempfile.mkdtemp(prefix="tilelink-cuda-"))
    atexit.register(shutil.rmtree, folder)
    source, target = Path(__file__).with_name("fake_cuda.c"), folder / "libcuda.so.1"
    command = [COMPILER, "-O2", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(target), str(source)]
    subprocess.run(command, check=True)
    return folder, ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)


@cache
def made_driver() -> Any:
    """Triton's own driver on top of it; to be made while Triton looks into the folder of `build`."""
    from triton.backends.nvidia.driver import CudaDriver

    made = CudaDriver()
    made.get_current_device = lambda: 0
    made.get_current_stream = lambda device: MAIN
    made.get_current_target = lambda: GPUTarget("cuda", 90, 32)
    return made


@contextmanager
def fake_gpu() -> Iterator[Notes]:
    """Triton and tilelink believe in an H200 while this lasts."""
    folder, library = build()
    before = active._active
    with (
        mock.patch.object(knobs.nvidia, "libcuda_path", str(folder)),
        mock.patch.object(knobs.cache, "dir", str(folder)),
        mock.patch.object(kernels, "resident_workers", return_value=132),
        mock.patch.object(torch.cuda, "current_device", return_value=CPU.index),
        mock.patch.object(torch.cuda, "current_stream", current_stream),
        mock.patch.object(torch.cuda, "set_stream", set_stream),
        mock.patch.object(torch.cuda, "stream", entered),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=False),
        mock.patch.object(torch.Tensor, "is_cuda", property(lambda self: True)),
    ):
        driver.library.cache_clear()
        active.set_active(made_driver())
        try:
            yield Notes(library)
        finally:
            active._active = before
            driver.library.cache_clear()
