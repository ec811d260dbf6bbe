"""The world of NVSHMEM: any rank reaches any other, across hosts too, by the calls of NVSHMEM's device library.

Takes: a `torch.distributed` process group, one process per GPU. Gives: `NvshmemWorld`, and `nvshmem_heap`, which the
`peer` world can use as well. Knows: nvshmem4py, the bitcode that kernels link with, whom pointers reach.
Never knows: tiles, channels, plans.
"""

from tilelink.runtime.nvshmem.heap import NvshmemHeap, nvshmem_heap
from tilelink.runtime.nvshmem.world import NvshmemWorld

__all__ = ["NvshmemHeap", "NvshmemWorld", "nvshmem_heap"]
