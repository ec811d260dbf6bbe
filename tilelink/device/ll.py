"""Words of NCCL's LL protocol: 4 bytes of data, and above them the lower half of the number of the call.

Eight bytes are stored at once, and so are seen at once: no order between stores is needed. Two elements of 16 bits share a
word, which is why the last axis of words is half as long as that of elements.
"""

from typing import Any

import triton
import triton.language as tl

from tilelink.device.fences import warps

LL_WORDS: Any = tl.constexpr(256)
"""Words in flight per warp and step of a block copy: 8 for each thread."""


@triton.jit
def ll_pack(tile, number, dtype: tl.constexpr):
    """The words of a tile whose elements are to arrive as `dtype`, of 16 or 32 bits, in the call `number`."""
    elements = tile.to(dtype)
    if elements.dtype.primitive_bitwidth == 16:
        low, high = tl.split(tl.reshape(elements, elements.shape[:-1] + (elements.shape[-1] // 2, 2)))  # noqa: RUF005
        data = _bits(low) | (_bits(high) << 16)
    else:
        data = elements.to(tl.uint32, bitcast=True).to(tl.int64)
    return data | (tl.cast(number, tl.int64) << 32)


@triton.jit
def _bits(element):
    return element.to(tl.uint16, bitcast=True).to(tl.int64)


@triton.jit
def ll_load(words, number, mask, dtype: tl.constexpr):
    """The elements of a block of words, once all that `mask` says hold those of call `number`."""
    got = ll_words(words, number, mask)
    while ll_late(got, number) != 0:
        got = ll_words(words, number, mask)
    return ll_data(got, dtype)


@triton.jit
def ll_words(words, number, mask):
    """What is there now; where `mask` says that nothing is, zeros that have come."""
    return tl.load(words, mask=mask, other=tl.cast(number, tl.int64) << 32, volatile=True)


@triton.jit
def ll_late(got, number):
    """1 where a word is of another call, else 0."""
    return tl.max(tl.ravel(_missing(got, number).to(tl.int32)), 0)


@triton.jit
def ll_first_late(words, got, number, base):
    """How many words the first of another call lies behind `base`."""
    places = (words.to(tl.int64) - base.to(tl.int64)) // 8
    return tl.min(tl.ravel(tl.where(_missing(got, number), places, 1 << 62)), 0)


@triton.jit
def _missing(got, number):
    return (got >> 32).to(tl.int32) != tl.cast(number, tl.int32)


@triton.jit
def ll_oldest(got):
    """The lowest number of a call."""
    return tl.min(tl.ravel(got >> 32), 0)


@triton.jit
def ll_data(got, dtype: tl.constexpr):
    """The elements that words hold."""
    if dtype.primitive_bitwidth == 16:  # pyright: ignore[reportAttributeAccessIssue]
        low = got.to(tl.int16).to(dtype, bitcast=True)
        high = (got >> 16).to(tl.int16).to(dtype, bitcast=True)
        return tl.reshape(tl.join(low, high), got.shape[:-1] + (got.shape[-1] * 2,))  # noqa: RUF005
    else:
        return got.to(tl.int32).to(dtype, bitcast=True)


@triton.jit
def ll_store_block(words, src, count, number, dtype: tl.constexpr):
    """Copy `count` contiguous elements, which fill whole words, from `src` to words of call `number`, by all threads."""
    each: tl.constexpr = 32 // dtype.primitive_bitwidth  # pyright: ignore[reportAttributeAccessIssue]
    # Of two branches that differ in a mask alone the compiler makes one, which knows nothing of it: so the rest is apart.
    fours = count // (4 * each)
    for first in range(0, 4 * fours, LL_WORDS * warps()):
        at, elements, inside, held = ll_lanes(LL_WORDS * warps(), fours - first // 4, 4, each)
        tile = tl.load(src + first * each + elements, mask=held, other=0)
        tl.store(words + first + at, ll_pack(tile, number, dtype), mask=inside)
    if count % (4 * each) != 0:
        at, elements, inside, held = ll_lanes(4, count // each - 4 * fours, 1, each)
        tile = tl.load(src + 4 * fours * each + elements, mask=held, other=0)
        tl.store(words + 4 * fours + at, ll_pack(tile, number, dtype), mask=inside)


@triton.jit
def ll_load_block(dst, words, count, number, dtype: tl.constexpr):
    """Copy `count` contiguous elements, which fill whole words, to `dst`, each as its word comes, by all threads."""
    each: tl.constexpr = 32 // dtype.primitive_bitwidth  # pyright: ignore[reportAttributeAccessIssue]
    fours = count // (4 * each)
    for first in range(0, 4 * fours, LL_WORDS * warps()):
        at, elements, inside, held = ll_lanes(LL_WORDS * warps(), fours - first // 4, 4, each)
        tl.store(dst + first * each + elements, ll_load(words + first + at, number, inside, dtype), mask=held)
    if count % (4 * each) != 0:
        at, elements, inside, held = ll_lanes(4, count // each - 4 * fours, 1, each)
        tile = ll_load(words + 4 * fours + at, number, inside, dtype)
        tl.store(dst + 4 * fours * each + elements, tile, mask=held)


@triton.jit
def ll_lanes(block, count, wide, each):
    """`block` words and their elements, and which of either are among the first `count` groups of `wide` words: a mask that
    changes only between 16 bytes does not split the accesses. All but `count` are constants."""
    at = tl.arange(0, block)
    elements = tl.arange(0, block * each)
    return at, elements, at // wide < count, elements // (each * wide) < count
