"""The interpreter's loads and stores, on the machine's memory: checked, counted, and points where others may run.

Cache and eviction policies are one argument in Triton 3.9 and two before: they are taken as `*policy`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock

from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.machine import Machine
from tilelink.runtime.simulated.observing import Block, Scatter

Handle = stock.TensorHandle


class Accesses:
    """Builder methods. Everything between two switches is atomic: one coroutine runs at a time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.scheduler = machine.scheduler

    # ------------------------------------------------------------------------------------------------ which program
    def create_get_program_id(self, axis: int) -> Handle:
        worker = self.scheduler.running().worker if axis == 0 else 0
        return Handle(np.array([worker], dtype=np.int32), tl.int32)

    def create_get_num_programs(self, axis: int) -> Handle:
        launch = self.scheduler.running().launch
        assert launch is not None
        return Handle(np.array([launch.workers if axis == 0 else 1], dtype=np.int32), tl.int32)

    # --------------------------------------------------------------------------------------------- loads and stores
    def create_load(self, ptr: Handle, *policy: Any) -> Handle:
        return self._load(ptr, None, None, volatile=policy[-1])

    def create_masked_load(self, ptrs: Handle, mask: Handle, other: Handle | None, *policy: Any) -> Handle:
        return self._load(ptrs, mask.data, other, volatile=policy[-1])

    def create_store(self, ptr: Handle, value: Handle, *policy: Any) -> None:
        self._store(ptr, value, None)

    def create_masked_store(self, ptrs: Handle, value: Handle, mask: Handle, *policy: Any) -> None:
        self._store(ptrs, value, mask.data)

    def _load(self, ptr: Handle, mask: np.ndarray | None, other: Handle | None, *, volatile: bool) -> Handle:
        ty = ptr.get_element_ty()
        dtype = stock._get_np_dtype(ty)
        addresses = ptr.data
        live = addresses if mask is None else addresses[np.broadcast_to(mask, addresses.shape)]
        agent = self.scheduler.running()
        region = self.machine.touch(agent, live, dtype.itemsize, "reads")
        if volatile and region is not None and live.size == 1:
            self.machine.poll(int(live.item()), region, dtype.itemsize)
        else:
            self.machine.moved(agent)
            if addresses.size > 1:
                self.scheduler.maybe_switch()
        if self.machine.observer is not None and region is not None:
            self.machine.observer.load(agent, _span(addresses, live, dtype.itemsize), "threads")
        if region is not None and addresses.size == 1:
            at = int(live.item()) - region.start
            data = region.data[at : at + dtype.itemsize].view(dtype).copy()
            return Handle(data.reshape(addresses.shape), ty)
        filled = np.zeros(addresses.shape, dtype) if other is None else other.data
        where = np.ones(addresses.shape, dtype=bool) if mask is None else mask
        return Handle(native.load(addresses, where, filled, dtype), ty)

    def _store(self, ptr: Handle, value: Handle, mask: np.ndarray | None) -> None:
        itemsize = stock._get_np_dtype(ptr.get_element_ty()).itemsize
        addresses = ptr.data
        live = addresses if mask is None else addresses[np.broadcast_to(mask, addresses.shape)]
        agent = self.scheduler.running()
        region = self.machine.touch(agent, live, itemsize, "writes")
        self.machine.moved(agent)
        if region is None:
            return
        if addresses.size > 1:
            self.scheduler.maybe_switch()
        if self.machine.observer is not None:
            self.machine.observer.store(agent, _span(addresses, live, itemsize), "threads")
        is_word = live.size == 1 and itemsize >= 4
        before = region.word(int(live.item()), itemsize) if is_word else 0
        native.store(addresses, value.data, np.ones(addresses.shape, dtype=bool) if mask is None else mask)
        if is_word:
            self.machine.written(int(live.item()), region, before, itemsize, joins=False, signal=False)

    # ------------------------------------------------------------------------------------------------- descriptors
    def create_descriptor_load(self, desc: Any, indices: list[Handle], *policy: Any) -> Handle:
        agent = self.scheduler.running()
        ty = desc.base.dtype.element_ty
        view, inner = self._tile(agent, desc, indices, "reads")
        shape = tuple(desc.block_shape)
        if view is None or view.shape != shape:
            pad = 0 if desc.padding == ir.PADDING_OPTION.PAD_ZERO else _nan_bits(ty)
            data = np.full(shape, pad, dtype=stock._get_np_dtype(ty))
            if view is not None:
                data[inner] = view
        else:
            data = view.copy()
        if getattr(desc, "round_f32_to_tf32", False):
            data = stock._round_f32_to_tf32(data)
        return Handle(data, ty)

    def create_descriptor_store(self, desc: Any, value: Handle, indices: list[Handle]) -> None:
        agent = self.scheduler.running()
        view, inner = self._tile(agent, desc, indices, "writes")
        if view is not None:
            view[...] = value.data.reshape(tuple(desc.block_shape))[inner]

    def _tile(
        self, agent: Agent, desc: Any, indices: list[Handle], what: str
    ) -> tuple[np.ndarray | None, tuple[slice, ...]]:
        """The part of the block inside the tensor as a view of memory, and where in the block it lies."""
        self.machine.moved(agent)
        self.scheduler.maybe_switch()
        dtype = stock._get_np_dtype(desc.base.dtype.element_ty)
        itemsize = dtype.itemsize
        offsets = [int(i.data.item()) for i in indices]
        assert offsets[-1] * itemsize % 16 == 0, "block offset start must be 16-byte aligned"
        strides = tuple(int(s.data.item()) * itemsize for s in desc.strides)
        limits = [int(s.data.item()) for s in desc.shape]
        low = [max(o, 0) for o in offsets]
        high = [min(o + b, n) for o, b, n in zip(offsets, desc.block_shape, limits, strict=True)]
        shape = tuple(h - at for h, at in zip(high, low, strict=True))
        inner = tuple(slice(at - o, h - o) for at, h, o in zip(low, high, offsets, strict=True))
        if min(shape) <= 0:
            return None, inner
        first = int(desc.base.data.item()) + sum(at * s for at, s in zip(low, strides, strict=True))
        last = first + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        ends = np.array([first, last], dtype=np.uint64)
        region = self.machine.touch(agent, ends, itemsize, what, nbytes=itemsize * int(np.prod(shape)))
        assert region is not None
        if self.machine.observer is not None:
            observe = self.machine.observer.load if what == "reads" else self.machine.observer.store
            observe(agent, Block(first, shape, strides, itemsize), "bulk")
        return np.ndarray(shape, dtype, region.data, first - region.start, strides), inner


def _span(addresses: np.ndarray, live: np.ndarray, itemsize: int) -> Block | Scatter:
    """A strided rectangle if the addresses are one (all of them verified), else the list of them."""
    if live.size == addresses.size:
        first = int(addresses.flat[0])
        strides = []
        for axis, size in enumerate(addresses.shape):
            second = tuple(1 if a == axis else 0 for a in range(addresses.ndim))
            strides.append(int(addresses[second]) - first if size > 1 else 0)
        grid = np.full(addresses.shape, first, dtype=np.int64)
        for axis, stride in enumerate(strides):
            steps = [1] * addresses.ndim
            steps[axis] = addresses.shape[axis]
            grid += (np.arange(addresses.shape[axis], dtype=np.int64) * stride).reshape(steps)
        if np.array_equal(grid.view(np.uint64), addresses):
            return Block(first, addresses.shape, tuple(strides), itemsize)
    return Scatter(live.reshape(-1), itemsize)


def _nan_bits(ty: Any) -> Any:
    return {"bf16": 0x7FC0, "fp8e4nv": 0x7F, "fp8e5": 0x7E}.get(ty.name, float("nan"))
