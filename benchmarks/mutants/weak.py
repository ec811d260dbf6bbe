"""The signals of the peer backend without their memory order: what a mutant calls instead. Never right on a GPU."""

import triton
import triton.language as tl

from tilelink.device.peer import CMP_EQ, CMP_GE, SIGNAL_ADD, SIGNAL_SET, my_pe, n_pes, translate

__all__ = ["CMP_EQ", "CMP_GE", "SIGNAL_ADD", "SIGNAL_SET", "my_pe", "n_pes"]


@triton.jit
def signal_op(flag, value, op: tl.constexpr, pe, ctx):
    """Relaxed, and by one thread while the others may still store."""
    remote = translate(flag, pe, ctx)
    if op == SIGNAL_ADD:
        tl.atomic_add(remote, tl.cast(value, tl.int64), sem="relaxed", scope="sys")
    else:
        tl.atomic_xchg(remote, tl.cast(value, tl.int64), sem="relaxed", scope="sys")


@triton.jit
def signal_all(flag, value, op: tl.constexpr, ranks: tl.constexpr, ctx):
    for pe in range(ranks):
        signal_op(flag, value, op, pe, ctx)


@triton.jit
def local_add(flag, value):
    return tl.atomic_add(flag, tl.cast(value, tl.int64), sem="relaxed", scope="gpu")


@triton.jit
def count(doorbell):
    tl.atomic_add(doorbell, tl.cast(1, tl.int64), sem="relaxed", scope="gpu")


@triton.jit
def ring_doorbell(doorbell):
    tl.atomic_xchg(doorbell, tl.cast(1, tl.int64), sem="relaxed", scope="sys")


@triton.jit
def signal_wait_until(flag, cmp: tl.constexpr, value):
    target = tl.cast(value, tl.int64)
    tl.static_assert(cmp == CMP_GE, "emitted code waits for at least as much")
    while tl.atomic_add(flag, 0, sem="relaxed", scope="sys") < target:
        pass


@triton.jit
def signal_wait_each(flags, cmp: tl.constexpr, values, inside):
    tl.static_assert(cmp == CMP_GE, "emitted code waits for at least as much")
    while (
        tl.max((inside & (tl.atomic_add(flags, 0, mask=inside, sem="relaxed", scope="sys") < values)).to(tl.int32), 0)
        != 0
    ):
        pass


@triton.jit
def local_wait_until(flag, cmp: tl.constexpr, value):
    target = tl.cast(value, tl.int64)
    tl.static_assert(cmp == CMP_GE, "emitted code waits for at least as much")
    while tl.atomic_add(flag, 0, sem="relaxed", scope="gpu") < target:
        pass
