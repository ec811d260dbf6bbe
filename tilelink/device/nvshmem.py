"""The same names over NVSHMEM's device bitcode: any rank, across nodes. NVIDIA only.

Compile with `extern_libs={"libnvshmem_device": <path of libnvshmem_device.bc>}` and initialise each loaded module.
`ctx` is accepted and ignored: NVSHMEM knows the ranks. Pointers cross as int64, as NVSHMEM's C types are opaque here.
"""

from typing import Any

import triton
import triton.language as tl
from triton.language import core

from tilelink.device.peer import (
    CMP_EQ,
    CMP_GE,
    SIGNAL_ADD,
    SIGNAL_SET,
    async_load_fence,
    async_store_quiet,
    local_add,
    local_wait_until,
    ring_bell,
)
from tilelink.device.peer import signal_wait_until as _poll

__all__ = [
    "CMP_EQ",
    "CMP_GE",
    "SIGNAL_ADD",
    "SIGNAL_SET",
    "async_load_fence",
    "async_store_quiet",
    "barrier_all",
    "fence",
    "getmem_nbi_block",
    "local_add",
    "local_wait_until",
    "my_pe",
    "n_pes",
    "ptr",
    "putmem_nbi_block",
    "putmem_signal_nbi_block",
    "quiet",
    "ring_bell",
    "signal_op",
    "signal_wait_until",
]

_LIBRARY = "libnvshmem_device"


def _call(symbol: str, args: list[Any], types: list[Any], result: Any, semantic: Any) -> Any:
    """A call in every thread. C's `void` is declared as int32 and never read: Triton has no call without a result."""
    table = {tuple(types): (symbol, result)}
    typed = [core.cast(a, t, _semantic=semantic) for a, t in zip(args, types, strict=True)]
    return core.extern_elementwise(_LIBRARY, "", typed, table, is_pure=False, _semantic=semantic)


@core.extern
def _my_pe(_semantic: Any = None) -> Any:
    return _call("nvshmem_my_pe", [], [], core.int32, _semantic)


@core.extern
def _n_pes(_semantic: Any = None) -> Any:
    return _call("nvshmem_n_pes", [], [], core.int32, _semantic)


@core.extern
def _ptr(p: Any, pe: Any, _semantic: Any = None) -> Any:
    return _call("nvshmem_ptr", [p, pe], [core.int64, core.int32], core.int64, _semantic)


@core.extern
def _put(dst: Any, src: Any, nbytes: Any, pe: Any, _semantic: Any = None) -> Any:
    types = [core.int64, core.int64, core.int64, core.int32]
    return _call("nvshmemx_putmem_nbi_block", [dst, src, nbytes, pe], types, core.int32, _semantic)


@core.extern
def _get(dst: Any, src: Any, nbytes: Any, pe: Any, _semantic: Any = None) -> Any:
    types = [core.int64, core.int64, core.int64, core.int32]
    return _call("nvshmemx_getmem_nbi_block", [dst, src, nbytes, pe], types, core.int32, _semantic)


@core.extern
def _put_signal(dst: Any, src: Any, nbytes: Any, word: Any, value: Any, op: Any, pe: Any, _semantic: Any = None) -> Any:
    types = [core.int64, core.int64, core.int64, core.int64, core.int64, core.int32, core.int32]
    args = [dst, src, nbytes, word, value, op, pe]
    return _call("nvshmemx_putmem_signal_nbi_block", args, types, core.int32, _semantic)


@core.extern
def _signal(word: Any, value: Any, op: Any, pe: Any, _semantic: Any = None) -> Any:
    types = [core.int64, core.int64, core.int32, core.int32]
    return _call("nvshmemx_signal_op", [word, value, op, pe], types, core.int32, _semantic)


@core.extern
def _wait(word: Any, cmp: Any, value: Any, _semantic: Any = None) -> Any:
    types = [core.int64, core.int32, core.int64]
    return _call("nvshmem_signal_wait_until", [word, cmp, value], types, core.int64, _semantic)


@core.extern
def _fence(_semantic: Any = None) -> Any:
    return _call("nvshmem_fence", [], [], core.int32, _semantic)


@core.extern
def _quiet(_semantic: Any = None) -> Any:
    return _call("nvshmem_quiet", [], [], core.int32, _semantic)


@core.extern
def _barrier_all(_semantic: Any = None) -> Any:
    return _call("nvshmemx_barrier_all_block", [], [], core.int32, _semantic)


@triton.jit
def _thread():
    return tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def my_pe(ctx):
    """This rank."""
    return _my_pe()


@triton.jit
def n_pes(ctx):
    """The number of ranks."""
    return _n_pes()


@triton.jit
def ptr(p, pe, ctx):
    """`p` of this rank as an address on rank `pe`, which must be reachable by loads and stores; else it is 0."""
    return tl.multiple_of(_ptr(p.to(tl.int64), pe).to(p.dtype), 16)


@triton.jit
def putmem_nbi_block(dst, src, count, pe, ctx):
    """Copy `count` elements from `src` (local) to `dst` of rank `pe`. Complete after `quiet`, or at the next signal."""
    # All threads may have written the source, one of them hands it to the network.
    tl.debug_barrier()
    _put(dst.to(tl.int64), src.to(tl.int64), _bytes(dst, count), pe)


@triton.jit
def getmem_nbi_block(dst, src, count, pe, ctx):
    """Copy `count` elements from `src` of rank `pe` to `dst` (local). Complete after `quiet`, or at the next signal."""
    tl.debug_barrier()
    _get(dst.to(tl.int64), src.to(tl.int64), _bytes(dst, count), pe)


@triton.jit
def putmem_signal_nbi_block(dst, src, count, word, value, op: tl.constexpr, pe, ctx):
    """`putmem_nbi_block` and a signal that arrives after this data (not after earlier puts: `signal_op` is for that)."""
    tl.debug_barrier()
    _put_signal(dst.to(tl.int64), src.to(tl.int64), _bytes(dst, count), word.to(tl.int64), value, op, pe)


@triton.jit
def _bytes(p, count):
    itemsize: tl.constexpr = p.dtype.element_ty.primitive_bitwidth // 8
    return tl.cast(count, tl.int64) * itemsize


@triton.jit
def signal_op(word, value, op: tl.constexpr, pe, ctx):
    """Set or add to `word` of rank `pe`, after everything this program has read and written. Works for oneself too."""
    quiet()
    # A scalar call is made by every thread: an addition would count the threads.
    if _thread() == 0:
        _signal(word.to(tl.int64), value, op, pe)


@triton.jit
def signal_wait_until(word, cmp: tl.constexpr, value):
    """Until this rank's `word` compares with `value`; what was signalled with it is then readable."""
    # NVSHMEM's own wait spins in every thread and acquires nothing; here it finds the word ready, and makes what a
    # network card has written visible where the hardware does not.
    _poll(word, cmp, value)
    _wait(word.to(tl.int64), cmp, value)


@triton.jit
def fence():
    """What this program put to a rank before arrives there before what it puts next."""
    _fence()
    tl.debug_barrier()


@triton.jit
def quiet():
    """What this program put or got is complete."""
    _quiet()
    tl.debug_barrier()


@triton.jit
def barrier_all(words, epoch, ctx):
    """All ranks have come here. One program per rank calls it; `words` and `epoch` are NVSHMEM's affair."""
    _barrier_all()
