"""The backend of NVSHMEM: any rank reaches any other, across hosts too, by the calls of NVSHMEM's device library.

Takes: a `torch.distributed` process group, one process per GPU. Gives: `NvshmemBackend`. Knows: nvshmem4py,
the bitcode that kernels link with, whom pointers reach.
Never knows: tiles, channels, plans.
"""

from tilelink.runtime.nvshmem.backend import NvshmemBackend

__all__ = ["NvshmemBackend"]
