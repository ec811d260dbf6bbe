"""Triton's builder of the interpreter on the machine's memory, and with arithmetic that is right where the stock one's is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock

from tilelink.device.clocks import READS
from tilelink.device.fences import MEANING
from tilelink.runtime.memory import WORD
from tilelink.runtime.simulated.agents import OF_CALL, Agent, Atomic, Block, Region, Scatter, Span
from tilelink.runtime.simulated.machine import Machine

# ---------------------------------------------------------------------------------------------------------------------
# Floating point types that numpy has not: bfloat16 and the 8-bit ones, kept as bits between operations.
#
# Triton's own interpreter multiplies the bits, truncates, and loses carries; here every conversion is torch's.

NARROW = {
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
"""Triton's name of a type whose values are kept as bits -> torch's type."""


_own = partial(np.require, requirements=["C", "W"])
"""Values, contiguous and writable: torch warns about views it may not write to."""


def widen(bits: np.ndarray, name: str) -> np.ndarray:
    """Values of Triton type `name` in a type that numpy computes with: bits become float32, the rest stays."""
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name not in NARROW:
        return bits
    return torch.from_numpy(_own(bits)).view(NARROW[name]).float().numpy()


def narrow(values: np.ndarray, name: str) -> np.ndarray:
    """Round to nearest even, and return the bits. 8-bit types saturate, as NVIDIA's conversions do."""
    ty = NARROW[name]
    wide = torch.from_numpy(_own(values.astype(np.float32, copy=False)))
    if name == "bf16":
        return wide.to(ty).view(torch.int16).numpy().view(np.uint16)
    top = torch.finfo(ty).max
    return wide.clamp(-top, top).to(ty).view(torch.uint8).numpy()


# ---------------------------------------------------------------------------------------------------------------------
# The builder.

Handle = stock.TensorHandle
T = TypeVar("T")
_ACQUIRES = (ir.MEM_SEMANTIC.ACQUIRE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
_RELEASES = (ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)


class Builder(stock.InterpreterBuilder):
    """Accesses are checked, counted, and points where others may run; everything between two switches is atomic, since one
    coroutine runs at a time.

    Cache and eviction policies are one argument in Triton 3.9 and two before: they are taken as `*policy`. Of loads and stores
    without a mask the stock builder makes such with one.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        # Overflow checks cost seven times the addition they check; `debug` is what makes assertions count.
        self.options = stock.InterpreterOptions(debug=True, sanitize_overflow=False)
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
    def create_masked_load(self, ptr: Handle, mask: Handle, other: Handle | None, *policy: Any) -> Handle:
        agent, dtype, span, region = self._reach(ptr, mask, "reads")
        volatile = policy[-1]
        if volatile and span is not None and region is not None and span.bounds[1] <= region.end:
            self.machine.poll(agent, span, region)
        else:
            self._interrupt(agent, ptr.data)
        if span is not None and region is not None:
            self._charge(agent, span, region)
            self.machine.stores.settle(agent, *span.bounds)
            if not (volatile and agent.target is not None and agent.target.comparison == OF_CALL):
                self.machine.observer.access(agent, span, "threads", "load")
        ty = ptr.get_element_ty()
        if isinstance(span, Block) and region is not None and span.shape == ptr.data.shape:
            return Handle(_view(span, region, dtype).copy(), ty)
        filled = np.zeros(ptr.data.shape, dtype) if other is None else other.data
        return Handle(native.load(ptr.data, mask.data, filled, dtype), ty)

    def create_masked_store(self, ptr: Handle, value: Handle, mask: Handle, *policy: Any) -> None:
        agent, dtype, span, region = self._reach(ptr, mask, "writes")
        self._interrupt(agent, ptr.data)
        if region is None or span is None:
            return
        self._charge(agent, span, region)
        words = bool(region.peers) and dtype.itemsize == WORD
        if words:
            # Each flag says itself that it has come: a signal like any other.
            self.scheduler.switch()

        def write() -> None:
            if isinstance(span, Block) and ptr.data.size == 1 and span.itemsize >= 4:
                with self.machine.writing(agent, *span.bounds, span.itemsize):
                    _view(span, region, dtype)[...] = value.data.reshape(-1)[:1].reshape(span.shape)
            elif isinstance(span, Block) and span.shape == ptr.data.shape and 0 not in span.strides:
                _view(span, region, dtype)[...] = value.data
            else:
                native.store(ptr.data, value.data, mask.data)
            if words:
                self.machine.stored(agent, span, region)

        self.machine.observer.access(agent, span, "threads", "store")
        self.machine.stores.put(agent, span, "threads", write)

    def _reach(self, ptr: Handle, mask: Handle | None, what: str) -> tuple[Agent, np.dtype, Span | None, Region | None]:
        """Who accesses elements of which type, where, in which memory. A rectangle over several regions is taken as the list of
        its addresses."""
        agent, dtype = self.scheduler.running(), stock._get_np_dtype(ptr.get_element_ty())
        span = span_of(ptr.data, None if mask is None else mask.data, dtype.itemsize)
        if span is None:
            return agent, dtype, None, None
        if isinstance(span, Block) and self.machine.memory.find(*span.bounds, agent.rank) is None:
            span = Scatter(span.addresses, span.itemsize)
        return agent, dtype, span, self.machine.reach(agent, span, what)

    def _charge(self, agent: Agent, span: Span, region: Region) -> None:
        agent.clock += self.machine.costs.accessed(span.nbytes, region.home not in (None, agent.rank))

    def _interrupt(self, agent: Agent, addresses: np.ndarray) -> None:
        self.machine.moved(agent)
        if addresses.size > 1:
            self.scheduler.maybe_switch()

    # ------------------------------------------------------------------------------------------------- descriptors
    def create_descriptor_load(self, desc: Any, indices: list[Handle], *policy: Any) -> Handle:
        agent, ty = self.scheduler.running(), desc.base.dtype.element_ty
        nan = {"bf16": 0x7FC0, "fp8e4nv": 0x7F, "fp8e5": 0x7E}.get(ty.name, float("nan"))
        pad = 0 if desc.padding == ir.PADDING_OPTION.PAD_ZERO else nan
        shape, dtype = tuple(desc.block_shape), stock._get_np_dtype(ty)
        found = self._tile(agent, desc, indices, "reads")
        data = np.empty(shape, dtype) if found is not None and found[0].shape == shape else np.full(shape, pad, dtype)
        if found is not None:
            block, view, inner = found
            self.machine.observer.access(agent, block, "bulk", "load")
            self.machine.stores.settle(agent, *block.bounds)
            data[inner] = view
        if getattr(desc, "round_f32_to_tf32", False):
            data = stock._round_f32_to_tf32(data)
        return Handle(data, ty)

    def create_descriptor_store(self, desc: Any, value: Handle, indices: list[Handle]) -> None:
        agent = self.scheduler.running()
        found = self._tile(agent, desc, indices, "writes")
        if found is not None:
            block, view, inner = found
            self.machine.observer.access(agent, block, "bulk", "store")
            data = value.data.reshape(tuple(desc.block_shape))[inner]
            self.machine.stores.put(agent, block, "bulk", lambda: np.copyto(view, data))

    def _tile(
        self, agent: Agent, desc: Any, indices: list[Handle], what: str
    ) -> tuple[Block, np.ndarray, tuple[slice, ...]] | None:
        """The part of the block inside the tensor, a view of its memory, and where in the block it lies; None, it is empty."""
        self.machine.moved(agent)
        self.scheduler.maybe_switch()
        dtype = stock._get_np_dtype(desc.base.dtype.element_ty)
        offsets = [int(i.data.item()) for i in indices]
        assert offsets[-1] * dtype.itemsize % 16 == 0, "block offset start must be 16-byte aligned"
        strides = tuple(int(s.data.item()) * dtype.itemsize for s in desc.strides)
        limits = [int(s.data.item()) for s in desc.shape]
        low = [max(o, 0) for o in offsets]
        high = [min(o + b, n) for o, b, n in zip(offsets, desc.block_shape, limits, strict=True)]
        shape = tuple(h - at for h, at in zip(high, low, strict=True))
        if min(shape) <= 0:
            return None
        first = int(desc.base.data.item()) + sum(at * s for at, s in zip(low, strides, strict=True))
        block = Block(first, shape, strides, dtype.itemsize)
        region = self.machine.reach(agent, block, what)
        self._charge(agent, block, region)
        inner = tuple(slice(at - o, h - o) for at, h, o in zip(low, high, offsets, strict=True))
        return block, _view(block, region, dtype), inner

    # ------------------------------------------------------------------------------------------------------ atomics
    # Where agents meet, and give way to one another. A loop over `atomic_add(flag, 0)` is a poll: an agent that would see the
    # same value a second time sleeps.

    def create_atomic_rmw(self, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        if ptr.data.size > 1 and sem in _RELEASES:
            # Signals of several lanes: each is seen, or not yet, by itself.
            old, live = np.zeros_like(val.data), Handle(np.ones(1, dtype=bool), tl.int1)
            for lane in np.argwhere(mask.data):
                at = tuple(lane)
                one, value = (Handle(h.data[at].reshape(1), h.dtype.scalar) for h in (ptr, val))
                old[at] = self.create_atomic_rmw(op, one, value, live, sem, scope).data.item()
            return Handle(old, val.dtype.scalar)

        poll = op == ir.ATOMIC_OP.ADD and val.data.size == 1 and not val.data.item()
        run = partial(super().create_atomic_rmw, op, ptr, val, mask, sem, scope)
        return self._atomic(ptr, mask, sem, scope, run, writes=not poll)

    def create_atomic_cas(self, ptr: Handle, cmp: Handle, val: Handle, sem: Any, scope: Any) -> Handle:
        run = partial(super().create_atomic_cas, ptr, cmp, val, sem, scope)
        return self._atomic(ptr, None, sem, scope, run, writes=True)

    def create_atomic_load(self, ptr: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        ty = ptr.get_element_ty()
        dtype = stock._get_np_dtype(ty)
        run = partial(native.load, ptr.data, mask.data, np.zeros(ptr.data.shape, dtype), dtype)
        return Handle(self._atomic(ptr, mask, sem, scope, run, writes=False), ty)

    def create_atomic_store(self, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> None:
        run = partial(native.store, ptr.data, val.data, mask.data)
        self._atomic(ptr, mask, sem, scope, run, writes=True)

    def create_atomic_poll(self, ptr: Handle, expected: Handle, timeout_ns: Any, sem: Any, scope: Any) -> Handle:
        if ptr.data.size != 1 or timeout_ns is not None:
            raise self.machine.refusal("tl.atomic_poll of several flags, or with a time limit", "poll one flag")
        mask = Handle(np.ones(ptr.data.shape, dtype=bool), tl.int1)
        while self.create_atomic_load(ptr, mask, sem, scope).data.item() != expected.data.item():
            pass
        return mask

    def _atomic(
        self, ptr: Handle, mask: Handle | None, sem: Any, scope: Any, run: Callable[[], T], *, writes: bool
    ) -> T:
        """What `run` gives. `writes`: it may change what it reads, and is no poll."""
        machine = self.machine
        if ptr.get_element_ty() == tl.bfloat16:
            raise machine.refusal("an atomic on bfloat16", "accumulate in float32")
        agent, dtype, span, region = self._reach(ptr, mask, "changes")
        if span is not None:
            machine.stores.settle(agent, *span.bounds)
        if writes:
            machine.moved(agent)
            self.scheduler.switch()
        if span is None or region is None:
            return run()
        size = dtype.itemsize
        if span.nbytes > size:
            # A block of atomics: to the machine no signals, only accesses.
            machine.observer.access(agent, span, "atomics", "store")
            return run()
        address, acquires, releases = span.bounds[0], sem in _ACQUIRES, sem in _RELEASES
        if not writes:
            machine.poll(agent, span, region)
        elif releases:
            machine.stores.release(agent)
        before = region.word(address, size)
        result = run()
        after, wide = region.word(address, size), "system" if scope == ir.MEM_SYNC_SCOPE.SYSTEM else "device"
        if writes:
            agent.clock += machine.costs.signal
        atomic = Atomic(address, size, before, after, acquires, releases, wide, writes)
        machine.observer.atomic(agent, atomic)
        if writes:
            machine.signalled(agent, region, atomic)
        return result

    # -------------------------------------------------------------------------------------------------------- ordering
    def create_barrier(self) -> None:
        self._fence("barrier")

    def create_inline_asm(self, asm: str, constraints: str, values: list[Handle], *rest: Any) -> SimpleNamespace:
        agent = self.scheduler.running()
        if READS.get(asm) == "clock":
            return _operation(round(agent.clock * 1000) + self.machine.passed, tl.int64)
        if READS.get(asm) == "multiprocessor":
            return _operation(agent.worker or 0)
        if asm not in MEANING or values:
            raise self.machine.refusal(f"the assembly `{asm}`", "use the fences of tilelink.device")
        self._fence(MEANING[asm])
        return _operation()

    def _fence(self, meaning: str) -> None:
        self.machine.stores.fence(self.scheduler.running(), meaning)
        self.machine.observer.fence(self.scheduler.running(), meaning)

    def create_assert(self, condition: Handle, message: str, *rest: Any) -> None:
        if not condition.data.all():
            raise self.machine.diagnostic(
                "TL506",
                f"tl.device_assert failed: {message}",
                why="it has to hold for every lane of a block, also for those past an edge, which loads fill with 0",
                hint="look at the values; of lanes past an edge say `True`: tl.where(tl.tile_range(…) < tl.tile_end(…), …, True)",
            )

    def create_print(self, prefix: str, hex: bool, values: list[Handle], *rest: Any) -> None:
        """On a GPU every thread prints its elements; here a worker prints a block at once."""
        shown = list[Any]()
        for data in map(_wide, values):
            if data.size > 1:
                shown.append(np.array2string(data, formatter={"all": _hexadecimal} if hex else None))
            else:
                shown.append(_hexadecimal(data.item()) if hex else data.item())
        for text in shown or [""]:
            print(f"{self.scheduler.running()}{prefix}{text}")

    def create_assume(self, condition: Handle) -> None:
        if not condition.data.all():
            raise self.machine.diagnostic("TL505", "tl.assume is told what is not so", hint="leave the hint out")

    def create_extern_elementwise(self, library: str, path: str, symbol: str, *rest: Any) -> NoReturn:
        raise self.machine.refusal(f"the library function `{symbol}`", "use what triton.language offers")

    # --------------------------------------------------------------------------------------------------- arithmetic
    def get_bf16(self, value: float) -> Handle:
        return Handle(narrow(np.array([value]), "bf16"), tl.bfloat16)

    def cast_impl(self, src: Handle, dst_type: Any) -> Handle:
        old: Any = src.dtype.scalar
        new = dst_type.scalar
        if old == new:
            # What a comparison gives is bool, and has the type of its operands.
            return Handle(src.data.astype(stock._get_np_dtype(new), copy=False), new)
        wide = widen(src.data, old.name)
        if new.name in NARROW:
            return Handle(narrow(wide, new.name), new)
        return Handle(wide.astype(stock._get_np_dtype(new)), new)

    def create_fp_to_fp(self, src: Handle, dst_type: Any, rounding: Any) -> Handle:
        if rounding == ir.ROUNDING_MODE.RTZ:
            if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
                kinds = f"{src.dtype.scalar} to {dst_type.scalar}"
                raise self.machine.refusal(f"rounding {kinds} towards zero", "round to nearest even")
            return Handle((_own(src.data).view(np.uint32) >> np.uint32(16)).astype(np.uint16), tl.bfloat16)
        return self.cast_impl(src, dst_type)

    def unary_op(self, arg: Handle, op: Any) -> Handle:
        return self._elementwise(super().unary_op, op, arg)

    def binary_op(self, lhs: Handle, rhs: Handle, op: Any) -> Handle:
        if lhs.data.dtype == rhs.data.dtype == np.bool_:
            # A truth value is one bit, and sums go round; the interpreter of Triton 3.6 adds as numpy does (its issue 10919).
            bits = op(lhs.data.astype(np.int8), rhs.data.astype(np.int8)) & 1
            return Handle(bits.astype(np.bool_), lhs.dtype.scalar)
        return self._elementwise(super().binary_op, op, lhs, rhs)

    def ternary_op(self, lhs: Handle, rhs: Handle, other: Handle, op: Any) -> Handle:
        return self._elementwise(super().ternary_op, op, lhs, rhs, other)

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        stock_fma = super().create_fma
        return self._elementwise(lambda a, b, c, _: stock_fma(a, b, c), lambda a, b, c: a * b + c, x, y, z)

    def _elementwise(self, stock_way: Callable[..., Handle], op: Any, *values: Handle) -> Handle:
        """`op` of all elements; in float32 where their type is one that numpy has not."""
        ty: Any = values[-1].dtype.scalar
        if op is np.where or ty.name not in NARROW:
            return stock_way(*values, op)
        made = op(*map(_wide, values))
        return Handle(made, tl.int1) if made.dtype == np.bool_ else Handle(narrow(made, ty.name), ty)

    def create_erf(self, arg: Handle) -> Handle:
        return Handle(torch.erf(torch.from_numpy(_own(arg.data))).numpy(), arg.dtype.scalar)

    def create_dot(self, a: Handle, b: Handle, d: Handle, *precision: Any) -> Handle:
        agent = self.scheduler.running()
        agent.clock += self.machine.costs.per_depth(1, d.data.size) * a.data.shape[-1]
        ty: Any = d.dtype.scalar
        left, right, wide = map(_wide, (a, b, d))
        exact = np.dtype(np.float32) if wide.dtype == np.float16 else wide.dtype
        # Products of integers are exact: they go through float64's BLAS.
        through = np.float32 if exact == np.float32 else np.float64
        product = np.matmul(left.astype(through, copy=False), right.astype(through, copy=False))
        result = product.astype(exact, copy=False) + wide
        if ty.name in NARROW:
            return Handle(narrow(result, ty.name), ty)
        return Handle(result.astype(d.data.dtype, copy=False), ty)


def _wide(value: Handle) -> np.ndarray:
    ty: Any = value.dtype.scalar
    return widen(value.data, ty.name)


def _operation(value: int = 0, dtype: Any = tl.int32) -> SimpleNamespace:
    """What the language takes for the operation that `create_inline_asm` makes."""
    result = Handle(np.full(1, value, dtype=stock._get_np_dtype(dtype)), dtype)
    return SimpleNamespace(get_result=lambda index: result)


def _hexadecimal(value: Any) -> str:
    return float(value).hex() if isinstance(value, (float, np.floating)) else f"{int(value):#x}"


def _view(block: Block, region: Region, dtype: np.dtype) -> np.ndarray:
    return np.ndarray(block.shape, dtype, region.data, block.address - region.start, block.strides)


def span_of(addresses: np.ndarray, mask: np.ndarray | None, itemsize: int) -> Span | None:
    """A rectangle if the addresses are one (all of them verified), else the list of them; None if all are masked."""
    if mask is not None and not mask.all():
        mask = np.broadcast_to(mask, addresses.shape)
        inside = _rectangle(mask)
        if inside is None:
            live = addresses[mask]
            return Scatter(live.view(np.int64), itemsize) if live.size else None
        addresses = addresses[inside]
    if addresses.size == 1:
        return Block(int(addresses.item()), addresses.shape, (0,) * addresses.ndim, itemsize)
    every = addresses.reshape(-1).view(np.int64)
    strides = tuple(_step(addresses, axis) for axis in range(addresses.ndim))
    block = Block(int(every[0]), addresses.shape, strides, itemsize)
    return block if np.array_equal(block.addresses, every) else Scatter(every, itemsize)


def _rectangle(mask: np.ndarray) -> tuple[slice, ...] | None:
    """Where a mask is true, if that is one rectangle: a tile at the edge of its tensor."""
    if not mask.any():
        return None
    alive = (
        np.flatnonzero(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis))) for axis in range(mask.ndim)
    )
    inside = tuple(slice(int(live[0]), int(live[-1]) + 1) for live in alive)
    return inside if mask[inside].all() else None


def _step(addresses: np.ndarray, axis: int) -> int:
    """From the first element to the second along an axis."""
    if addresses.shape[axis] == 1:
        return 0
    second = tuple(1 if a == axis else 0 for a in range(addresses.ndim))
    return int(addresses[second]) - int(addresses.flat[0])
