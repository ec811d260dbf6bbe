"""Words of NCCL's low-latency protocol (LL): 4 bytes of data, and above them the lower half of the number of the call.

Eight bytes are stored at once, and so are seen at once: no order between stores is needed. Two elements of 16 bits share a
word, which is why the last axis of words is half as long as that of elements.
"""

import triton
import triton.language as tl


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
    return tl.max(tl.ravel(((got >> 32).to(tl.int32) != tl.cast(number, tl.int32)).to(tl.int32)), 0)


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
