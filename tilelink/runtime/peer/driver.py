"""The few calls of the CUDA driver that neither torch nor triton offers, checked.

Addresses are byte addresses, streams are `CUstream` handles, both as integers. Everything that takes a stream is
asynchronous and legal under CUDA-graph capture. The library is called directly: a call costs its host less than a
microsecond, and an operator makes a dozen.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

import torch

from tilelink.errors import TilelinkError

_WAIT, _WRITE = 1, 2
"""CU_STREAM_MEM_OP_WAIT_VALUE_32 and CU_STREAM_MEM_OP_WRITE_VALUE_32; a wait with flags 0 is for `>=`."""
_ON_DEVICE = 2
"""CU_MEMORYTYPE_DEVICE."""
_COPY_ENGINES = 40
"""CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT."""
_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING."""
_UNTIMED = 2
"""CU_EVENT_DISABLE_TIMING."""


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class MemoryOperation(ctypes.Structure):
    """CUstreamBatchMemOpParams of a 32-bit wait or write."""

    _fields_ = (
        ("operation", ctypes.c_int),
        ("address", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint),
        ("alias", ctypes.c_uint64),
        ("rest", ctypes.c_uint64),
    )


class _Side(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
    )


class _Rows(ctypes.Structure):
    """CUDA_MEMCPY2D_v2."""

    _fields_ = (("source", _Side), ("target", _Side), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t))


_ADDRESS, _HANDLE, _SIZE, _UINT, _INT = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int
_OUT = ctypes.c_void_p
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuCtxGetCurrent": (_OUT,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuDeviceGet": (_OUT, _INT),
    "cuDeviceGetAttribute": (_OUT, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_OUT, _INT),
    "cuEventCreate": (_OUT, _UINT),
    "cuEventDestroy_v2": (_HANDLE,),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuGetErrorName": (_INT, _OUT),
    "cuLaunchKernelEx": (_HANDLE, _HANDLE, _HANDLE, _HANDLE),
    "cuMemcpy2DAsync_v2": (_HANDLE, _HANDLE),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _HANDLE),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_OUT, _HANDLE, _INT, _SIZE),
    "cuStreamBatchMemOp_v2": (_HANDLE, _UINT, _HANDLE, _UINT),
    "cuStreamCreateWithPriority": (_OUT, _UINT, _INT),
    "cuStreamWaitEvent": (_HANDLE, _HANDLE, _UINT),
}


def copy_rows(
    target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int
) -> None:
    """Copy `rows` rows of `width` bytes that begin every pitch bytes; `width <= pitch < 2**31`."""
    start = _Side(kind=_ON_DEVICE, device=source, pitch=source_pitch)
    to = _Side(kind=_ON_DEVICE, device=target, pitch=target_pitch)
    copy = _Rows(source=start, target=to, width=width, height=rows)
    check(library().cuMemcpy2DAsync_v2(ctypes.byref(copy), stream), "cuMemcpy2DAsync")


def doorbell_operations(address: int, times: int) -> Any:
    """For cuStreamBatchMemOp: block until the int32 at `address` is at least `times`, then write 0 there."""
    wait, write = (MemoryOperation(kind, address, value, 0, 0, 0) for kind, value in ((_WAIT, times), (_WRITE, 0)))
    return (MemoryOperation * 2)(wait, write)


def enter(device: int) -> None:
    """Let this thread have a context: a fresh one has none until a call of the CUDA runtime needs one."""
    if _answer(ctypes.c_void_p, "cuCtxGetCurrent") is None:
        context = _answer(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", _answer(ctypes.c_int, "cuDeviceGet", device))
        check(library().cuCtxSetCurrent(context), "cuCtxSetCurrent")


def create_stream(priority: int) -> int:
    """Of this thread's context, independent of the default stream; lower numbers go first."""
    return _answer(ctypes.c_void_p, "cuStreamCreateWithPriority", _NON_BLOCKING, priority)


class Event:
    """A point in a stream, which can be set again and again; whoever waits means the point that it was set to last."""

    def __init__(self) -> None:
        self.handle = _answer(ctypes.c_void_p, "cuEventCreate", _UNTIMED)
        weakref.finalize(self, library().cuEventDestroy_v2, self.handle).atexit = False


def blocks_per_multiprocessor(function: int, threads: int, shared_bytes: int) -> int:
    """How many blocks of a loaded `CUfunction` one multiprocessor holds, given its registers and shared memory."""
    return _answer(ctypes.c_int, "cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, shared_bytes)


def copy_engines(device: int) -> int:
    """Copy engines of the GPU with this index."""
    return _answer(ctypes.c_int, "cuDeviceGetAttribute", _COPY_ENGINES, _answer(ctypes.c_int, "cuDeviceGet", device))


def _answer(kind: Any, call: str, *given: Any) -> Any:
    """What a call of the driver writes where its first argument points."""
    found = kind()
    # An attribute: `library()[…]` would be another object, without the types, and cut handles to 32 bits.
    check(getattr(library(), call)(ctypes.byref(found), *given), call)
    return found.value


@functools.cache
def library() -> Any:
    """The CUDA driver's library, with the types of the functions that are called here. Raises TL420 on HIP, TL421 there is
    none."""
    if torch.version.hip:
        raise TilelinkError(
            "TL420",
            "this needs the CUDA driver, and this PyTorch is built for HIP",
            why="HIP waits for values in signal memory only, so streams have no doorbells there",
            hint="choose a schedule without copy-engine steps that wait for kernels",
        )
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise TilelinkError(
            "TL421",
            f"the CUDA driver cannot be loaded: {error}",
            why="launches, copies, doorbells and occupancy are calls of the CUDA driver",
            hint="install NVIDIA's driver, or set TILELINK_BACKEND=simulated to run on the CPU",
        ) from error
    for name, types in _PROTOTYPES.items():
        function = found[name]
        function.argtypes, function.restype = types, ctypes.c_int
        setattr(found, name, function)
    return found


def check(status: int, call: str) -> None:
    """Raises TL422, the driver's status is not success."""
    if status == 0:
        return
    name = ctypes.c_char_p()
    library().cuGetErrorName(status, ctypes.byref(name))
    raise TilelinkError(
        "TL422",
        f"{call} failed with {name.value.decode() if name.value else status}",
        why="the CUDA driver refused the call, or reports an earlier failure of the device",
        hint="look for an illegal address in a kernel that ran before (CUDA_LAUNCH_BLOCKING=1)",
    )
