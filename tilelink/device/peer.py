"""SHMEM on ranks that reach one another by loads and stores (NVLink, PCIe P2P, HIP IPC), in pure Triton.

The same functions run in the simulated backend, on CPU addresses. Conventions:

`ctx` points to int64 `[my_pe, n_pes, base 0, base 1, ...]`: where the arena starts on each rank, as seen from here; what
follows is for `nvshmem`. Ranks are those of the group that the arena belongs to.
Symmetric pointers are this rank's own; a function translates them to rank `pe`. A flag is a pointer to int64.
`..._block` means that all threads of the program take part: call it uniformly.
"""

import triton
import triton.language as tl

from tilelink.device.clocks import clock as clock
from tilelink.device.clocks import multiprocessor as multiprocessor
from tilelink.device.fences import block_barrier, bulk_store_wait, proxy_fence, system_fence, warps
from tilelink.device.ll import ll_load as ll_load
from tilelink.device.ll import ll_load_block as ll_load_block
from tilelink.device.ll import ll_pack as ll_pack
from tilelink.device.ll import ll_store_block as ll_store_block
from tilelink.device.raw import consume_token as consume_token
from tilelink.device.raw import wait as wait
from tilelink.device.watch import check as check
from tilelink.device.watch import check_below as check_below
from tilelink.device.watch import ll_load_block_within as ll_load_block_within
from tilelink.device.watch import ll_load_within as ll_load_within
from tilelink.device.watch import local_wait_within as local_wait_within
from tilelink.device.watch import signal_wait_within as signal_wait_within

# NVSHMEM's numbers (nvshmem_constants.h), since its library compares with them; EQ, NE, GT, LE, LT, GE in that order.
SIGNAL_SET = tl.constexpr(9)
SIGNAL_ADD = tl.constexpr(10)
CMP_EQ = tl.constexpr(0)
CMP_GE = tl.constexpr(5)

COPY_BYTES = tl.constexpr(4096)
"""Bytes in flight per warp and step of a block copy: 8 accesses of 128 bits for each of 32 threads."""


@triton.jit
def my_pe(ctx):
    """This rank."""
    return tl.load(ctx).to(tl.int32)


@triton.jit
def n_pes(ctx):
    """The number of ranks."""
    return tl.load(ctx + 1).to(tl.int32)


@triton.jit
def translate(p, pe, ctx):
    """`p` of this rank as an address on rank `pe`; keeps whatever Triton knows of its alignment."""
    distance = tl.load(ctx + 2 + pe) - tl.load(ctx + 2 + my_pe(ctx))
    # Arenas start at 16-byte boundaries. Adding to a byte pointer lets the compiler's axis analysis follow.
    bytewise = p.to(tl.pointer_type(tl.int8), bitcast=True) + tl.multiple_of(distance, 16)
    return bytewise.to(p.dtype, bitcast=True)


@triton.jit
def ptr(p, pe, ctx):
    """`p` of this rank as an address on rank `pe`. `p` lies at a 16-byte boundary (hazard: without the hint, b16 stores)."""
    return tl.multiple_of(translate(p, pe, ctx), 16)


@triton.jit
def putmem_nbi_block(dst, src, count, pe, ctx):
    """Copy `count` elements from `src` (local) to `dst` of rank `pe`. Complete after `quiet`, or at the next signal."""
    copy_block(translate(dst, pe, ctx), src, count)


@triton.jit
def getmem_nbi_block(dst, src, count, pe, ctx):
    """Copy `count` elements from `src` of rank `pe` to `dst` (local). Complete after `quiet`, or at the next signal."""
    copy_block(dst, translate(src, pe, ctx), count)


@triton.jit
def putmem_signal_nbi_block(dst, src, count, flag, value, op: tl.constexpr, pe, ctx):
    """`putmem_nbi_block`, then `signal_op`: who sees the signal sees the data."""
    putmem_nbi_block(dst, src, count, pe, ctx)
    signal_op(flag, value, op, pe, ctx)


@triton.jit
def copy_block(dst, src, count):
    """Copy `count` contiguous elements by all threads, 128 bits at a time where both sides are known to be aligned."""
    itemsize: tl.constexpr = dst.dtype.element_ty.primitive_bitwidth // 8
    block: tl.constexpr = COPY_BYTES * warps() // itemsize
    vector: tl.constexpr = 16 // itemsize
    total = tl.cast(count, tl.int64)
    whole = total // block * block
    offsets = tl.arange(0, block)
    for start in range(0, whole, block):
        tl.store(dst + start + offsets, tl.load(src + start + offsets))
    rest = (total - whole).to(tl.int32)
    if rest % vector == 0:
        # A mask that changes only between vectors does not split the accesses.
        inside = offsets // vector < rest // vector
        tl.store(dst + whole + offsets, tl.load(src + whole + offsets, mask=inside), mask=inside)
    else:
        inside = offsets < rest
        tl.store(dst + whole + offsets, tl.load(src + whole + offsets, mask=inside), mask=inside)


@triton.jit
def signal_op(flag, value, op: tl.constexpr, pe, ctx):
    """Set or add to `flag` of rank `pe`, after everything this program has read and written. Works for oneself too."""
    # All threads store, one thread signals: without the barrier the release covers only that thread's stores.
    block_barrier()
    remote = translate(flag, pe, ctx)
    if op == SIGNAL_ADD:
        tl.atomic_add(remote, tl.cast(value, tl.int64), sem="release", scope="sys")
    else:
        tl.static_assert(op == SIGNAL_SET, "signal_op knows SIGNAL_SET and SIGNAL_ADD")
        tl.atomic_xchg(remote, tl.cast(value, tl.int64), sem="release", scope="sys")


@triton.jit
def signal_all(flag, value, op: tl.constexpr, ranks: tl.constexpr, ctx, further=None):
    """`signal_op` for `flag` of each of the `ranks` ranks, oneself included; and for a `further` flag of each.

    One lane a rank and flag, so that the links' round trips run side by side: a release waits for the one before it.
    """
    block_barrier()
    many: tl.constexpr = triton.next_power_of_2(ranks)  # pyright: ignore[reportArgumentType, reportAssignmentType]
    lane = tl.arange(0, many if further is None else 2 * many)
    pe = lane % many
    inside = pe < ranks
    here = flag if further is None else tl.where(lane < many, flag, further)
    distance = tl.load(ctx + 2 + pe, mask=inside, other=0) - tl.load(ctx + 2 + my_pe(ctx))
    remote = (here.to(tl.pointer_type(tl.int8), bitcast=True) + distance).to(flag.dtype, bitcast=True)
    if op == SIGNAL_ADD:
        tl.atomic_add(remote, tl.cast(value, tl.int64), mask=inside, sem="release", scope="sys")
    else:
        tl.static_assert(op == SIGNAL_SET, "signal_all knows SIGNAL_SET and SIGNAL_ADD")
        tl.atomic_xchg(remote, tl.cast(value, tl.int64), mask=inside, sem="release", scope="sys")


@triton.jit
def local_add(flag, value):
    """Add to a flag that only this GPU reads; returns the old value. Orders what came before, and what comes after."""
    block_barrier()
    return tl.atomic_add(flag, tl.cast(value, tl.int64), sem="acq_rel", scope="gpu")


@triton.jit
def count(doorbell):
    """Ring a doorbell that a stream of this rank counts, after everything this program has read and written. Nothing comes back,
    so nothing is waited for."""
    block_barrier()
    tl.atomic_add(doorbell, tl.cast(1, tl.int64), sem="release", scope="gpu")


@triton.jit
def local_set(flag, value):
    """Set a flag that only this GPU reads, after everything this program has read and written."""
    block_barrier()
    tl.atomic_xchg(flag, tl.cast(value, tl.int64), sem="release", scope="gpu")


@triton.jit
def is_last(counter, tiles):
    """Whether this is the last of so many tiles of this GPU that call it; the count then begins anew.

    Orders what came before, and what comes after: whoever is last has seen what the others wrote.
    """
    last = local_add(counter, 1) + 1 == tiles
    if last:
        tl.store(counter, tl.cast(0, tl.int64))
    return last


@triton.jit
def ring_doorbell(doorbell):
    """Set the flag that a stream of this rank waits for, after everything this program has read and written.

    In the scope of this GPU, whose own engines hear it and copy out of its memory: a release for the whole system waits for
    what is on its way over the links too, and took 2 to 12 µs.
    """
    local_set(doorbell, 1)


@triton.jit
def signal_wait_until(flag, cmp: tl.constexpr, value):
    """Until this rank's `flag` compares with `value`; what was signalled with it is then readable."""
    target = tl.cast(value, tl.int64)
    if cmp == CMP_GE:
        while tl.atomic_add(flag, 0, sem="acquire", scope="sys") < target:
            pass
    else:
        tl.static_assert(cmp == CMP_EQ, "signal_wait_until knows CMP_GE and CMP_EQ")
        while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != target:
            pass


@triton.jit
def signal_wait_each(flags, cmp: tl.constexpr, values, inside):
    """`signal_wait_until` for each flag of a block, as far as `inside` says. One lane a flag: their polls run side by side."""
    tl.static_assert(cmp == CMP_GE, "signal_wait_each knows CMP_GE")
    # Nothing of block shape is carried around the loop: Triton 3.6 cannot compile that.
    while (
        tl.max((inside & (tl.atomic_add(flags, 0, mask=inside, sem="acquire", scope="sys") < values)).to(tl.int32), 0)
        != 0
    ):
        pass


@triton.jit
def local_wait_until(flag, cmp: tl.constexpr, value):
    """`signal_wait_until` for a flag that only programs of this GPU write."""
    target = tl.cast(value, tl.int64)
    if cmp == CMP_GE:
        while tl.atomic_add(flag, 0, sem="acquire", scope="gpu") < target:
            pass
    else:
        tl.static_assert(cmp == CMP_EQ, "local_wait_until knows CMP_GE and CMP_EQ")
        while tl.atomic_add(flag, 0, sem="acquire", scope="gpu") != target:
            pass


@triton.jit
def fence():
    """What this program wrote to a rank before is visible there before what it writes next."""
    system_fence()
    block_barrier()


@triton.jit
def quiet():
    """What this program wrote to any rank is visible there."""
    system_fence()
    block_barrier()


@triton.jit
def barrier_all(flags, epoch, ctx):
    """All ranks have come here `epoch` times. One program per rank calls it; `flags`: n_pes flags, used for this only."""
    me = my_pe(ctx)
    for pe in range(n_pes(ctx)):
        signal_op(flags + me, epoch, SIGNAL_SET, pe, ctx)
    for pe in range(n_pes(ctx)):
        signal_wait_until(flags + pe, CMP_GE, epoch)


symm_at = translate
"""By the name that programs with raw pointers know."""


@triton.jit
def notify(p, pe, signal, op: tl.constexpr, ctx):
    """Set or add to an integer of rank `pe`, of 32 or 64 bits, after everything this program has read and written."""
    block_barrier()
    remote = translate(p, pe, ctx)
    value = tl.cast(signal, p.dtype.element_ty)
    if op == "add":
        tl.atomic_add(remote, value, sem="release", scope="sys")
    else:
        tl.static_assert(op == "set", "notify knows `set` and `add`")
        tl.atomic_xchg(remote, value, sem="release", scope="sys")


@triton.jit
def async_store_quiet():
    """Descriptor (TMA) stores of this program are in memory, as ordinary stores would be. Before a signal."""
    bulk_store_wait()
    proxy_fence()


@triton.jit
def async_load_fence():
    """Descriptor (TMA) loads that follow see what a wait has made readable. After a wait."""
    proxy_fence()
