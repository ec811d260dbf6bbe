"""From a plan to a Triton file that a person can read.

Takes: `ir.Plan`. Gives: `ir.KernelSource`, deterministic text.
Knows: Triton's and SHMEM's names, text.
Never knows: torch tensors, streams, processes.
"""

from tilelink.codegen.emit import emit

__all__ = ["emit"]
