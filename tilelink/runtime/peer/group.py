"""The process group that ranks are the members of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tilelink.errors import TilelinkError, with_article
from tilelink.runtime import environment
from tilelink.runtime.grid import Grid, grid_of
from tilelink.runtime.peer import reach
from tilelink.runtime.refusals import no_such_group, not_in_group


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


def part(ranks: Sequence[int], parent: dist.ProcessGroup) -> dist.ProcessGroup:
    """Collective over the named ranks of `parent`, which the others need not know of: their group, for host work."""
    members = [dist.get_global_rank(parent, r) for r in ranks]
    if dist.get_rank() not in members:
        raise not_in_group(dist.get_rank(parent), ranks)
    # Not NCCL: one communicator would be split off another, which is collective over all ranks.
    made = dist.new_group(members, backend="gloo", use_local_synchronization=True)
    assert isinstance(made, dist.ProcessGroup)
    return made


def process_group(given: Any) -> dist.ProcessGroup:
    """The process group that a user names, which may be a DeviceMesh of one dimension.

    Raises:
        TilelinkError: TL454 it is none, TL455 this process is not in it.
    """
    found = given.get_group() if isinstance(given, DeviceMesh) and given.ndim == 1 else given
    if found is dist.GroupMember.NON_GROUP_MEMBER:
        raise not_in_group(dist.get_rank())
    if not isinstance(found, dist.ProcessGroup):
        shape = f" of {given.ndim} dimensions" if isinstance(given, DeviceMesh) else ""
        raise TilelinkError(
            "TL454",
            f"{with_article(type(given).__name__)}{shape} is no group of ranks",
            why="the ranks of an operator are the processes of one torch.distributed group",
            hint='pass a ProcessGroup, mesh["name"], or tilelink.group([0, 1])',
        )
    if found.rank() < 0:
        raise not_in_group(dist.get_rank(), dist.get_process_group_ranks(found))
    return found


def grid_of_mesh(given: Any, members: tuple[int, ...]) -> Grid | None:
    """The axes of a DeviceMesh of several dimensions over these ranks, each named as its dimension, in upper case.

    None: it is no such mesh. What is no mesh of all these ranks in rising order is no group of theirs either.
    """
    if not isinstance(given, DeviceMesh) or given.ndim < 2 or given.mesh_dim_names is None:
        return None
    if tuple(given.mesh.flatten().tolist()) != members:
        return None
    return grid_of({name.upper(): size for name, size in zip(given.mesh_dim_names, given.mesh.shape, strict=True)})


def named(name: str) -> dist.ProcessGroup:
    """The process group that torch.distributed knows by this name, as its functional collectives do.

    Raises:
        TilelinkError: TL456, there is none.
    """
    try:
        return dist.distributed_c10d._resolve_process_group(name)  # pyright: ignore[reportPrivateImportUsage, reportArgumentType]
    except (RuntimeError, ValueError):
        raise no_such_group(name) from None


def board(group: dist.ProcessGroup) -> dist.Store | None:  # pyright: ignore[reportPrivateImportUsage]
    """Where the ranks of a group leave word for one another, by a connection of its own; None for a group of one."""
    if group.size() == 1:
        return None
    store = dist.distributed_c10d._get_default_store()
    # Whoever waits for a key keeps a connection to himself.
    clone = getattr(store, "clone", None)
    own = clone() if clone is not None else store
    return dist.PrefixStore(f"tilelink/{group.group_name}", own)  # pyright: ignore[reportPrivateImportUsage]


def join() -> None:
    """Collective: make the group of all processes, one per GPU, unless the user has; of this process if it is alone.

    Where ranks share GPUs, processes are dealt out to them in turn.

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
    if environment.share_gpus():
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        # NCCL refuses two ranks on one GPU. Gloo takes tensors of GPUs, too: through the host.
        dist.init_process_group("gloo")
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
            hint=f"start torchrun with --nproc-per-node={gpus}, {reach.TRYING_OUT}",
        )
    return place.local_rank
