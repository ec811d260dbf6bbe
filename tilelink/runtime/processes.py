"""What every backend whose ranks are processes answers alike: who they are, their groups, and how they agree."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tilelink.errors import TilelinkError, with_article
from tilelink.runtime.arena import Arenas
from tilelink.runtime.backend import Backend
from tilelink.runtime.grid import Grid, grid_of, suffix
from tilelink.runtime.refusals import no_such_group, not_in_group

# ---------------------------------------------------------------------------------------------------------------------
# The process group that ranks are the members of.


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


class ProcessBackend(Backend):
    """One rank of a process group; ranks are the group's.

    Args:
        group: the ranks; None for all of them.

    Raises:
        TilelinkError: TL435, there is no process group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group: dist.ProcessGroup = existing(group)
        self.rank = self.group.rank()
        self.ranks = self.group.size()
        self.members = self.numbers = tuple(dist.get_process_group_ranks(self.group))
        self.arenas = Arenas()

    @property
    def name(self) -> str:
        return self.group.group_name + suffix(self.topology)

    @property
    def alive(self) -> bool:
        return self.group in dist.distributed_c10d._world.pg_map

    def named(self, name: str) -> dist.ProcessGroup:
        return named(name)

    def among(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """A process group; of all other ranks than these it knows nothing."""
        return part(ranks, self.group)

    def within(self, group: Any) -> Any:
        """The backend of a sub-group: a ProcessGroup, or a DeviceMesh of one dimension."""
        given = process_group(group)
        return self if tuple(dist.get_process_group_ranks(given)) == self.members else self._part(given)

    @abstractmethod
    def _part(self, group: dist.ProcessGroup) -> ProcessBackend:
        """A backend of the same kind for the ranks of `group`."""

    def grid(self, group: Any) -> Grid | None:
        """The axes of a DeviceMesh of several dimensions, by its names in upper case."""
        return grid_of_mesh(group, self.members)

    def agree(self, value: Any) -> list[Any]:
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value, group=self.group)
        return values
