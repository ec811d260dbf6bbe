"""The process group that ranks are the members of."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.runtime import environment
from tilelink.runtime.peer import reach


def existing(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """`group`, or that of all processes.

    Raises:
        TilelinkError: TL435, there is none.
    """
    if group is not None:
        return group
    if not dist.is_initialized() or dist.group.WORLD is None:
        raise TilelinkError(
            "TL435",
            "there is no process group",
            why="ranks are the processes of a torch.distributed group, one per GPU",
            hint="start with torchrun and call torch.distributed.init_process_group()",
        )
    return dist.group.WORLD


def join() -> None:
    """Collective: make the group of all processes, one per GPU, unless the user has; of this process if it is alone.

    Raises:
        TilelinkError: TL432 no GPU, TL433 more processes on this host than GPUs.
    """
    reach.current_device()
    if dist.is_initialized():
        return
    place = environment.distributed()
    if place is None:
        alone = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("nccl", rank=0, world_size=1, store=alone)
        return
    device = torch.device("cuda", _own_gpu(place))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)


def _own_gpu(place: environment.ProcessRank) -> int:
    gpus = torch.cuda.device_count()
    if gpus == 1:
        return 0  # the launcher shows each process its own GPU
    if place.local_rank >= gpus:
        raise TilelinkError(
            "TL433",
            f"process {place.local_rank} of this host has no GPU of its own: there are {gpus}",
            why="kernels of two processes take turns on a GPU, and these wait for one another",
            hint=f"start torchrun with --nproc-per-node={gpus}",
        )
    return place.local_rank
