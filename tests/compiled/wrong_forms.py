"""Kernels that break the orders on purpose, so that a check that looks away is noticed."""

import triton
import triton.language as tl

from tilelink.device import peer as shmem


@triton.jit
def _product(acc, rows, weight, k, K: tl.constexpr):
    m, n, at = tl.arange(0, 64), tl.arange(0, 64), k + tl.arange(0, 32)
    a = tl.load(rows + m[:, None] * K + at[None, :])
    b = tl.load(weight + at[:, None] * 64 + n[None, :])
    return tl.dot(a, b, acc)


@triton.jit
def wait_under_a_condition(rows, weight, out, flags, tiles, K: tl.constexpr):
    """The pipeliner issues the first loads above the poll."""
    for t in range(tiles):
        acc = tl.zeros([64, 64], tl.float32)
        for k in range(0, K, 32):
            if k % 256 == 0:
                shmem.local_wait_until(flags + k // 256, shmem.CMP_GE, 1)
            acc = _product(acc, rows + t * 64 * K, weight, k, K)
        tl.store(out + t * 4096 + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], acc)


@triton.jit
def wait_in_the_loop(rows, weight, out, flags, tiles, K: tl.constexpr):
    """Right, and no longer pipelined."""
    for t in range(tiles):
        acc = tl.zeros([64, 64], tl.float32)
        for k in range(0, K, 32):
            shmem.local_wait_until(flags + k // 256, shmem.CMP_GE, 1)
            acc = _product(acc, rows + t * 64 * K, weight, k, K)
        tl.store(out + t * 4096 + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], acc)


@triton.jit
def wait_in_runs(rows, weight, out, flags, tiles, K: tl.constexpr):
    """What is emitted instead."""
    for t in range(tiles):
        acc = tl.zeros([64, 64], tl.float32)
        for run in range(K // 256):
            shmem.local_wait_until(flags + run, shmem.CMP_GE, 1)
            for k in range(run * 256, run * 256 + 256, 32):
                acc = _product(acc, rows + t * 64 * K, weight, k, K)
        tl.store(out + t * 4096 + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], acc)


@triton.jit
def release_without_a_barrier(out, flags):
    tl.store(out + tl.arange(0, 1024), tl.full([1024], 1, tl.float32))
    tl.atomic_add(flags, tl.cast(1, tl.int64), sem="release", scope="sys")


@triton.jit
def release_after_a_barrier(out, flags):
    tl.store(out + tl.arange(0, 1024), tl.full([1024], 1, tl.float32))
    tl.debug_barrier()
    tl.atomic_add(flags, tl.cast(1, tl.int64), sem="release", scope="sys")


@triton.jit
def bulk_store_and_release(target, flags):
    target.store([0, 0], tl.full([64, 64], 1, tl.float16))
    tl.debug_barrier()
    tl.atomic_add(flags, tl.cast(1, tl.int64), sem="release", scope="sys")


@triton.jit
def bulk_store_quiet_and_release(target, flags):
    target.store([0, 0], tl.full([64, 64], 1, tl.float16))
    shmem.async_store_quiet()
    tl.debug_barrier()
    tl.atomic_add(flags, tl.cast(1, tl.int64), sem="release", scope="sys")


@triton.jit
def bulk_load_after_a_wait(source, flags, out):
    shmem.local_wait_until(flags, shmem.CMP_GE, 1)
    tile = source.load([0, 0])
    tl.store(out + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], tile)


@triton.jit
def bulk_load_after_a_wait_and_a_fence(source, flags, out):
    shmem.local_wait_until(flags, shmem.CMP_GE, 1)
    shmem.async_load_fence()
    tile = source.load([0, 0])
    tl.store(out + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], tile)


@triton.jit
def store_to_a_peer_by_address(out, distances):
    """What Triton knows of an address ends where the address becomes a number."""
    there = (out.to(tl.int64) + tl.load(distances)).to(out.dtype)
    tl.store(there + tl.arange(0, 1024), tl.full([1024], 1, tl.float32))


@triton.jit
def store_to_a_peer(out, distances):
    tl.store(shmem.ptr(out, 1, distances) + tl.arange(0, 1024), tl.full([1024], 1, tl.float32))
