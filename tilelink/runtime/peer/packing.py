"""A compiled kernel's parameters, laid out once as the CUDA driver takes them.

Triton binds, checks and packs all arguments at every launch, and encodes its TMA descriptors anew. Here only addresses
that change are written over. What Triton's launcher passes is known to be the same for Triton 3.6 to 3.9: per parameter
its value, for a descriptor the tensor map, its shape and its strides, and two scratch pointers at the end. It is not
taken on trust: the parameters that the kernel's PTX declares must have these very sizes, or the kernel is launched by
Triton's own launcher.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilelink.runtime import backend as W
from tilelink.runtime.peer.driver import LaunchConfig
from tilelink.runtime.peer.streams import Launcher

_SCALARS: dict[str, Any] = {
    "i1": ctypes.c_int8,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u1": ctypes.c_uint8,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
_MAP_BYTES = 128
_MAPS_KEPT = 64
"""Tensor maps per parameter: torch's allocator hands out the same few addresses again and again."""
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)\s[^,\[]*(?:\[(\d+)\])?")
_ALONE = {
    "num_ctas": 1,
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}
"""What a kernel's metadata say where a launch needs no attribute and no memory."""


@dataclass(slots=True, eq=False)
class TensorMaps:
    """The TMA descriptors of one parameter, by the address of the tensor, whose shape and strides are always the same.

    `metadata`: what the compiler says of the parameter.
    """

    metadata: Mapping[str, Any]
    of: W.Descriptor
    _known: dict[int, tuple[Any, int]] = field(default_factory=dict[int, tuple[Any, int]])

    def address(self, tensor: torch.Tensor) -> int:
        """Where the 128 bytes of the tensor's map lie, until as many other tensors have been asked for as are kept."""
        start = tensor.data_ptr()
        known = self._known.get(start)
        if known is None:
            if len(self._known) == _MAPS_KEPT:
                del self._known[next(iter(self._known))]
            described = replace(self.of, tensor=tensor).of_argument("of a call")
            made = _encoder()(described, self.metadata)[0]
            known = self._known[start] = made, _inside(made)
        return known[1]


@functools.cache
def _encoder() -> Any:
    """Triton's own: descriptor, metadata -> tensor map, shape, strides."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    if len(inspect.signature(make_tensordesc_arg).parameters) == 2:
        return make_tensordesc_arg
    return lambda descriptor, metadata: make_tensordesc_arg(descriptor, metadata, None)


def _inside(tensor_map: Any) -> int:
    """The address of the CUtensorMap in Triton's object around it, of which it is the last member.

    Triton tells nobody where it lies. To encode maps by the driver's own call would be to repeat what Triton decides by
    version: the kind of element, padding, swizzling. So the place is taken from how the object is declared, which a test
    looks up for each Triton.
    """
    return id(tensor_map) + type(tensor_map).__basicsize__ - _MAP_BYTES


class Packed:
    """A launch of `workers` of a kernel: its configuration, the parameters added so far, and what to write there in each call.

    `sizes`: the bytes of each parameter's value. `pointers`: values that are the address of a tensor of the call, by name;
    `contexts`: of the context of its arena, for a line of ranks or all. `maps`: places among `parameters` that point to a
    tensor's map.
    """

    def __init__(self, compiled: Any, workers: int) -> None:
        metadata = compiled.metadata
        threads = metadata.num_warps * metadata.target.warp_size
        self.function: int = compiled.function
        self.config = LaunchConfig((workers, 1, 1), (threads, 1, 1), metadata.shared, 0, 0, 0)
        self.sizes: list[int] = []
        self.pointers: list[tuple[Any, str]] = []
        self.contexts: list[tuple[Any, str, tuple[int, ...] | None]] = []
        self.maps: list[tuple[int, str, TensorMaps]] = []
        self._described: Iterator[Mapping[str, Any]] = iter(metadata.tensordesc_meta or ())
        self._addresses: list[int] = []
        self._kept: list[object] = [compiled]
        """Whatever `parameters` leads to."""

    def parameters(self) -> Any:
        """The address of each parameter's value, as the driver takes them."""
        return (ctypes.c_void_p * len(self._addresses))(*self._addresses)

    def add(self, kind: str, value: W.Value, found: Any) -> bool:
        """The next parameter, if it is known how. `kind`: in Triton's words; `found`: the value in the first call, or
        the tensor of a descriptor's."""
        if kind == "constexpr":
            return True
        if kind.startswith("tensordesc"):
            return isinstance(value, W.Descriptor) and self._descriptor(value, found)
        if kind.startswith("*"):
            if not isinstance(found, torch.Tensor):
                return False
            address = ctypes.c_uint64(found.data_ptr())
            self.number(address)
            if isinstance(value, W.Given):
                self.pointers.append((address, value.name))
            elif isinstance(value, W.ContextOf):
                self.contexts.append((address, value.name, value.line))
            else:
                self._kept.append(found)
            return True
        scalar = _SCALARS.get(kind)
        if scalar is None or not isinstance(found, (bool, int, float)):
            return False
        self.number(scalar(found))
        return True

    def number(self, value: Any) -> None:
        """One of ctypes' numbers."""
        self._parameter(ctypes.addressof(value), ctypes.sizeof(value), value)

    def _descriptor(self, of: W.Descriptor, tensor: torch.Tensor) -> bool:
        metadata = next(self._described, None)
        if metadata is None or metadata.get("is_im2col") or metadata.get("fp4_padded"):
            return False
        if not tensor.numel():
            # No tile of it will be touched, and an empty tensor has no address.
            tensor = tensor.new_zeros(of.block)
            of = W.Descriptor(tensor, of.block)
        maps, varies = TensorMaps(metadata, of), isinstance(of.tensor, W.Given)
        if isinstance(of.tensor, W.Given):
            self.maps.append((len(self._addresses), of.tensor.name, maps))
        self._parameter(maps.address(tensor), _MAP_BYTES, (maps, None if varies else tensor))
        view = of.view(tensor)
        for size in view.shape:
            self.number(ctypes.c_int32(size))
        for stride in view.stride():
            self.number(ctypes.c_int64(stride))
        return True

    def _parameter(self, address: int, size: int, kept: object) -> None:
        self._addresses.append(address)
        self.sizes.append(size)
        self._kept.append(kept)


def pack(work: W.Launch, launcher: Launcher, first: W.Call) -> Packed | None:
    """The launch laid out, its kernel compiled and loaded; None where only Triton's own launcher is known to be right."""
    args = {name: W.value_of(value, first) for name, value in work.args.items()}
    compiled, _ = launcher.load(work.kernel, work.workers, args, work.options)
    kinds = compiled.src.signature
    if torch.version.hip or not by_grid_alone(compiled.metadata) or list(kinds) != list(work.kernel.arg_names):
        return None
    packed = Packed(compiled, work.workers)
    args |= {
        name: W.tensor_of(value.tensor, first) for name, value in work.args.items() if isinstance(value, W.Descriptor)
    }
    if not all(packed.add(kind, work.args[name], args[name]) for name, kind in kinds.items()):
        return None
    packed.number(ctypes.c_uint64(0))  # Triton's scratch memory, global and for profiles: this kernel has none
    packed.number(ctypes.c_uint64(0))
    return packed if packed.sizes == declared_sizes(compiled.asm["ptx"], compiled.name) else None


def declared_sizes(ptx: str, name: str) -> list[int]:
    """Bytes of each parameter of a kernel, as its PTX declares them."""
    found = re.search(rf"\.entry\s+{re.escape(name)}\s*\((.*?)\)", ptx, re.DOTALL)
    if found is None:
        return []
    return [int(bits) // 8 * int(count or 1) for bits, count in _PARAMETER.findall(found[1])]


def by_grid_alone(metadata: Any) -> bool:
    """Whether a launch of the kernel is configured by its grid, block and shared memory alone."""
    return all(getattr(metadata, name, None) == value for name, value in _ALONE.items())
