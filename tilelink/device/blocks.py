"""What emitted kernels do to blocks of values, beside signalling."""

import triton
import triton.language as tl

from tilelink.device.fences import CUDA_NOTHING, on_cuda


@triton.jit
def halves(block):
    """The left and the right half of a block's columns. Their number is a power of two, above one."""
    pairs = tl.reshape(block, (block.shape[0], 2, block.shape[1] // 2))
    return tl.split(tl.permute(pairs, (0, 2, 1)))


@triton.jit
def members(numbers, count: tl.constexpr):
    """A bit for each number below `count` that is among `numbers`; `count`: a power of two, up to 32."""
    each = tl.arange(0, count)
    there = tl.max((numbers[:, None] == each[None, :]).to(tl.int32), 0)
    return tl.sum(there << each, 0)


@triton.jit
def across(pieces, tile, each: tl.constexpr):
    """(segment, piece of it) of a tile, where the first `each` pieces of all segments come before all later ones.

    `pieces`: how many each segment has; `tile`: below their sum.
    """
    piece = 0
    before = 0
    having = tl.minimum(pieces, each)
    here = tl.sum(having, 0)
    while tile >= before + here:  # pyright: ignore[reportOperatorIssue]
        before += here  # pyright: ignore[reportOperatorIssue]
        piece += each
        having = tl.minimum(tl.maximum(pieces - piece, 0), each)
        here = tl.sum(having, 0)
    ends = tl.cumsum(having, 0) + before
    passed = ends <= tile
    return tl.sum(passed.to(tl.int32), 0), piece + tile - tl.maximum(tl.max(tl.where(passed, ends, 0), 0), before)


@triton.jit
def end_of_tile():
    """Nothing at all. It keeps a branch from being the last thing in a flattened loop.

    Triton up to 3.9 makes invalid code of that (triton-lang/triton pull request 11863: a value used inside the branch
    is taken for one that leaves the loop's body).
    """
    if on_cuda():
        tl.inline_asm_elementwise(CUDA_NOTHING, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
