"""Library functions for `tilelink.library` that no library has by itself.

Takes: views of tensors, run by run. Gives: what a tile program computes, by the kernels that come with torch.
Knows: torch, Triton for what merges runs, the public `tilelink.by_panels`.
Never knows: plans, ranks, streams.
"""

from tilelink.libraries.attending import attention

__all__ = ["attention"]
