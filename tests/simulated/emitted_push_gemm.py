"""All-gather by copy engine (push) + matmul with pointer loads: gates, doorbells, totals sent by copy, two slots."""

import triton
import triton.language as tl

from tilelink.device import peer as shmem


@triton.jit
def credit_gate(left, doorbell, epoch, context, SLOTS: tl.constexpr):
    """One worker: tell every rank that this one has left the previous call, and ring when all have left `SLOTS` ago."""
    R = shmem.n_pes(context)
    me = shmem.my_pe(context)
    for pe in range(R):
        shmem.signal_op(left + me, epoch - 1, shmem.SIGNAL_SET, pe, context)
    for pe in range(R):
        shmem.signal_wait_until(left + pe, shmem.CMP_GE, epoch - SLOTS)
    shmem.ring_doorbell(doorbell)


@triton.jit
def matmul(rows, weight, out, arrived, total, M, N, K, context, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    columns = tl.cdiv(N, BN)
    part = tl.cdiv(M, shmem.n_pes(context))
    for t in range(tl.program_id(0), tl.cdiv(M, BM) * columns, tl.num_programs(0)):
        m = t // columns
        n = t % columns
        om = m * BM + tl.arange(0, BM)
        on = n * BN + tl.arange(0, BN)
        ok = tl.arange(0, BK)
        for source in range(m * BM // part, (tl.minimum(m * BM + BM, M) - 1) // part + 1):
            shmem.signal_wait_until(arrived + source, shmem.CMP_GE, total)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            a = tl.load(
                rows + om[:, None] * K + (k + ok)[None, :], mask=(om < M)[:, None] & (k + ok < K)[None, :], other=0.0
            )
            b = tl.load(
                weight + (k + ok)[:, None] * N + on[None, :], mask=(k + ok < K)[:, None] & (on < N)[None, :], other=0.0
            )
            acc = tl.dot(a, b, acc)
        value = acc.to(out.dtype.element_ty)
        tl.store(out + om[:, None] * N + on[None, :], value, mask=(om < M)[:, None] & (on < N)[None, :])
