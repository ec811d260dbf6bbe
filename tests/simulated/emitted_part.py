"""Functions that another emitted file calls."""

import triton


@triton.jit
def halves(low, high):
    return twice(low) + high, low


@triton.jit
def twice(value):
    return value * 2
