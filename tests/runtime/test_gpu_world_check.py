"""The self-check for GPUs, as far as it can be tested without one: its kernels compile and are launched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.gpu import backends
from tests.runtime.fake_gpu import COMPILER, CPU, Stream, fake_gpu
from tilelink.ir.schedule import KernelOptions
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
@pytest.mark.skipif(COMPILER is None, reason="the driver that takes notes is compiled")
def test_real_kernels_get_their_arguments_in_order() -> None:
    data, tile = torch.zeros(1024, dtype=torch.int32), torch.zeros(64, 64, dtype=torch.float16)
    with fake_gpu() as notes:
        stream = CudaStream(Stream(5), Launcher(CPU, prepare=notes.describe))  # pyright: ignore[reportArgumentType]
        notes.start()
        for workers in (1, 2):
            stream.launch(backends.double, workers, {"COUNT": 512, "data": data}, KernelOptions(4, 1))
        whole = Descriptor(tile, (64, 64))
        stream.launch(backends.copy_tile, 1, {"target": whole, "source": whole}, KernelOptions(4, 1))
        launches = [dict(word.split("=") for word in line.split()[1:]) for line in notes.lines() if "launch" in line]
    assert [(one["grid"], one["stream"]) for one in launches] == [("1,1,1", "5"), ("2,1,1", "5"), ("1,1,1", "5")]
    # A tensor map begins with its address.
    first = [one["parameters"][:16] for one in launches]
    assert first == [t.data_ptr().to_bytes(8, "little").hex() for t in (data, data, tile)]
