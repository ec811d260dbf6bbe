"""The interpreter's atomics, barriers and fences: where agents meet, and give way to one another.

A loop over `atomic_add(word, 0)` is a poll: an agent that would see the same value a second time sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock

from tilelink.device.clocks import READS
from tilelink.device.fences import MEANING
from tilelink.runtime.simulated.agents import Agent
from tilelink.runtime.simulated.machine import Machine
from tilelink.runtime.simulated.memory import Region
from tilelink.runtime.simulated.observing import Atomic, Scatter

Handle = stock.TensorHandle
Run = Callable[[], np.ndarray]


@dataclass(frozen=True, slots=True)
class _Order:
    """The memory order of an atomic, in an observer's words."""

    acquire: bool
    release: bool
    scope: Literal["system", "device"]

    @staticmethod
    def of(sem: Any, scope: Any) -> _Order:
        both = sem == ir.MEM_SEMANTIC.ACQUIRE_RELEASE
        name = "system" if scope == ir.MEM_SYNC_SCOPE.SYSTEM else "device"
        return _Order(both or sem == ir.MEM_SEMANTIC.ACQUIRE, both or sem == ir.MEM_SEMANTIC.RELEASE, name)


class _AsmResult:
    """What the language takes for the operation that `create_inline_asm` makes."""

    def __init__(self, value: int = 0, dtype: Any = tl.int32) -> None:
        self._value, self._dtype = value, dtype

    def get_result(self, index: int) -> Handle:
        wide = np.int64 if self._dtype == tl.int64 else np.int32
        return Handle(np.full(1, self._value, dtype=wide), self._dtype)


class Atomics:
    """Builder methods. What runs between two switches is atomic: one coroutine runs at a time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.scheduler = machine.scheduler

    def create_atomic_rmw(self, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        if ptr.data.size > 1 and _Order.of(sem, scope).release:
            return self._one_by_one(op, ptr, val, mask, sem, scope)

        def run() -> np.ndarray:
            kind = stock.InterpreterBuilder.ir_rmw_op_to_interpreter_rmw_op[op]
            return native.atomic_rmw(kind, ptr.data, val.data, mask.data, _native(sem))

        poll = op == ir.ATOMIC_OP.ADD and val.data.size == 1 and not val.data.item()
        made = (self._poll if poll else self._change)(ptr, mask.data, _Order.of(sem, scope), run)
        return Handle(made, val.dtype.scalar)

    def _one_by_one(self, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        """Signals of several lanes: each is seen, or not yet, by itself."""
        old = np.zeros_like(val.data)
        for lane in np.argwhere(mask.data):
            at = tuple(lane)
            one, value = (Handle(h.data[at].reshape(1), h.dtype.scalar) for h in (ptr, val))
            live = Handle(np.ones(1, dtype=bool), tl.int1)
            old[at] = self.create_atomic_rmw(op, one, value, live, sem, scope).data.item()
        return Handle(old, val.dtype.scalar)

    def create_atomic_cas(self, ptr: Handle, cmp: Handle, val: Handle, sem: Any, scope: Any) -> Handle:
        def run() -> np.ndarray:
            return native.atomic_cas(ptr.data, cmp.data, val.data, _native(sem))

        return Handle(self._change(ptr, None, _Order.of(sem, scope), run), cmp.dtype.scalar)

    def create_atomic_load(self, ptr: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        ty = ptr.get_element_ty()
        dtype = stock._get_np_dtype(ty)

        def run() -> np.ndarray:
            return native.load(ptr.data, mask.data, np.zeros(ptr.data.shape, dtype), dtype)

        return Handle(self._poll(ptr, mask.data, _Order.of(sem, scope), run), ty)

    def create_atomic_store(self, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> None:
        def run() -> np.ndarray:
            native.store(ptr.data, val.data, mask.data)
            return val.data

        self._change(ptr, mask.data, _Order.of(sem, scope), run)

    def create_atomic_poll(self, ptr: Handle, expected: Handle, timeout_ns: Any, sem: Any, scope: Any) -> Handle:
        if ptr.data.size != 1 or timeout_ns is not None:
            raise self.machine.refusal("tl.atomic_poll of several words, or with a time limit", "poll one word")
        mask = Handle(np.ones(ptr.data.shape, dtype=bool), tl.int1)
        while self.create_atomic_load(ptr, mask, sem, scope).data.item() != expected.data.item():
            pass
        return mask

    # --------------------------------------------------------------------------------------------------- what they do
    def _poll(self, ptr: Handle, mask: np.ndarray | None, order: _Order, run: Run) -> np.ndarray:
        """An atomic that changes nothing."""
        machine = self.machine
        agent, live, size, region = self._touch(ptr, mask)
        if region is None or live.size != 1:
            return self._several(agent, live, size, run)
        address = int(live.item())
        machine.poll(address, region, size)
        value = region.word(address, size)
        self._observe(agent, address, size, value, value, order, writes=False)
        return run()

    def _change(self, ptr: Handle, mask: np.ndarray | None, order: _Order, run: Run) -> np.ndarray:
        machine = self.machine
        agent, live, size, region = self._touch(ptr, mask)
        machine.moved(agent)
        self.scheduler.switch()
        if region is None or live.size != 1:
            return self._several(agent, live, size, run)
        address = int(live.item())
        if order.release and machine.stores is not None:
            machine.stores.release(agent)
        before = region.word(address, size)
        result = run()
        agent.clock += machine.costs.signal
        self._observe(agent, address, size, before, region.word(address, size), order, writes=True)
        machine.written(address, region, before, size, joins=order.acquire, signal=True)
        return result

    def _several(self, agent: Agent, live: np.ndarray, size: int, run: Run) -> np.ndarray:
        """A block of atomics: to the machine no signals, only accesses."""
        observer = self.machine.observer
        if observer is not None and live.size:
            observer.store(agent, Scatter(live.reshape(-1), size), "atomics")
        return run()

    def _touch(self, ptr: Handle, mask: np.ndarray | None) -> tuple[Agent, np.ndarray, int, Region | None]:
        ty = ptr.get_element_ty()
        if ty == tl.bfloat16:
            raise self.machine.refusal("an atomic on bfloat16", "accumulate in float32")
        size = stock._get_np_dtype(ty).itemsize
        live = ptr.data if mask is None else ptr.data[np.broadcast_to(mask, ptr.data.shape)]
        agent = self.scheduler.running()
        region = self.machine.reach_all(agent, Scatter(live.reshape(-1), size), "changes") if live.size else None
        if self.machine.stores is not None and live.size:
            self.machine.stores.settle(agent, int(live.min()), int(live.max()) + size)
        return agent, live, size, region

    def _observe(
        self, agent: Agent, address: int, size: int, before: int, after: int, order: _Order, *, writes: bool
    ) -> None:
        if self.machine.observer is not None:
            made = Atomic(address, size, before, after, order.acquire, order.release, order.scope, writes)
            self.machine.observer.atomic(agent, made)

    # -------------------------------------------------------------------------------------------------------- ordering
    def create_barrier(self) -> None:
        if self.machine.stores is not None:
            self.machine.stores.barrier(self.scheduler.running())
        if self.machine.observer is not None:
            self.machine.observer.barrier(self.scheduler.running())

    def create_inline_asm(self, asm: str, constraints: str, values: list[Handle], *rest: Any) -> _AsmResult:
        if READS.get(asm) == "clock":
            return _AsmResult(round(self.scheduler.running().clock * 1000) + self.machine.passed, tl.int64)
        if READS.get(asm) == "multiprocessor":
            return _AsmResult(self.scheduler.running().worker or 0)
        if asm not in MEANING or values:
            raise self.machine.refusal(f"the assembly `{asm}`", "use the fences of tilelink.device")
        if self.machine.stores is not None:
            self.machine.stores.fence(self.scheduler.running(), MEANING[asm])
        if self.machine.observer is not None:
            self.machine.observer.fence(self.scheduler.running(), MEANING[asm])
        return _AsmResult()

    def create_assert(self, condition: Handle, message: str, *rest: Any) -> None:
        if not condition.data.all():
            raise self.machine.diagnostic("TL506", f"tl.device_assert failed: {message}")

    def create_assume(self, condition: Handle) -> None:
        if not condition.data.all():
            raise self.machine.diagnostic("TL505", "tl.assume is told what is not so", hint="leave the hint out")

    def create_extern_elementwise(self, library: str, path: str, symbol: str, *rest: Any) -> NoReturn:
        raise self.machine.refusal(f"the library function `{symbol}`", "use what triton.language offers")


def _native(sem: Any) -> Any:
    return stock.InterpreterBuilder.ir_sem_to_interpreter_sem[sem]
