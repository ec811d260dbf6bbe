"""Which GPUs there are and whether they reach one another, by what the ranks tell of themselves."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from tilelink.errors import TilelinkError
from tilelink.ir.topology import Device
from tilelink.runtime import environment
from tilelink.runtime.peer import driver

TRYING_OUT = "or, to try things out slowly in the backend peer, set TILELINK_SHARE_GPUS=1"
"""What is left to those who have fewer GPUs than ranks."""
_TURNS = "kernels of two processes take turns on a GPU, and these wait for one another"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs: the name of its host and the UUID of its GPU."""

    host: str
    gpu: str


def current_device() -> torch.device:
    """The GPU of this process. Raises TL432, there is none."""
    if not torch.cuda.is_available():
        raise TilelinkError(
            "TL432",
            "this process sees no GPU",
            why="the backends peer and nvshmem run kernels on GPUs",
            hint="set TILELINK_BACKEND=simulated to run on the CPU",
        )
    return torch.device("cuda", torch.cuda.current_device())


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def place_of(device: torch.device) -> Place:
    return Place(platform.node(), _uuid(device.index))


def describe(device: torch.device) -> Device:
    """What a plan may know of the GPU."""
    properties = torch.cuda.get_device_properties(device)
    return Device(
        name=properties.name,
        sms=properties.multi_processor_count,
        # HIP builds of PyTorch know no larger limit than the ordinary one.
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block),
        copy_engines=Device().copy_engines if torch.version.hip else driver.copy_engines(device.index),
        capability=10 * properties.major + properties.minor,
    )


def require_own_gpus(places: Sequence[Place]) -> None:
    """Refuse, by TL433, two ranks on one GPU: their kernels wait for one another and may not run at the same time."""
    for rank, place in enumerate(places):
        first = places.index(place)
        if first != rank:
            raise TilelinkError(
                "TL433",
                f"ranks {first} and {rank} run on one GPU",
                why=_TURNS,
                hint=f"call torch.cuda.set_device(LOCAL_RANK) before the first operator, {TRYING_OUT}",
            )


def first_gap(rank: int, device: torch.device, places: Sequence[Place]) -> str | None:
    """Why this rank's GPU cannot address the memory of some other rank's; None if it can address them all.

    A GPU that this process does not see (CUDA_VISIBLE_DEVICES) cannot be asked about; mapping its memory will tell. One
    that another rank shares with this one is no peer of itself.
    """
    mine, seen = places[rank], {_uuid(index): index for index in range(torch.cuda.device_count())}
    for peer, place in enumerate(places):
        index = seen.get(place.gpu)
        if place.host != mine.host:
            return f"rank {rank} runs on {mine.host} and rank {peer} on {place.host}"
        if place.gpu != mine.gpu and index is not None and not torch.cuda.can_device_access_peer(device.index, index):
            return f"GPU {device.index} of rank {rank} has no peer access to GPU {index} of rank {peer}"
    return None


def require_no_gap(gaps: Sequence[str | None]) -> None:
    """Refuse, by TL434, ranks that do not all reach one another; `gaps` is what `first_gap` said on every rank."""
    gap = next((gap for gap in gaps if gap is not None), None)
    if gap is not None:
        raise TilelinkError(
            "TL434",
            f"GPUs cannot address one another's memory: {gap}",
            why="in the backend peer every rank loads from and stores to every other",
            hint="set TILELINK_BACKEND=nvshmem, or choose ranks whose GPUs are linked",
        )


def join() -> None:
    """Collective: make the group of all processes, one per GPU, unless the user has; of this process if it is alone.

    Where ranks share GPUs, processes are dealt out to them in turn. Raises TL432 no GPU, TL433 more processes on this host
    than GPUs.
    """
    current_device()
    if dist.is_initialized():
        return
    local = environment.local_rank()
    if local is None:
        alone = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("nccl", rank=0, world_size=1, store=alone)
        return
    if environment.share_gpus():
        torch.cuda.set_device(local % torch.cuda.device_count())
        # NCCL refuses two ranks on one GPU. Gloo takes tensors of GPUs, too: through the host.
        dist.init_process_group("gloo")
        return
    gpus = torch.cuda.device_count()
    mine = local if gpus > 1 else 0  # a launcher may show each process its own GPU alone
    if mine >= gpus:
        raise TilelinkError(
            "TL433",
            f"process {mine} of this host has no GPU of its own: there are {gpus}",
            why=_TURNS,
            hint=f"start torchrun with --nproc-per-node={gpus}, {TRYING_OUT}",
        )
    device = torch.device("cuda", mine)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
