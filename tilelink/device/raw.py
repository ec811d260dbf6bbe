"""What programs with raw pointers call, under the names of Triton-distributed's low-level primitives."""

from typing import Any

import triton
import triton.language as tl

from tilelink.device.fences import on_amd, on_cuda

CUDA_ZERO: Any = tl.constexpr("mov.b32 $0, 0;")
GCN_ZERO: Any = tl.constexpr("v_mov_b32 $0, 0")


@triton.jit
def wait(ptrs, count, scope: tl.constexpr, semantic: tl.constexpr, value):
    """Until the `count` integers from `ptrs` on are `value`; gives a token, which is 0 and of which compilers cannot know."""
    seen = tl.cast(value, ptrs.dtype.element_ty)
    for i in range(count):
        seen = tl.atomic_add(ptrs + i, 0, sem=semantic, scope=scope)
        while seen != value:
            seen = tl.atomic_add(ptrs + i, 0, sem=semantic, scope=scope)
    return token_of(seen.to(tl.int32))


@triton.jit
def token_of(seen):
    """0, out of a value that a wait has seen."""
    if on_cuda():
        return tl.inline_asm_elementwise(CUDA_ZERO, "=r,r", [seen], dtype=tl.int32, is_pure=False, pack=1)
    elif on_amd():
        return tl.inline_asm_elementwise(GCN_ZERO, "=v,v", [seen], dtype=tl.int32, is_pure=False, pack=1)
    else:
        return seen * 0


@triton.jit
def consume_token(value, token):
    """`value`, which cannot be had before the token."""
    if value.dtype.is_ptr():
        return value + token
    else:
        return value + token.to(value.dtype)
