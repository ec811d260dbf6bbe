"""The interpreter's loads and stores, on the machine's memory: checked, counted, and points where others may run.

Cache and eviction policies are one argument in Triton 3.9 and two before: they are taken as `*policy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock

from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.machine import Machine
from tilelink.runtime.simulated.memory import Region
from tilelink.runtime.simulated.observing import Block, Scatter, Span
from tilelink.runtime.simulated.storebuffer import Stage
from tilelink.runtime.simulated.words import WORD

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
        agent = self.scheduler.running()
        span = span_of(ptr.data, mask, dtype.itemsize)
        span, region = self._reach(agent, span, ptr.data, mask, "reads")
        if volatile and region is not None and isinstance(span, Block) and ptr.data.size == 1:
            self.machine.poll(span.address, region, dtype.itemsize)
        else:
            self._interrupt(agent, ptr.data)
        if span is not None:
            self._settle(agent, span)
            if self.machine.observer is not None and not agent.peeking:
                self.machine.observer.load(agent, span, "threads")
        if isinstance(span, Block) and region is not None and span.shape == ptr.data.shape:
            return Handle(_view(span, region, dtype).copy(), ty)
        filled = np.zeros(ptr.data.shape, dtype) if other is None else other.data
        where = np.ones(ptr.data.shape, dtype=bool) if mask is None else mask
        return Handle(native.load(ptr.data, where, filled, dtype), ty)

    def _store(self, ptr: Handle, value: Handle, mask: np.ndarray | None) -> None:
        dtype = stock._get_np_dtype(ptr.get_element_ty())
        agent = self.scheduler.running()
        span = span_of(ptr.data, mask, dtype.itemsize)
        span, region = self._reach(agent, span, ptr.data, mask, "writes")
        self._interrupt(agent, ptr.data)
        if region is None or span is None:
            return
        if _of_words(ptr, region):
            # Each word says itself that it has come: a signal like any other.
            self.scheduler.switch()
        if self.machine.observer is not None:
            self.machine.observer.store(agent, span, "threads")
        self._put(agent, span, "threads", lambda: self._write(ptr, value, mask, span, region))

    def _write(self, ptr: Handle, value: Handle, mask: np.ndarray | None, span: Span, region: Region) -> None:
        dtype = stock._get_np_dtype(ptr.get_element_ty())
        if isinstance(span, Block) and ptr.data.size == 1 and span.itemsize >= 4:
            before = region.word(span.address, span.itemsize)
            _view(span, region, dtype)[...] = value.data.reshape(-1)[:1].reshape(span.shape)
            self.machine.written(span.address, region, before, span.itemsize, joins=False, signal=False)
        elif isinstance(span, Block) and span.shape == ptr.data.shape and 0 not in span.strides:
            _view(span, region, dtype)[...] = value.data
        else:
            native.store(ptr.data, value.data, np.ones(ptr.data.shape, dtype=bool) if mask is None else mask)
        if _of_words(ptr, region):
            self.machine.stored(span, region)

    def _put(self, agent: Agent, span: Span, stage: Stage, write: Callable[[], None]) -> None:
        """Now, or when the store buffer thinks fit."""
        if self.machine.stores is None:
            write()
        else:
            self.machine.stores.put(agent, span, stage, write)

    def _settle(self, agent: Agent, span: Span) -> None:
        """A program sees its own stores."""
        if self.machine.stores is not None:
            self.machine.stores.settle(agent, *span.bounds)

    def _reach(
        self, agent: Agent, span: Span | None, addresses: np.ndarray, mask: np.ndarray | None, what: str
    ) -> tuple[Span | None, Region | None]:
        """The memory of a span. A rectangle over several regions is taken as the list of its addresses."""
        if span is None:
            return None, None
        region = self.machine.memory.holding(span, agent.rank) if isinstance(span, Block) else None
        if region is None:
            if isinstance(span, Block):
                live = addresses if mask is None else addresses[np.broadcast_to(mask, addresses.shape)]
                span = Scatter(live.reshape(-1), span.itemsize)
            region = self.machine.reach_all(agent, span, what)
        self.machine.charge(agent, region, span.nbytes)
        return span, region

    def _interrupt(self, agent: Agent, addresses: np.ndarray) -> None:
        self.machine.moved(agent)
        if addresses.size > 1:
            self.scheduler.maybe_switch()

    # ------------------------------------------------------------------------------------------------- descriptors
    def create_descriptor_load(self, desc: Any, indices: list[Handle], *policy: Any) -> Handle:
        agent = self.scheduler.running()
        ty = desc.base.dtype.element_ty
        block, view, inner = self._tile(agent, desc, indices, "reads")
        shape = tuple(desc.block_shape)
        if block is not None:
            self._settle(agent, block)
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
        block, view, inner = self._tile(agent, desc, indices, "writes")
        if block is not None and view is not None:
            data = value.data.reshape(tuple(desc.block_shape))[inner]
            self._put(agent, block, "bulk", lambda: np.copyto(view, data))

    def _tile(
        self, agent: Agent, desc: Any, indices: list[Handle], what: str
    ) -> tuple[Block | None, np.ndarray | None, tuple[slice, ...]]:
        """The part of the block inside the tensor, a view of its memory, and where in the block it lies."""
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
            return None, None, inner
        first = int(desc.base.data.item()) + sum(at * s for at, s in zip(low, strides, strict=True))
        block = Block(first, shape, strides, itemsize)
        region = self.machine.reach(agent, block, what)
        self.machine.charge(agent, region, block.nbytes)
        if self.machine.observer is not None:
            observe = self.machine.observer.load if what == "reads" else self.machine.observer.store
            observe(agent, block, "bulk")
        return block, _view(block, region, dtype), inner


def _of_words(ptr: Handle, region: Region) -> bool:
    """Whether words are stored where others may look at them."""
    return region.symmetric and stock._get_np_dtype(ptr.get_element_ty()).itemsize == WORD


def _view(block: Block, region: Region, dtype: np.dtype) -> np.ndarray:
    return np.ndarray(block.shape, dtype, region.data, block.address - region.start, block.strides)


def span_of(addresses: np.ndarray, mask: np.ndarray | None, itemsize: int) -> Span | None:
    """A rectangle if the addresses are one (all of them verified), else the list of them; None if all are masked."""
    if mask is not None and not mask.all():
        mask = np.broadcast_to(mask, addresses.shape)
        inside = _rectangle(mask)
        if inside is None:
            live = addresses[mask]
            return Scatter(live, itemsize) if live.size else None
        addresses = addresses[inside]
    if addresses.size == 1:
        return Block(int(addresses.item()), addresses.shape, (0,) * addresses.ndim, itemsize)
    strides = tuple(_step(addresses, axis) for axis in range(addresses.ndim))
    grid = addresses.flat[:1].view(np.int64)
    for axis, stride in enumerate(strides):
        run = np.arange(addresses.shape[axis], dtype=np.int64) * stride
        grid = grid + run.reshape([-1 if a == axis else 1 for a in range(addresses.ndim)])
    if np.array_equal(grid.view(np.uint64), addresses):
        return Block(int(addresses.flat[0]), addresses.shape, strides, itemsize)
    return Scatter(addresses.reshape(-1), itemsize)


def _rectangle(mask: np.ndarray) -> tuple[slice, ...] | None:
    """Where a mask is true, if that is one rectangle: a tile at the edge of its tensor."""
    sides = []
    for axis in range(mask.ndim):
        live = np.flatnonzero(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis)))
        if not live.size:
            return None
        sides.append(slice(int(live[0]), int(live[-1]) + 1))
    inside = tuple(sides)
    return inside if mask[inside].all() else None


def _step(addresses: np.ndarray, axis: int) -> int:
    """From the first element to the second along an axis."""
    if addresses.shape[axis] == 1:
        return 0
    second = tuple(1 if a == axis else 0 for a in range(addresses.ndim))
    return int(addresses[second]) - int(addresses.flat[0])


def _nan_bits(ty: Any) -> Any:
    return {"bf16": 0x7FC0, "fp8e4nv": 0x7F, "fp8e5": 0x7E}.get(ty.name, float("nan"))
