"""What the plan may know of the machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along


@dataclass(frozen=True, slots=True)
class Device:
    """`sms` multiprocessors (at most that many workers run at once per kernel), `shared_bytes` per SM, capability as 90."""

    name: str = "simulated"
    sms: int = 16
    shared_bytes: int = 227 * 1024
    copy_engines: int = 2
    capability: int = 90

    @property
    def amd(self) -> bool:
        return self.capability in (94, 95)


@dataclass(frozen=True, slots=True)
class RankAxis:
    """An axis of ranks. `reach`: how the ranks reach one another that differ along this axis only."""

    name: str
    size: int
    reach: str = "peer"


@dataclass(frozen=True, slots=True)
class Topology:
    """`backend`: simulated | peer | nvshmem. `reach`: `peer` (loads and stores reach every rank) or `network` (puts only).
    `shared`: ranks may share GPUs, whose kernels take turns then, so that times mean nothing. `axes`: the shape that the ranks
    are laid out in, where they have one: the last axis is that of neighbours. A *line* is the ranks that differ along one axis
    only; a rank's coordinate on an axis is its number in the line."""

    ranks: int
    backend: str = "simulated"
    reach: str = "peer"
    device: Device = Device()
    axes: tuple[RankAxis, ...] = ()
    shared: bool = False

    @property
    def gpu(self) -> str:
        """What measurements go by: none of shared GPUs is taken for one of whole ones."""
        return f"{self.device.name}, shared" if self.shared else self.device.name

    def axis(self, name: str = RANK_AXIS) -> RankAxis:
        """The axis of this name; `R` is all ranks."""
        found = next((a for a in self.axes if a.name == name), None)
        return RankAxis(RANK_AXIS, self.ranks, self.reach) if found is None else found

    def size(self, name: str = RANK_AXIS) -> int:
        return self.axis(name).size

    def stride(self, name: str = RANK_AXIS) -> int:
        """How much a rank's number grows from one rank of a line to the next."""
        names = [a.name for a in self.axes]
        return math.prod(a.size for a in self.axes[names.index(name) + 1 :]) if name in names else 1

    def at(self, rank: int, name: str = RANK_AXIS) -> int:
        """The coordinate of a rank along an axis."""
        return rank // self.stride(name) % self.size(name)

    def peer(self, rank: int, at: int, name: str = RANK_AXIS) -> int:
        """The rank with coordinate `at` in the line of `rank`."""
        return rank + (at - self.at(rank, name)) * self.stride(name)

    def line(self, rank: int, name: str = RANK_AXIS) -> tuple[int, ...]:
        """The ranks that differ from `rank` along the axis only, itself among them."""
        return tuple(self.peer(rank, at, name) for at in range(self.size(name)))


Tables: TypeAlias = "tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]"
"""By name, for each rank the positions of its tiles."""


def env_of(sizes: Mapping[str, int], topology: Topology, rank: F.Number, tables: Tables = ()) -> dict[str, F.Number]:
    """Sizes, and what formulas call a rank's coordinates on the axes of ranks and the lengths of these; `rank`: one, or an
    array of several; `tables`: of which it has rows, if it is one."""
    values: dict[str, F.Number] = {**sizes}
    for axis in (RANK_AXIS, *(a.name for a in topology.axes)):
        size = topology.size(axis)
        values[rank_along(axis).name] = rank // topology.stride(axis) % size
        values[ranks_along(axis).name] = size
    rows = {name: np.asarray(found[int(rank)], dtype=np.int64) for name, found in tables}
    return {**values, **rows}
