"""The few calls of the CUDA driver that neither torch nor triton offers, checked.

Addresses are byte addresses, streams are `CUstream` handles, both as integers. Everything that takes a stream is
asynchronous and legal under CUDA-graph capture.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch

from tilelink.errors import TilelinkError


def copy_bytes(target: int, source: int, nbytes: int, stream: int) -> None:
    """Copy within the memory that this device reaches, its own and its peers', by a copy engine."""
    _check(_driver().cuMemcpyDtoDAsync(target, source, nbytes, stream), "cuMemcpyDtoDAsync")


def copy_rows(
    target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int
) -> None:
    """Copy `rows` rows of `width` bytes that begin every pitch bytes; `width <= pitch < 2**31`."""
    driver = _driver()
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.srcPitch = source, source_pitch
    copy.dstDevice, copy.dstPitch = target, target_pitch
    copy.WidthInBytes, copy.Height = width, rows
    _check(driver.cuMemcpy2DAsync(copy, stream), "cuMemcpy2DAsync")


def wait_value(address: int, value: int, stream: int) -> None:
    """Block the stream until the int32 at `address` is at least `value` (cyclically)."""
    driver = _driver()
    flags = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
    _check(driver.cuStreamWaitValue32(stream, address, value, flags), "cuStreamWaitValue32")


def write_value(address: int, value: int, stream: int) -> None:
    """Write the int32 at `address`; what the stream has written before is visible to whoever sees the value."""
    driver = _driver()
    flags = driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT
    _check(driver.cuStreamWriteValue32(stream, address, value, flags), "cuStreamWriteValue32")


def blocks_per_multiprocessor(function: int, threads: int, shared_bytes: int) -> int:
    """How many blocks of a loaded `CUfunction` one multiprocessor holds, given its registers and shared memory."""
    result = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared_bytes)
    return int(_check(result, "cuOccupancyMaxActiveBlocksPerMultiprocessor"))


def copy_engines(device: int) -> int:
    """Copy engines of the GPU with this index."""
    driver = _driver()
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT
    handle = _check(driver.cuDeviceGet(device), "cuDeviceGet")
    return int(_check(driver.cuDeviceGetAttribute(attribute, handle), "cuDeviceGetAttribute"))


def reserve_addresses(nbytes: int) -> int:
    """A range of addresses with no memory behind it; the size is a multiple of 2 MiB."""
    return int(_check(_driver().cuMemAddressReserve(nbytes, 0, 0, 0), "cuMemAddressReserve"))


def release_addresses(address: int, nbytes: int) -> None:
    """Give back what `reserve_addresses` gave."""
    _check(_driver().cuMemAddressFree(address, nbytes), "cuMemAddressFree")


@functools.cache
def _driver() -> ModuleType:
    if torch.version.hip:
        raise TilelinkError(
            "TL420",
            "this needs the CUDA driver, and this PyTorch is built for HIP",
            why="HIP waits for values in signal memory only, so streams have no bells there",
            hint="choose a schedule without copy-engine steps that wait for kernels",
        )
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise TilelinkError(
            "TL421",
            "the package cuda-bindings is not installed",
            why="copies, bells and occupancy are calls of the CUDA driver",
            hint="install cuda-bindings for the CUDA release of this PyTorch",
        ) from error


def _check(result: tuple[Any, ...], call: str) -> Any:
    status, *values = result
    if status != 0:
        _, name = _driver().cuGetErrorName(status)
        raise TilelinkError(
            "TL422",
            f"{call} failed with {name.decode() if isinstance(name, bytes) else status}",
            why="the CUDA driver refused the call, or reports an earlier failure of the device",
            hint="look for an illegal address in a kernel that ran before (CUDA_LAUNCH_BLOCKING=1)",
        )
    return values[0] if values else None
