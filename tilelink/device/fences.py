"""Fences that Triton's language has no word for, one spelling per target.

A fence is inline assembly, chosen at compile time by the target: PTX on NVIDIA, GCN on AMD. The simulated backend
interprets the same texts: `MEANING` says what each of them does, and it refuses any other.
"""

from typing import Any

import triton
import triton.language as tl
from triton.language import core

CUDA_SYSTEM: Any = tl.constexpr("fence.acq_rel.sys; mov.b32 $0, 0;")
CUDA_PROXY: Any = tl.constexpr("fence.proxy.async; mov.b32 $0, 0;")
CUDA_BULK: Any = tl.constexpr("cp.async.bulk.wait_group 0; mov.b32 $0, 0;")
CUDA_BARRIER: Any = tl.constexpr("bar.sync 0; mov.b32 $0, 0;")
CUDA_NOTHING: Any = tl.constexpr("mov.b32 $0, 0;")
GCN_SYSTEM: Any = tl.constexpr(
    "buffer_wbl2 sc0 sc1\n s_waitcnt vmcnt(0) lgkmcnt(0)\n buffer_inv sc0 sc1\n v_mov_b32 $0, 0"
)

MEANING = {
    CUDA_SYSTEM.value: "system_fence",
    CUDA_PROXY.value: "proxy_fence",
    CUDA_BULK.value: "bulk_store_wait",
    GCN_SYSTEM.value: "system_fence",
}
"""Assembly text -> what an observer of the simulated backend is told."""


@core.builtin
def on_amd(_semantic: Any = None) -> core.constexpr:
    """Whether this compilation is for an AMD GPU. Read off the compile options: no GPU is needed to know."""
    return core.constexpr(_semantic.builder.options.backend_name == "hip")


@core.builtin
def on_cuda(_semantic: Any = None) -> core.constexpr:
    """Whether this compilation is for an NVIDIA GPU."""
    return core.constexpr(_semantic.builder.options.backend_name == "cuda")


@core.builtin
def has_bulk_copies(_semantic: Any = None) -> core.constexpr:
    """Whether descriptor accesses are asynchronous bulk copies (TMA): sm_90 and later, and the interpreter."""
    options = _semantic.builder.options
    if options.backend_name == "interpreter":
        return core.constexpr(True)
    if options.backend_name != "cuda":
        return core.constexpr(False)
    digits = "".join(c for c in str(options.arch) if c.isdigit())
    return core.constexpr(int(digits) >= 90)


@core.builtin
def warps(_semantic: Any = None) -> core.constexpr:
    """How many warps the kernel has. The interpreter has none: as many as a kernel gets that says nothing."""
    return core.constexpr(getattr(_semantic.builder.options, "num_warps", 4))


@triton.jit
def block_barrier():
    """All threads of the program have come here, and each sees what the others wrote before.

    `tl.debug_barrier` says the same, but Triton does not pipeline a loop that has one in it.
    """
    if on_cuda():
        tl.inline_asm_elementwise(CUDA_BARRIER, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.debug_barrier()


@triton.jit
def system_fence():
    """Everything this thread wrote is visible to every GPU before anything it writes next."""
    if on_amd():
        tl.inline_asm_elementwise(GCN_SYSTEM, "=v", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(CUDA_SYSTEM, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def proxy_fence():
    """Orders ordinary accesses and bulk copies (the async proxy) of this thread. Nothing where there are none."""
    if has_bulk_copies():
        tl.inline_asm_elementwise(CUDA_PROXY, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def bulk_store_wait():
    """Until the bulk stores of this thread have reached memory; Triton itself waits only for shared memory."""
    if has_bulk_copies():
        tl.inline_asm_elementwise(CUDA_BULK, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
