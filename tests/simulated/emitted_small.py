"""Small kernels for one question each."""

import triton
import triton.language as tl

from tests.simulated import emitted_part
from tilelink.device import peer as shmem


@triton.jit
def wait_for(flags, value, context):
    worker = tl.program_id(0)
    expected = value + worker
    shmem.signal_wait_until(flags + worker, shmem.CMP_GE, expected)


@triton.jit
def signal_all(flags, value, context, OP: tl.constexpr):
    for pe in range(shmem.n_pes(context)):
        shmem.signal_op(flags, value, OP, pe, context)


@triton.jit
def spin(flags, other):
    while tl.atomic_add(flags, 0, sem="acquire", scope="sys") < 1:
        pass
    while tl.atomic_add(flags, 0, sem="acquire", scope="sys") < 1:
        pass
    tl.store(other, 7)


@triton.jit
def spin_volatile(flags, other):
    while tl.load(flags, volatile=True) < 1:
        pass
    tl.store(other, 7)


@triton.jit
def chain(flags):
    """Worker i lets worker i - 1 go on: all must be resident."""
    worker = tl.program_id(0)
    if worker < tl.num_programs(0) - 1:
        shmem.local_wait_until(flags + worker, shmem.CMP_EQ, 1)
    if worker > 0:
        shmem.local_add(flags + worker - 1, 1)


@triton.jit
def last_one(flags, out, workers):
    old = shmem.local_add(flags, 1)
    if old == workers - 1:
        tl.store(out, old + 1)


@triton.jit
def copy_elements(source, target, offset, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < count
    tl.store(target + at, tl.load(source + offset + at, mask=inside), mask=inside)


@triton.jit
def copy_tile(source, target, row, column):
    target.store([0, 0], source.load([row, column]))


@triton.jit
def put(target, source, count, pe, context):
    shmem.putmem_nbi_block(target, source, count, pe, context)


@triton.jit
def put_and_signal(target, source, count, flag, pe, context):
    shmem.putmem_signal_nbi_block(target, source, count, flag, 1, shmem.SIGNAL_ADD, pe, context)
    shmem.quiet()
    shmem.fence()


@triton.jit
def meet(flags, epoch, context):
    shmem.barrier_all(flags, epoch, context)


@triton.jit
def through_another_module(source, out, N: tl.constexpr):
    half: tl.constexpr = N // 2
    at = tl.arange(0, half)
    low, high = emitted_part.halves(tl.load(source + at), tl.load(source + half + at))
    tl.store(out + at, low)
    tl.store(out + half + at, high)
    tl.store(out + N, tl.load(source + at).sum(0))


@triton.jit
def hint(flags):
    tl.store(tl.multiple_of(flags + 1, 16), 3)


@triton.jit
def assembly(flags):
    tl.inline_asm_elementwise("trap;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def fail_on(flags, rank, bad):
    tl.device_assert(rank != bad, "this rank is bad")


@triton.jit
def axes(out):
    tl.store(out + tl.program_id(0), tl.num_programs(0) * 100 + tl.program_id(1) * 10 + tl.num_programs(1))


@triton.jit
def check_then_act(flags, out):
    """Every program adds 1 to `out`, as if it were alone: atomics on another flag lie in between."""
    old = tl.load(out)
    tl.atomic_add(flags, 1, sem="relaxed", scope="gpu")
    tl.store(out, old + 1)
