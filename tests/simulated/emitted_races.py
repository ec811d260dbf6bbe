"""Kernels that do, and do not, meet one another in memory."""

import triton
import triton.language as tl


@triton.jit
def whole(data, flags):
    tl.store(data + tl.arange(0, 64), 5)


@triton.jit
def neighbours(data, flags):
    """21 elements each."""
    at = tl.arange(0, 32)
    tl.store(data + tl.program_id(0) * 21 + at, at, mask=at < 21)


@triton.jit
def overlapping(data, flags):
    at = tl.arange(0, 32)
    tl.store(data + tl.program_id(0) * 20 + at, at, mask=at < 21)


@triton.jit
def odd_and_even(data, flags):
    at = tl.arange(0, 64)
    tl.store(data + at, at, mask=at % 2 == tl.program_id(0))


@triton.jit
def histogram(data, flags):
    tl.atomic_add(data + tl.arange(0, 64), 1)


@triton.jit
def add_and_store(data, flags):
    if tl.program_id(0) == 0:
        tl.atomic_add(flags, 1)
    else:
        tl.store(flags, 7)


@triton.jit
def in_place(tile, data):
    tile.store([0, 0], tile.load([0, 0]) + 1)


@triton.jit
def store_then_load(tile, data):
    """By the same proxy, in order."""
    tile.store([0, 0], tl.zeros([16, 16], tl.float32))
    tile.store([0, 0], tile.load([0, 0]) + 1)


@triton.jit
def through_both(tile, data):
    """A bulk store, and then loads and stores of the same bytes."""
    pointers = data + tl.arange(0, 256)
    tile.store([0, 0], tl.zeros([16, 16], tl.float32))
    tl.store(pointers, tl.load(pointers) + 1)
