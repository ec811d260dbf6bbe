"""What a traced kernel reads: the time, and where it runs. One spelling per target; the simulated backend answers too."""

from typing import Any

import triton
import triton.language as tl

from tilelink.device.fences import on_amd

CUDA_CLOCK: Any = tl.constexpr("mov.u64 $0, %globaltimer;")
GCN_CLOCK: Any = tl.constexpr("s_memrealtime $0\n s_waitcnt lgkmcnt(0)")
CUDA_MULTIPROCESSOR: Any = tl.constexpr("mov.u32 $0, %smid;")
GCN_NANOSECONDS = tl.constexpr(10)
"""Per tick of a clock of 100 MHz."""

READS = {CUDA_CLOCK.value: "clock", CUDA_MULTIPROCESSOR.value: "multiprocessor"}
"""Assembly text -> what the simulated backend reads for it."""


@triton.jit
def clock():
    """Nanoseconds, int64, of a clock that all multiprocessors of this GPU share; other GPUs' clocks differ."""
    if on_amd():
        ticks = tl.inline_asm_elementwise(GCN_CLOCK, "=s", [], dtype=tl.int64, is_pure=False, pack=1)
        return ticks * GCN_NANOSECONDS
    else:
        return tl.inline_asm_elementwise(CUDA_CLOCK, "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def multiprocessor():
    """The number of the multiprocessor that runs this program; on AMD, where hardware splits it up, the program's own."""
    if on_amd():
        return tl.program_id(0)
    else:
        return tl.inline_asm_elementwise(CUDA_MULTIPROCESSOR, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
