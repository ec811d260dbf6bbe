"""Kernels whose machine code is looked at."""

import triton
import triton.language as tl

from tilelink.device import peer as shmem

RANKS = tl.constexpr(5)


@triton.jit
def push(source, target, flags, context, pe, count):
    t = tl.program_id(0)
    shmem.putmem_nbi_block(target + t * count, source + t * count, count, pe, context)
    shmem.signal_op(flags + t, 1, shmem.SIGNAL_ADD, pe, context)


@triton.jit
def pull(source, target, flags, context, pe, count):
    t = tl.program_id(0)
    shmem.signal_wait_until(flags + t, shmem.CMP_GE, 1)
    shmem.getmem_nbi_block(target + t * count, source + t * count, count, pe, context)
    shmem.local_add(flags + 1, 1)


@triton.jit
def store_to_peer(source, target, flags, doorbell, context, pe):
    at = tl.arange(0, 1024)
    tl.store(shmem.ptr(target, pe, context) + at, tl.load(source + at))
    shmem.signal_op(flags, 5, shmem.SIGNAL_SET, pe, context)
    shmem.ring_doorbell(doorbell)


@triton.jit
def through_descriptors(source, target, flags, context, pe):
    shmem.signal_wait_until(flags, shmem.CMP_EQ, 1)
    shmem.async_load_fence()
    target.store([0, 0], source.load([0, 0]) + 1)
    shmem.async_store_quiet()
    shmem.signal_op(flags, 5, shmem.SIGNAL_SET, pe, context)


@triton.jit
def everything_else(flags, context):
    shmem.local_wait_until(flags, shmem.CMP_GE, 1)
    shmem.fence()
    shmem.quiet()
    shmem.barrier_all(flags, 1, context)
    shmem.signal_all(flags, 2, shmem.SIGNAL_ADD, RANKS, context)


@triton.jit
def store_and_tell_all(source, target, flags, context, pe):
    at = tl.arange(0, 1024)
    tl.store(shmem.ptr(target, pe, context) + at, tl.load(source + at))
    shmem.signal_all(flags, 5, shmem.SIGNAL_SET, RANKS, context)


@triton.jit
def store_and_tell_all_of_two(source, target, flags, context, pe):
    at = tl.arange(0, 1024)
    tl.store(shmem.ptr(target, pe, context) + at, tl.load(source + at))
    shmem.signal_all(flags, 1, shmem.SIGNAL_ADD, RANKS, context, flags + 64)


@triton.jit
def wait_for_all(source, target, flags, count):
    lane = tl.arange(0, 32)
    inside = lane < count
    shmem.signal_wait_each(flags + lane, shmem.CMP_GE, tl.load(flags + 64 + lane, mask=inside, other=0), inside)
    at = tl.arange(0, 1024)
    tl.store(target + at, tl.load(source + at))
