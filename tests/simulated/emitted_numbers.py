"""One block, many operations: for comparison with torch."""

import triton
import triton.language as tl


@triton.jit
def elementwise(x, y, out, N: tl.constexpr, WHAT: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = tl.load(y + at)
    if WHAT == "add":
        c = a + b
    elif WHAT == "sub":
        c = a - b
    elif WHAT == "mul":
        c = a * b
    elif WHAT == "scalar":
        c = a * 2.5 + 1.0
    elif WHAT == "neg":
        c = -a
    elif WHAT == "abs":
        c = tl.abs(a)
    elif WHAT == "max":
        c = tl.maximum(a, b)
    elif WHAT == "where":
        c = tl.where(a > b, a, b)
    elif WHAT == "where both":
        c = tl.where((at >= 0) & (a < b), a, b)
    elif WHAT == "div":
        c = (a.to(tl.float32) / b.to(tl.float32)).to(a.dtype)
    elif WHAT == "silu":
        c = (a.to(tl.float32) * tl.sigmoid(a.to(tl.float32))).to(a.dtype)
    elif WHAT == "erf":
        c = tl.erf(a.to(tl.float32)).to(a.dtype)
    else:
        tl.static_assert(False, "unknown")
    tl.store(out + at, c)


@triton.jit
def reductions(x, out, M: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, M)
    block = tl.load(x + rows[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + rows, tl.sum(block, 1))
    tl.store(out + M + rows, tl.max(block, axis=1))
    tl.store(out + 2 * M + rows, block.to(tl.float32).sum(1))
    tl.store(out + 3 * M + rows, tl.argmax(block.to(tl.float32), 1))


@triton.jit
def scan(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def convert(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def truncate(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(tl.bfloat16, fp_downcast_rounding="rtz"))


@triton.jit
def dot(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, OUT: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    left = tl.load(a + m * K + k[None, :])
    right = tl.load(b + n * K + k[:, None])
    tl.store(out + m * N + n, tl.dot(left, right, out_dtype=OUT))


@triton.jit
def add_atomically(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.atomic_add(out + at, tl.load(x + at), sem="relaxed")


@triton.jit
def integers(x, y, out):
    a = tl.load(x)
    b = tl.load(y)
    tl.store(out + 0, a + b)
    tl.store(out + 1, a - b)
    tl.store(out + 2, a * b)
    tl.store(out + 3, a // b)
    tl.store(out + 4, a % b)
    tl.store(out + 5, a + 7)
    tl.store(out + 6, 7 - a)
    tl.store(out + 7, a * 1000003)
    tl.store(out + 8, a // 3)
    tl.store(out + 9, 100 // b)
    tl.store(out + 10, 100 % b)
    tl.store(out + 11, tl.minimum(a, b))
    tl.store(out + 12, tl.maximum(a, 5))
    tl.store(out + 13, (a < b).to(tl.int32) + 2 * (a == b).to(tl.int32) + 4 * (a >= 3).to(tl.int32))
    tl.store(out + 14, tl.load(x + a * 0 + 1))
    tl.store(out + 15, tl.load(x - b + b + 1 - 1))
    tl.store(out + 16, a + b * 2.0)
    tl.store(out + 17, a.to(tl.int64) + b)
