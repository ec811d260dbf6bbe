"""The backend of GPUs that reach one another's memory by load and store: NVLink, PCIe peer-to-peer, HIP IPC.

Takes: a `torch.distributed` process group, one process per GPU. Gives: `PeerBackend`, and the streams and launches that the
`nvshmem` backend shares. Knows: torch, triton, the CUDA driver, symmetric memory.
Never knows: tiles, channels, plans.
"""

from tilelink.runtime.memory import Arena
from tilelink.runtime.peer.backend import GpuBackend, PeerBackend
from tilelink.runtime.peer.streams import CudaStream

__all__ = ["Arena", "CudaStream", "GpuBackend", "PeerBackend"]
