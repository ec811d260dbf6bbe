"""From a lowered plan to a Triton file that a person can read.

Takes: `ir.Plan` and `ir.Lowered`. Gives: `ir.KernelSource`, deterministic text.
Knows: Triton's and SHMEM's names, text.
Never knows: torch tensors, streams, processes; who holds a tile, who hears of it, and which flags stand for it.
"""

from tilelink.codegen.emit import emit

__all__ = ["emit"]
