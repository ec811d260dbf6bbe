"""The same names over NVSHMEM's device bitcode: any rank, across nodes. NVIDIA only.

Compile with `extern_libs={"libnvshmem_device": <path of libnvshmem_device.bc>}` and initialise each loaded module.
`ctx` is that of `peer`, whose last n_pes entries are the numbers by which NVSHMEM knows the ranks of a group. Pointers
cross as int64, as NVSHMEM's C types are opaque here.
"""

from typing import Any

import triton
import triton.language as tl
from triton.language import core

from tilelink.device.fences import block_barrier
from tilelink.device.peer import *  # noqa: F403 - the names are one set: what follows replaces those that reach other ranks
from tilelink.device.peer import CMP_GE, SIGNAL_ADD, SIGNAL_SET, my_pe, n_pes
from tilelink.device.peer import signal_wait_each as _poll_each
from tilelink.device.peer import signal_wait_until as _poll
from tilelink.device.watch import SYSTEM
from tilelink.device.watch import wait_at_least as _poll_within

_LIBRARY = "libnvshmem_device"

CALLS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "nvshmem_ptr": ((core.int64, core.int32), core.int64),
    "nvshmemx_putmem_nbi_block": ((core.int64, core.int64, core.int64, core.int32), core.int32),
    "nvshmemx_getmem_nbi_block": ((core.int64, core.int64, core.int64, core.int32), core.int32),
    "nvshmemx_putmem_signal_nbi_block": (
        (core.int64, core.int64, core.int64, core.int64, core.int64, core.int32, core.int32),
        core.int32,
    ),
    "nvshmemx_signal_op": ((core.int64, core.int64, core.int32, core.int32), core.int32),
    "nvshmem_signal_wait_until": ((core.int64, core.int32, core.int64), core.int64),
    "nvshmem_fence": ((), core.int32),
    "nvshmem_quiet": ((), core.int32),
}
"""What kernels call: types of arguments and result. C's `void` is declared as int32 and never read: Triton has no call
without a result."""


def _extern(symbol: str) -> Any:
    """A call in every thread."""
    types, result = CALLS[symbol]

    @core.extern
    def call(*args: Any, _semantic: Any = None) -> Any:
        typed = [core.cast(a, t, _semantic=_semantic) for a, t in zip(args, types, strict=True)]
        named = {types: (symbol, result)}
        return core.extern_elementwise(_LIBRARY, "", typed, named, is_pure=False, _semantic=_semantic)

    return call


_ptr = _extern("nvshmem_ptr")
_put = _extern("nvshmemx_putmem_nbi_block")
_get = _extern("nvshmemx_getmem_nbi_block")
_put_signal = _extern("nvshmemx_putmem_signal_nbi_block")
_signal = _extern("nvshmemx_signal_op")
_wait = _extern("nvshmem_signal_wait_until")
_fence = _extern("nvshmem_fence")
_quiet = _extern("nvshmem_quiet")


@triton.jit
def _thread():
    return tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _number(pe, ctx):
    """NVSHMEM's number of rank `pe` of the group that `ctx` belongs to."""
    return tl.load(ctx + 2 + n_pes(ctx) + pe).to(tl.int32)


@triton.jit
def ptr(p, pe, ctx):
    """`p` of this rank as an address on rank `pe`, which must be reachable by loads and stores; else it is 0."""
    return tl.multiple_of(_ptr(p.to(tl.int64), _number(pe, ctx)).to(p.dtype), 16)


@triton.jit
def putmem_nbi_block(dst, src, count, pe, ctx):
    """Copy `count` elements from `src` (local) to `dst` of rank `pe`. Complete after `quiet`, or at the next signal."""
    # All threads may have written the source, one of them hands it to the network.
    block_barrier()
    _put(dst.to(tl.int64), src.to(tl.int64), _bytes(dst, count), _number(pe, ctx))


@triton.jit
def getmem_nbi_block(dst, src, count, pe, ctx):
    """Copy `count` elements from `src` of rank `pe` to `dst` (local). Complete after `quiet`, or at the next signal."""
    block_barrier()
    _get(dst.to(tl.int64), src.to(tl.int64), _bytes(dst, count), _number(pe, ctx))


@triton.jit
def putmem_signal_nbi_block(dst, src, count, flag, value, op: tl.constexpr, pe, ctx):
    """`putmem_nbi_block` and a signal that arrives after this data (not after earlier puts: `signal_op` is for that)."""
    block_barrier()
    number = _number(pe, ctx)
    _put_signal(dst.to(tl.int64), src.to(tl.int64), _bytes(dst, count), flag.to(tl.int64), value, op, number)


@triton.jit
def _bytes(p, count):
    itemsize: tl.constexpr = p.dtype.element_ty.primitive_bitwidth // 8
    return tl.cast(count, tl.int64) * itemsize


@triton.jit
def signal_op(flag, value, op: tl.constexpr, pe, ctx):
    """Set or add to `flag` of rank `pe`, after everything this program has read and written. Works for oneself too."""
    quiet()
    number = _number(pe, ctx)
    # A scalar call is made by every thread: an addition would count the threads.
    if _thread() == 0:
        _signal(flag.to(tl.int64), value, op, number)


@triton.jit
def signal_all(flag, value, op: tl.constexpr, ranks: tl.constexpr, ctx, further=None):
    """`signal_op` for `flag` of each of the `ranks` ranks, oneself included; and for a `further` flag of each."""
    quiet()
    for pe in range(ranks):
        number = _number(pe, ctx)
        if _thread() == 0:
            _signal(flag.to(tl.int64), value, op, number)
            if further is not None:
                _signal(further.to(tl.int64), value, op, number)


@triton.jit
def symm_at(p, pe, ctx):
    """`ptr`, by the name that programs with raw pointers know; null where the rank is reached over a network only."""
    return _ptr(p.to(tl.int64), _number(pe, ctx)).to(p.dtype, bitcast=True)


@triton.jit
def notify(p, pe, signal, op: tl.constexpr, ctx):
    """Set or add to an int64 of rank `pe`, after everything this program has read and written."""
    tl.static_assert(p.dtype.element_ty == tl.int64, "NVSHMEM signals int64")
    if op == "add":
        signal_op(p, signal, SIGNAL_ADD, pe, ctx)
    else:
        signal_op(p, signal, SIGNAL_SET, pe, ctx)


@triton.jit
def signal_wait_until(flag, cmp: tl.constexpr, value):
    """Until this rank's `flag` compares with `value`; what was signalled with it is then readable."""
    # NVSHMEM's own wait spins in every thread and acquires nothing; here it finds the flag ready, and makes what a
    # network card has written visible where the hardware does not.
    _poll(flag, cmp, value)
    _wait(flag.to(tl.int64), cmp, value)


@triton.jit
def signal_wait_each(flags, cmp: tl.constexpr, values, inside):
    """`signal_wait_until` for each flag of a block, as far as `inside` says."""
    _poll_each(flags, cmp, values, inside)
    at = flags.to(tl.int64)
    some = tl.max(tl.where(inside, at, 0), 0)
    _wait(tl.where(inside, at, some), cmp, tl.where(inside, values, 0))


@triton.jit
def signal_wait_within(flag, cmp: tl.constexpr, value, watch, site, tile, index):
    """`signal_wait_until` that ends in any case; see `tilelink.device.watch`."""
    tl.static_assert(cmp == CMP_GE, "a wait with a limit knows CMP_GE")
    # NVSHMEM's own wait would spin for ever on a flag that has not come.
    if _poll_within(flag, tl.cast(value, tl.int64), SYSTEM, watch, site, tile, index):
        _wait(flag.to(tl.int64), cmp, value)


@triton.jit
def fence():
    """What this program put to a rank before arrives there before what it puts next."""
    _fence()
    block_barrier()


@triton.jit
def quiet():
    """What this program put or got is complete."""
    _quiet()
    block_barrier()


@triton.jit
def barrier_all(flags, epoch, ctx):
    """All ranks have come here `epoch` times. One program per rank calls it; `flags`: n_pes flags, used for this only."""
    me = my_pe(ctx)
    for pe in range(n_pes(ctx)):
        signal_op(flags + me, epoch, SIGNAL_SET, pe, ctx)
    for pe in range(n_pes(ctx)):
        signal_wait_until(flags + pe, CMP_GE, epoch)
