"""What can be said of the backends on GPUs where there is none."""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.runtime import fake_gpu
from tests.selection import table
from tilelink.errors import TilelinkError
from tilelink.ir.schedule import KernelOptions
from tilelink.runtime import backend as W
from tilelink.runtime import kernels
from tilelink.runtime.backend import Descriptor, Stream
from tilelink.runtime.memory import Arenas
from tilelink.runtime.nvshmem import NvshmemBackend, library
from tilelink.runtime.peer import Arena, CudaStream, GpuBackend, PeerBackend, driver, reach
from tilelink.runtime.peer.steps import settled
from tilelink.runtime.peer.streams import Launcher

CPU = torch.device("cpu")


def as_stream(stream: CudaStream) -> Stream:
    """For the type checker."""
    return stream


def nothing() -> None:
    """To give back no memory."""


class Compiled:
    """A compiled kernel, as far as launching one goes; real ones need a GPU."""

    name = "kernel"
    module = 77
    run = None
    metadata: Any = None

    def __init__(self, ptx: str = "") -> None:
        self.asm = {"ptx": ptx}
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *args, stream: self.launches.append((grid, stream, args))


class Kernel:
    """A JITFunction with parameters `rows`, `count` and `out`."""

    __name__ = "kernel"
    arg_names = ("rows", "count", "out")

    def __init__(self) -> None:
        self.compiled = Compiled()
        self.options: dict[str, Any] = {}

    def warmup(self, **options: Any) -> Compiled:
        self.options = options
        return self.compiled


def stream(launcher: Launcher | None = None) -> CudaStream:
    return CudaStream(fake_gpu.Stream(5), launcher or Launcher(CPU))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with room for eight workers."""
    monkeypatch.setattr(kernels, "resident_workers", lambda compiled: 8)


@pytest.mark.usefixtures("roomy")
def test_arguments_go_by_name_in_the_kernels_order() -> None:
    kernel, rows, out = Kernel(), torch.zeros(4, 64), torch.zeros(8, 64)[4:]
    stream(Launcher(CPU, {"extern_libs": {"a": "b"}})).launch(
        kernel, 3, {"out": Descriptor(out, (2, 32)), "rows": rows, "count": 7}, KernelOptions(8, 2)
    )
    ((grid, on, (first, second, third)),) = kernel.compiled.launches
    assert (grid, on) == ((3, 1, 1), 5)
    assert first is rows
    assert second == 7
    assert isinstance(third, TensorDescriptor)
    assert third.base is out
    assert (third.shape, third.strides, third.block_shape) == ([4, 64], [64, 1], [2, 32])
    assert kernel.options["num_warps"] == 8
    assert kernel.options["num_stages"] == 2
    assert kernel.options["extern_libs"] == {"a": "b"}


@pytest.mark.usefixtures("roomy")
def test_kernels_are_prepared_once_and_checked_before_they_start() -> None:
    kernel, prepared = Kernel(), []
    launcher = Launcher(CPU, prepare=prepared.append)
    arguments = {"rows": 0, "count": 1, "out": 2}
    for workers in (2, 1, 8):
        stream(launcher).launch(kernel, workers, arguments, KernelOptions(4, 1))
    assert prepared == [kernel.compiled]
    with pytest.raises(TilelinkError, match="TL405"):
        stream(launcher).launch(kernel, 9, arguments, KernelOptions(4, 1))
    assert len(kernel.compiled.launches) == 3


class Deep(Kernel):
    """Each stage takes 100 bytes, and 50 come on top."""

    def warmup(self, **options: Any) -> Compiled:
        self.compiled.name = "deep"
        self.compiled.metadata = SimpleNamespace(shared=50 + 100 * options["num_stages"])
        return super().warmup(**options)


@pytest.mark.usefixtures("roomy")
@table("room, stages", [(400, 3), (349, 2), (150, 1)])
def test_a_kernel_has_the_stages_that_shared_memory_holds(room: int, stages: int) -> None:
    kernel, arguments = Deep(), {"rows": 0, "count": 1, "out": 2}
    stream(Launcher(CPU, room=room)).launch(kernel, 1, arguments, KernelOptions(4, 3))
    assert kernel.options["num_stages"] == stages
    assert len(kernel.compiled.launches) == 1


@pytest.mark.usefixtures("roomy")
def test_a_kernel_that_no_shared_memory_holds_is_refused_each_time() -> None:
    kernel, launcher = Deep(), Launcher(CPU, room=149)
    for _ in range(2):
        with pytest.raises(TilelinkError) as found:
            stream(launcher).launch(kernel, 1, {"rows": 0, "count": 1, "out": 2}, KernelOptions(4, 3))
        assert str(found.value).splitlines()[0] == (
            "TL410: kernel deep needs 150 bytes of shared memory, and a block has 149"
        )
    assert kernel.compiled.launches == []


@pytest.mark.usefixtures("roomy")
def test_an_empty_tensor_has_a_descriptor_of_unused_memory() -> None:
    kernel, launcher = Kernel(), Launcher(CPU)
    empty = Descriptor(torch.zeros(0, 64), (2, 32))
    stream(launcher).launch(kernel, 1, {"rows": empty, "count": 0, "out": empty}, KernelOptions(4, 1))
    ((_, _, (rows, _, out)),) = kernel.compiled.launches
    assert [tile.shape for tile in (rows, out)] == [[2, 32]] * 2
    assert rows.base.shape == (2, 32)


def test_wrong_arguments() -> None:
    with pytest.raises(TilelinkError, match=r"TL424: .* missing: out; unknown: colums"):
        stream(Launcher(CPU)).launch(Kernel(), 1, {"rows": 1, "count": 1, "colums": 1}, KernelOptions(4, 1))


def test_a_tensor_elsewhere() -> None:
    with pytest.raises(TilelinkError, match=r"TL425: argument rows is on cpu, and this rank runs on cuda:1"):
        stream(Launcher(torch.device("cuda", 1))).launch(Kernel(), 1, {"rows": torch.zeros(1)}, KernelOptions(4, 1))


@table("tensor", [torch.zeros(4, 3), torch.zeros(64, 4).T, torch.zeros(65)[1:]])
def test_tensors_without_a_descriptor(tensor: torch.Tensor) -> None:
    arguments = {"rows": Descriptor(tensor, (2,) * tensor.dim())}
    with pytest.raises(TilelinkError, match=r"TL426: argument rows"):
        stream(Launcher(CPU)).launch(Kernel(), 1, arguments, KernelOptions(4, 1))


def test_no_doorbells_on_hip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    driver.library.cache_clear()
    call = W.Call({}, 0, NvshmemBackend.__new__(NvshmemBackend), stream())
    with pytest.raises(TilelinkError, match=r"TL420: .* HIP"):
        settled(W.WaitDoorbell(torch.zeros(1, dtype=torch.int64)), W.MAIN, Launcher(CPU), call)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_no_gpu() -> None:
    with pytest.raises(TilelinkError) as caught:
        PeerBackend()
    assert str(caught.value) == (
        "TL432: this process sees no GPU\n"
        "  why: the backends peer and nvshmem run kernels on GPUs\n"
        "  do:  set TILELINK_BACKEND=simulated to run on the CPU"
    )


def test_two_ranks_on_one_gpu() -> None:
    places = [reach.Place("a", "0"), reach.Place("a", "1"), reach.Place("b", "0")]
    reach.require_own_gpus(places)
    with pytest.raises(TilelinkError) as caught:
        reach.require_own_gpus([*places, reach.Place("a", "1")])
    assert str(caught.value) == (
        "TL433: ranks 1 and 3 run on one GPU\n"
        "  why: kernels of two processes take turns on a GPU, and these wait for one another\n"
        "  do:  call torch.cuda.set_device(LOCAL_RANK) before the first operator, or, to try things out slowly in the backend "
        "peer, set TILELINK_SHARE_GPUS=1"
    )


@dataclass
class Host:
    """Process 3 of four on a host, as torchrun starts it; what it does about its GPU and its group."""

    gpus: int
    did: list[Any]


@pytest.fixture
def fourth(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(2, [])
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TILELINK_SHARE_GPUS", raising=False)
    monkeypatch.setattr(reach, "current_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: host.gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: host.did.append(device))
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **given: host.did.append((*args, given)))
    return host


@pytest.mark.parametrize(("gpus", "index"), [(4, 3), (1, 0)])
def test_a_process_has_a_gpu_of_its_own(fourth: Host, gpus: int, index: int) -> None:
    fourth.gpus = gpus
    reach.join()
    own = torch.device("cuda", index)
    assert fourth.did == [own, ("nccl", {"device_id": own})]


def test_more_processes_than_gpus(fourth: Host) -> None:
    with pytest.raises(TilelinkError) as caught:
        reach.join()
    assert fourth.did == []
    assert str(caught.value) == (
        "TL433: process 3 of this host has no GPU of its own: there are 2\n"
        "  why: kernels of two processes take turns on a GPU, and these wait for one another\n"
        "  do:  start torchrun with --nproc-per-node=2, or, to try things out slowly in the backend peer, set "
        "TILELINK_SHARE_GPUS=1"
    )


@pytest.mark.parametrize(("gpus", "index"), [(2, 1), (1, 0), (3, 0), (4, 3)])
def test_processes_are_dealt_out_to_gpus(fourth: Host, monkeypatch: pytest.MonkeyPatch, gpus: int, index: int) -> None:
    monkeypatch.setenv("TILELINK_SHARE_GPUS", "1")
    fourth.gpus = gpus
    reach.join()
    assert fourth.did == [index, ("gloo", {})]


def test_a_gap_between_gpus_is_everybodys() -> None:
    reach.require_no_gap([None, None])
    with pytest.raises(TilelinkError, match=r"TL434: .*: GPU 1 of rank 1 has no peer access"):
        reach.require_no_gap([None, "GPU 1 of rank 1 has no peer access to GPU 0 of rank 0"])


@pytest.mark.parametrize(("reached", "gap"), [(True, None), (False, "GPU 0 of rank 0 has no peer access to GPU 1")])
def test_the_first_gap(monkeypatch: pytest.MonkeyPatch, reached: bool, gap: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, peer: reached)
    monkeypatch.setattr(reach, "_uuid", lambda index: f"gpu {index}")
    places = [reach.Place("a", "gpu 0"), reach.Place("a", "hidden gpu"), reach.Place("a", "gpu 1")]
    found = reach.first_gap(0, torch.device("cuda", 0), places)
    assert found == (gap and f"{gap} of rank 2")
    beside = [places[0], reach.Place("a", "gpu 0")]
    assert reach.first_gap(1, torch.device("cuda", 0), beside) is None  # no GPU is a peer of itself
    elsewhere = reach.first_gap(0, torch.device("cuda", 0), [places[0], reach.Place("b", "gpu 1")])
    assert elsewhere == "rank 0 runs on a and rank 1 on b"


def test_an_arena_holds_its_context_and_is_freed_once() -> None:
    calls: list[str] = []
    instances = (torch.zeros(16, dtype=torch.uint8), torch.ones(16, dtype=torch.uint8))
    arenas = Arenas()
    meet = partial(calls.append, "meet")
    backend: Any = SimpleNamespace(rank=1, numbers=(6, 7), barrier=meet, arenas=arenas, lasting=operator.call)
    arena = Arena(backend, instances[1], instances, (4096, 8192), lambda: calls.append("release"))
    arenas.add(arena)
    assert arena.context.tolist() == [1, 2, 4096, 8192, 6, 7]
    assert arena.peers[0] is instances[0]
    arena.free()
    arena.free()
    assert calls == ["meet", "release"]
    assert arena.local.numel() == 0


def test_tensors_are_found_in_arenas() -> None:
    arenas, instances = Arenas(), [torch.zeros(64, dtype=torch.uint8) for _ in range(4)]
    backend: Any = SimpleNamespace(rank=0, numbers=(0, 1), barrier=nothing, arenas=arenas, lasting=operator.call)
    first = Arena(backend, instances[0], (instances[0], instances[1]), (1, 2), nothing)
    second = Arena(backend, instances[2], (instances[2], instances[3]), (3, 4), nothing)
    arenas.add(first)
    arenas.add(second)
    tensor = second.local[16:48].view(torch.float32).view(2, 4)
    assert arenas.holding(tensor) is second
    assert arenas.holding(first.local) is first
    peer = second.instance(tensor, 1)
    assert (peer.dtype, peer.shape, peer.data_ptr()) == (torch.float32, (8,), instances[3].data_ptr() + 16)
    with pytest.raises(TilelinkError, match="TL439"):
        arenas.holding(torch.zeros(4))
    second.free()
    with pytest.raises(TilelinkError, match="TL439"):
        arenas.holding(tensor)


class Bindings:
    """Records what NVSHMEM is asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))


def test_copies_across_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between ranks that are PEs 1, 2 and 3 of four, of which the last is on another host than this one."""
    nvshmem, by_pointer = Bindings(), object()
    monkeypatch.setattr(library, "module", lambda name: nvshmem)
    monkeypatch.setattr(GpuBackend, "step", lambda *given: by_pointer)
    backend = NvshmemBackend.__new__(NvshmemBackend)
    backend.rank, backend.numbers, backend._reached = 1, (1, 2, 3), [(True, True, True, False)] * 4
    call = W.Call({}, 0, backend, stream())

    def step(target: W.View, source: W.View) -> Any:
        return backend.step(W.Copy(target, source), W.MAIN, call)

    symmetric, here = torch.zeros(4096, dtype=torch.uint8), torch.zeros(2, 8, dtype=torch.uint8)
    own, there = W.View(here, ((0, 2), (0, 8))), W.View(symmetric[:32].view(2, 16), ((0, 2), (4, 12)), 2)
    step(there, own)(call)
    assert nvshmem.calls == [
        ("putmem_on_stream", symmetric.data_ptr() + 4, here.data_ptr(), 8, 3, 5),
        ("putmem_on_stream", symmetric.data_ptr() + 20, here.data_ptr() + 8, 8, 3, 5),
        ("quiet_on_stream", 5),
    ]
    nvshmem.calls.clear()
    step(W.View(here.view(-1), ((0, 16),)), W.View(symmetric, ((0, 16),), 2))(call)
    assert nvshmem.calls == [("getmem_on_stream", here.data_ptr(), symmetric.data_ptr(), 16, 3, 5)]
    with pytest.raises(TilelinkError, match="TL445"):
        step(there, there)
    assert step(own, own) is step(W.View(symmetric, ((0, 16),), 0), own) is by_pointer


def test_only_kernels_that_use_nvshmem_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    nvshmem = Bindings()
    monkeypatch.setattr(library, "module", lambda name: nvshmem)
    library.prepare(Compiled(".visible .entry plain()"))
    assert nvshmem.calls == []
    library.prepare(Compiled(".global .align 8 .b8 nvshmemi_device_state_d[1]"))
    assert nvshmem.calls == [("cumodule_init", 77)]


def test_nvshmem4py_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvshmem", None)
    library.module.cache_clear()
    with pytest.raises(TilelinkError, match=r"TL440: .*\n.*\n.*tilelink-triton\[nvshmem\]"):
        library.module("core")
