"""Backends whose ranks are processes: what all of them answer alike, and the `gloo` backend, which runs on CPUs."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tilelink.errors import TilelinkError, with_article
from tilelink.ir.topology import Topology
from tilelink.runtime import environment
from tilelink.runtime.backend import Backend
from tilelink.runtime.grid import Grid, grid_of, suffix
from tilelink.runtime.memory import Arena, Arenas
from tilelink.runtime.refusals import no_such_group, not_in_group, warn_once


class ProcessBackend(Backend):
    """One rank of a process group; ranks are the group's. Raises TL435, there is no process group.

    Args:
        group: the ranks; None for all of them.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if group is None and dist.is_initialized():
            group = dist.group.WORLD
        if group is None:
            raise TilelinkError(
                "TL435",
                "there is no process group",
                why="ranks are the processes of a torch.distributed group, one per GPU",
                hint="start with torchrun and call torch.distributed.init_process_group()",
            )
        self.group: dist.ProcessGroup = group
        self.rank = group.rank()
        self.ranks = group.size()
        self.members = self.numbers = tuple(dist.get_process_group_ranks(group))
        self.arenas = Arenas()
        self._groups = dist.distributed_c10d._world.pg_map
        """Those that there are: torch takes them out, and every call asks."""

    @property
    def name(self) -> str:
        return self.group.group_name + suffix(self.topology)

    @property
    def alive(self) -> bool:
        return self.group in self._groups

    def named(self, name: str) -> dist.ProcessGroup:
        """As torch.distributed knows it, and its functional collectives do."""
        try:
            return dist.distributed_c10d._resolve_process_group(name)  # pyright: ignore[reportPrivateImportUsage, reportArgumentType]
        except (RuntimeError, ValueError):
            raise no_such_group(name) from None

    def _group_of(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        """For host work; the other ranks know nothing of it."""
        # Not NCCL: one communicator would be split off another, which is collective over all ranks.
        made = dist.new_group(list(members), backend="gloo", use_local_synchronization=True)
        assert isinstance(made, dist.ProcessGroup)
        return made

    def _members_of(self, group: Any) -> tuple[tuple[int, ...], dist.ProcessGroup]:
        """Of a ProcessGroup, or of a DeviceMesh of one dimension. Raises TL455, too: torch does not tell of whom it is."""
        found = group.get_group() if isinstance(group, DeviceMesh) and group.ndim == 1 else group
        if found is dist.GroupMember.NON_GROUP_MEMBER:
            raise not_in_group(dist.get_rank())
        if not isinstance(found, dist.ProcessGroup):
            shape = f" of {group.ndim} dimensions" if isinstance(group, DeviceMesh) else ""
            raise TilelinkError(
                "TL454",
                f"{with_article(type(group).__name__)}{shape} is no group of ranks",
                why="the ranks of an operator are the processes of one torch.distributed group",
                hint='pass a ProcessGroup, mesh["name"], or tilelink.group([0, 1])',
            )
        return tuple(dist.get_process_group_ranks(found)), found

    def grid(self, group: Any) -> Grid | None:
        """Of a DeviceMesh of several dimensions over these ranks, in rising order: its names in upper case."""
        if not isinstance(group, DeviceMesh) or group.ndim < 2 or group.mesh_dim_names is None:
            return None
        if tuple(group.mesh.flatten().tolist()) != self.members:
            return None
        return grid_of({name.upper(): size for name, size in zip(group.mesh_dim_names, group.mesh.shape, strict=True)})

    def agree(self, value: Any) -> list[Any]:
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value, group=self.group)
        return values

    def board(self) -> dist.Store | None:  # pyright: ignore[reportPrivateImportUsage]
        """Where the ranks leave word for one another, by a connection of its own; None for a rank alone."""
        if self.ranks == 1:
            return None
        # Whoever waits for a key keeps a connection to himself.
        own = dist.distributed_c10d._get_default_store().clone()  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
        return dist.PrefixStore(f"tilelink/{self.group.group_name}", own)  # pyright: ignore[reportPrivateImportUsage]


class GlooBackend(ProcessBackend):
    """One process of a group on CPUs, as of every `ProcessBackend`.

    An operator's call is its reference's, with this group: `only_references`. What a plan says is what it would say of
    as many simulated ranks.
    """

    only_references = True
    device = torch.device("cpu")

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self.topology = Topology(self.ranks)

    @classmethod
    def from_environment(cls) -> Self:
        """The backend of all processes that `torchrun` started, or of this one alone; a gloo group is made if there is none."""
        if not dist.is_initialized():
            alone = environment.local_rank() is None
            given: dict[str, Any] = {"rank": 0, "world_size": 1, "store": dist.HashStore()} if alone else {}  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group("gloo", **given)
        warn_once(
            "no GPU: in these processes operators run their references, in plain torch on the CPU, without overlap"
        )
        return cls()

    def _allocate(self, nbytes: int) -> Arena:
        """What `tilelink.empty` gives here: memory of this process, which no peer reaches."""
        return Arena(self, self.zeros(nbytes, torch.uint8), (), (0,) * self.ranks, lambda: None)

    def barrier(self) -> None:
        if self.ranks > 1:
            dist.barrier(group=self.group)
