"""A gather through a table of indices."""

import triton
import triton.language as tl


@triton.jit
def gather(source, table, out):
    at = tl.arange(0, 4)
    tl.store(out + at, tl.load(source + tl.load(table + at)))
