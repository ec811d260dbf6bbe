"""Ranks that are processes on CPUs, such as those of torch.distributed's gloo: operators run their references.

Takes: a process group. Gives: `GlooWorld`.
Knows: torch.distributed.
Never knows: kernels, streams, symmetric memory.
"""

from tilelink.runtime.gloo.world import GlooWorld

__all__ = ["GlooWorld"]
