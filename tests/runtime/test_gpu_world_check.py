"""The self-check for GPUs, as far as it can be tested without one: its kernels compile and are launched."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver as active_driver

from benchmarks.gpu import backends
from tests.runtime.fake_gpu import Stream
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime import kernels
from tilelink.runtime.backend import Descriptor
from tilelink.runtime.peer.streams import CudaStream, Launcher

HERE = Path(__file__).parents[2]
TARGETS = [
    GPUTarget("cuda", 80, 32),
    GPUTarget("cuda", 90, 32),
    GPUTarget("cuda", 100, 32),
    GPUTarget("hip", "gfx942", 64),
]
EXCHANGE = {
    "seen": "*i64",
    "data": "*i32",
    "context": "*i64",
    "signal_at": "i32",
    "data_at": "i32",
    "total": "i32",
    "polls": "i32",
    "COUNT": "constexpr",
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.backend}-{target.arch}")
def test_the_exchange_compiles(target: GPUTarget) -> None:
    source = ASTSource(backends.exchange, EXCHANGE, {(7,): 1024})
    compiled = triton.compile(source, target=target, options={"num_warps": 4})
    if target.backend == "cuda":
        pattern = r"st\.global|bar\.sync|atom\.\S*release|ld\.\S*acquire"
        found = re.findall(pattern, compiled.asm["ptx"])
        release = next(at for at, text in enumerate(found) if "release" in text)
        assert found[0] == "st.global"
        assert found[release - 1] == "bar.sync"
        assert "sys" in found[release]
        assert "acquire" in found[release + 1]


def test_without_a_launcher_it_says_so() -> None:
    environment = {"PYTHONPATH": str(HERE), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.backends"], capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.returncode == 2
    assert "torchrun" in done.stderr


class NoGpu:
    """Triton's driver of a GPU that is not there: everything up to the start of a kernel is real."""

    def __init__(self) -> None:
        self.started: list[tuple[Any, ...]] = []
        self.prepared: list[Any] = []
        self.utils = self

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        return 11, 22, 32, 0, 1024

    def unload_module(self, module: int) -> None: ...

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda x, y, z, stream, function, *rest: self.started.append(((x, y, z), stream, function, rest[4:]))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[NoGpu]:
    monkeypatch.setattr(kernels, "resident_workers", lambda compiled: 132)
    pretended = NoGpu()
    monkeypatch.setattr(active_driver, "_active", pretended)
    yield pretended
    for compiled in pretended.prepared:
        compiled.module = None  # or it would be unloaded later, when this driver is gone


def stream_of(gpu: NoGpu) -> CudaStream:
    launcher = Launcher(torch.device("cpu"), prepare=gpu.prepared.append)
    return CudaStream(Stream(5), launcher)  # pyright: ignore[reportArgumentType]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_real_kernel_gets_its_arguments_in_order(gpu: NoGpu) -> None:
    stream, data = stream_of(gpu), torch.zeros(1024, dtype=torch.int32)
    for workers in (1, 2):
        stream.launch(backends.double, workers, {"COUNT": 512, "data": data}, KernelOptions(4, 1))
    assert [entry[:3] for entry in gpu.started] == [((1, 1, 1), 5, 22), ((2, 1, 1), 5, 22)]
    (*_, first, count), _ = (entry[3] for entry in gpu.started)
    assert first is data
    assert count == 512
    assert [compiled.module for compiled in gpu.prepared] == [11]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_real_kernel_takes_descriptors(gpu: NoGpu) -> None:
    tile = Descriptor(torch.zeros(64, 64, dtype=torch.float16), (64, 64))
    stream_of(gpu).launch(backends.copy_tile, 1, {"target": tile, "source": tile}, KernelOptions(4, 1))
    ((_, _, _, (*_, target, source)),) = gpu.started
    assert target.base is source.base is tile.tensor
