"""The same names over NVSHMEM."""

import triton
import triton.language as tl

from tilelink.device import nvshmem as shmem

RANKS = tl.constexpr(3)


@triton.jit
def everything(source, target, flags, context, pe, count):
    t = tl.program_id(0)
    shmem.signal_wait_until(flags + t, shmem.CMP_GE, 1)
    shmem.getmem_nbi_block(target + t * count, source + t * count, count, pe, context)
    shmem.putmem_nbi_block(target + t * count, source + t * count, count, pe, context)
    shmem.signal_op(flags + t, 1, shmem.SIGNAL_ADD, pe, context)
    shmem.putmem_signal_nbi_block(target, source, count, flags, 1, shmem.SIGNAL_ADD, pe, context)
    shmem.signal_all(flags, 1, shmem.SIGNAL_SET, RANKS, context)
    shmem.fence()
    shmem.barrier_all(flags, 1, context)
    if shmem.my_pe(context) + shmem.n_pes(context) == 3:
        tl.store(shmem.ptr(target, pe, context), 1.0)
