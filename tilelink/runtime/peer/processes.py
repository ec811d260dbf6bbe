"""What every backend whose ranks are processes answers alike: who they are, their groups, and how they agree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch.distributed as dist

from tilelink.ir.topology import Topology
from tilelink.runtime.grid import Grid, laid_out, suffix
from tilelink.runtime.peer import group as groups


class ProcessWorld(ABC):
    """One rank of a process group; ranks are the group's.

    Args:
        group: the ranks; None for all of them.

    Raises:
        TilelinkError: TL435, there is no process group.
    """

    topology: Topology
    members: tuple[int, ...]
    """Each rank's number among all processes."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = groups.existing(group)
        self.rank = self.group.rank()
        self.ranks = self.group.size()
        self.members = tuple(dist.get_process_group_ranks(self.group))

    @property
    def name(self) -> str:
        return self.group.group_name + suffix(self.topology)

    @property
    def alive(self) -> bool:
        return self.group in dist.distributed_c10d._world.pg_map

    def named(self, name: str) -> dist.ProcessGroup:
        return groups.named(name)

    def among(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """A process group of some of this world's ranks, which alone need to call this; of all others it knows nothing.

        Raises:
            TilelinkError: TL455, this rank is not among them.
        """
        return groups.part(ranks, self.group)

    def within(self, group: Any) -> Any:
        """The world of a sub-group: a ProcessGroup, or a DeviceMesh of one dimension.

        Collective over the group.

        Raises:
            TilelinkError: TL454 it is no group, TL455 this rank is not in it.
        """
        given = groups.process_group(group)
        return self if tuple(dist.get_process_group_ranks(given)) == self.members else self._part(given)

    def grid(self, group: Any) -> Grid | None:
        """The axes of a DeviceMesh of several dimensions, by its names in upper case."""
        return groups.grid_of_mesh(group, self.members)

    def laid_out(self, grid: Grid) -> Self:
        """This world with its ranks along several axes, the last one of neighbours.

        Raises:
            TilelinkError: TL457, there are more or fewer ranks.
        """
        return laid_out(self, self.topology, grid, self._reach_along)

    def agree(self, value: Any) -> list[Any]:
        """Collective, on the host: every rank's `value`, which must be picklable, by rank."""
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value, group=self.group)
        return values

    def _reach_along(self, line: tuple[int, ...]) -> str:
        """How some ranks reach one another."""
        del line
        return self.topology.reach

    @abstractmethod
    def _part(self, group: dist.ProcessGroup) -> ProcessWorld:
        """A world of the same kind for the ranks of `group`."""
