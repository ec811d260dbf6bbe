"""The interpreter's memory operations, on the machine's memory: checked, counted, and points where others may run.

Cache and eviction policies are one argument in Triton 3.9 and two before: they are taken as `*policy`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock

from tilelink.device.fences import MEANING
from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.machine import Machine
from tilelink.runtime.simulated.memory import Region, WildAccess
from tilelink.runtime.simulated.observing import Block, Scatter

Handle = stock.TensorHandle

_ACQUIRES = (ir.MEM_SEMANTIC.ACQUIRE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
_RELEASES = (ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)


class _AsmResult:
    """What the language takes for the operation that `create_inline_asm` makes."""

    def get_result(self, index: int) -> Handle:
        return Handle(np.zeros(1, dtype=np.int32), tl.int32)


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
        region = self._touch(agent, live, dtype.itemsize, "reads")
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
        region = self._touch(agent, live, itemsize, "writes")
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
        region = self._touch(agent, ends, itemsize, what, nbytes=itemsize * int(np.prod(shape)))
        assert region is not None
        if self.machine.observer is not None:
            observe = self.machine.observer.load if what == "reads" else self.machine.observer.store
            observe(agent, Block(first, shape, strides, itemsize), "bulk")
        return np.ndarray(shape, dtype, region.data, first - region.start, strides), inner

    # ------------------------------------------------------------------------------------------------------ atomics
    def create_atomic_rmw(self, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        is_poll = op == ir.ATOMIC_OP.ADD and val.data.size == 1 and not val.data.item()

        def run() -> np.ndarray:
            rmw = stock.InterpreterBuilder.ir_rmw_op_to_interpreter_rmw_op[op]
            order = stock.InterpreterBuilder.ir_sem_to_interpreter_sem[sem]
            return native.atomic_rmw(rmw, ptr.data, val.data, mask.data, order)

        return Handle(self._atomic(ptr, val, mask.data, sem, scope, run, is_poll=is_poll), val.dtype.scalar)

    def create_atomic_cas(self, ptr: Handle, cmp: Handle, val: Handle, sem: Any, scope: Any) -> Handle:
        def run() -> np.ndarray:
            order = stock.InterpreterBuilder.ir_sem_to_interpreter_sem[sem]
            return native.atomic_cas(ptr.data, cmp.data, val.data, order)

        return Handle(self._atomic(ptr, val, None, sem, scope, run), cmp.dtype.scalar)

    def create_atomic_load(self, ptr: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        def run() -> np.ndarray:
            dtype = stock._get_np_dtype(ptr.get_element_ty())
            return native.load(ptr.data, mask.data, np.zeros(ptr.data.shape, dtype), dtype)

        return Handle(self._atomic(ptr, ptr, mask.data, sem, scope, run, is_poll=True), ptr.get_element_ty())

    def create_atomic_store(self, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> None:
        def run() -> np.ndarray:
            native.store(ptr.data, val.data, mask.data)
            return val.data

        self._atomic(ptr, val, mask.data, sem, scope, run)

    def create_atomic_poll(self, ptr: Handle, expected: Handle, timeout_ns: Any, sem: Any, scope: Any) -> Handle:
        if ptr.data.size != 1 or timeout_ns is not None:
            self.refuse("tl.atomic_poll of several words, or with a time limit", "poll one word at a time")
        mask = Handle(np.ones(ptr.data.shape, dtype=bool), tl.int1)
        while self.create_atomic_load(ptr, mask, sem, scope).data.item() != expected.data.item():
            pass
        return mask

    def _atomic(
        self, ptr: Handle, val: Handle, mask: np.ndarray | None, sem: Any, scope: Any, run: Any, *, is_poll: bool = False
    ) -> np.ndarray:
        machine, agent = self.machine, self.scheduler.running()
        ty = ptr.get_element_ty()
        if ty == tl.bfloat16:
            self.refuse("an atomic on bfloat16", "accumulate in float32")
        itemsize = stock._get_np_dtype(ty).itemsize
        live = ptr.data if mask is None else ptr.data[np.broadcast_to(mask, ptr.data.shape)]
        region = self._touch(agent, live, itemsize, "changes", nbytes=0)
        if region is None or live.size != 1:
            machine.moved(agent)
            self.scheduler.switch()
            return self._observed_vector(agent, live, itemsize, run)
        address = int(live.item())
        if is_poll:
            machine.poll(address, region, itemsize)
            result, before = run(), 0
        else:
            machine.moved(agent)
            self.scheduler.switch()
            before = region.word(address, itemsize)
            result = run()
            agent.clock += machine.costs.signal
        if machine.observer is not None:
            name = "system" if scope == ir.MEM_SYNC_SCOPE.SYSTEM else "device"
            acquire, release = sem in _ACQUIRES, sem in _RELEASES
            machine.observer.atomic(agent, address, acquire=acquire, release=release, scope=name, writes=not is_poll)
        if not is_poll:
            machine.written(address, region, before, itemsize, joins=sem in _ACQUIRES, signal=True)
        return result

    def _observed_vector(self, agent: Agent, live: np.ndarray, itemsize: int, run: Any) -> np.ndarray:
        if self.machine.observer is not None and live.size:
            span = Scatter(live, itemsize)
            self.machine.observer.load(agent, span, "threads")
            self.machine.observer.store(agent, span, "threads")
        return run()

    # ------------------------------------------------------------------------------------------------------- ordering
    def create_barrier(self) -> None:
        if self.machine.observer is not None:
            self.machine.observer.barrier(self.scheduler.running())

    def create_inline_asm(self, asm: str, constraints: str, values: list[Handle], *rest: Any) -> _AsmResult:
        if asm not in MEANING or values:
            self.refuse(f"the assembly `{asm}`", "the simulated world knows the fences of tilelink.device only")
        if self.machine.observer is not None:
            self.machine.observer.fence(self.scheduler.running(), MEANING[asm])
        return _AsmResult()

    def create_extern_elementwise(self, lib: str, path: str, symbol: str, *rest: Any) -> NoReturn:
        self.refuse(f"the library function `{symbol}`", "use what triton.language offers")

    # ------------------------------------------------------------------------------------------------------- refusals
    def refuse(self, what: str, hint: str) -> NoReturn:
        raise self.machine.diagnostic("TL503", f"{what} cannot be simulated", hint=hint)

    def _touch(
        self, agent: Agent, live: np.ndarray, itemsize: int, what: str, *, nbytes: int | None = None
    ) -> Region | None:
        """Check every address, and let the access take its time."""
        try:
            region = self.machine.memory.check(live, itemsize, agent.rank)
        except WildAccess as wild:
            raise self.machine.wild_access(agent, wild, itemsize, what) from None
        if region is not None:
            remote = region.home is not None and region.home != agent.rank
            agent.clock += self.machine.costs.access(live.size * itemsize if nbytes is None else nbytes, remote)
        return region


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
