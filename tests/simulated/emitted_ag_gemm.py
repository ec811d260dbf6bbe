"""All-gather + matmul by pull, in the style of what codegen emits: two roles, persistent, a flag per gathered tile.

Rows of a tile may come from several ranks: the last rank may hold fewer rows, and BM need not divide a rank's part.
"""

import triton
import triton.language as tl

from tilelink.device import peer as shmem


@triton.jit
def gather(shard, rows, ready, pulled, epoch, context, M, K, R, worker, workers, BM: tl.constexpr):
    me = shmem.my_pe(context)
    part = tl.cdiv(M, R)
    tiles = tl.cdiv(M, BM)
    for t in range(worker, tiles, workers):
        # ring order: own rows first
        tile = (t + me * part // BM) % tiles
        begin = tile * BM
        end = tl.minimum(begin + BM, M)
        for source in range(begin // part, (end - 1) // part + 1):
            shmem.signal_wait_until(ready + source, shmem.CMP_GE, epoch)
            first = tl.maximum(begin, source * part)
            last = tl.minimum(end, (source + 1) * part)
            remote = shard + (first - source * part) * K
            shmem.getmem_nbi_block(rows + first * K, remote, (last - first) * K, source, context)
        shmem.local_add(pulled + tile, 1)


@triton.jit
def matmul(
    rows, weight, out, pulled, epoch, M, N, K, worker, workers, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    columns = tl.cdiv(N, BN)
    for t in range(worker, tl.cdiv(M, BM) * columns, workers):
        m = t // columns
        n = t % columns
        shmem.local_wait_until(pulled + m, shmem.CMP_GE, epoch)
        shmem.async_load_fence()
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(rows.load([m * BM, k]), weight.load([k, n * BN]), acc)
        out.store([m * BM, n * BN], acc.to(out.dtype))


@triton.jit
def ag_gemm(
    shard, gathered, rows, weight, out, ready, pulled, epoch, context, M, N, K,
    COMM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    R = shmem.n_pes(context)
    if program == 0:
        me = shmem.my_pe(context)
        for pe in range(R):
            shmem.signal_op(ready + me, epoch, shmem.SIGNAL_SET, pe, context)
    if program < COMM:
        gather(shard, gathered, ready, pulled, epoch, context, M, K, R, program, COMM, BM)
    else:
        matmul(rows, weight, out, pulled, epoch, M, N, K, program - COMM, tl.num_programs(0) - COMM, BM, BN, BK)
