"""The tensors of an operator: every rank's instance, who wrote which element, and where a position lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GIVEN = -1
"""Who wrote what an argument holds."""


@dataclass(frozen=True)
class Ranks:
    """How many along each axis of ranks, the outermost first."""

    sizes: Mapping[str, int]

    @property
    def count(self) -> int:
        return int(np.prod([*self.sizes.values()]))

    def at(self, rank: int, axis: str) -> int:
        """A rank's coordinate."""
        return int(np.unravel_index(rank, tuple(self.sizes.values()))[[*self.sizes].index(axis)])

    def line(self, rank: int, axis: str) -> list[int]:
        """Those that differ along one axis only, in order."""
        others = [a for a in self.sizes if a != axis]
        return [r for r in range(self.count) if all(self.at(r, a) == self.at(rank, a) for a in others)]


class Coordinate(int):
    """A rank's place on an axis of ranks: sums and differences wrap."""

    ranks: int

    @staticmethod
    def of(value: int, ranks: int) -> Coordinate:
        made = Coordinate(value % ranks)
        made.ranks = ranks
        return made

    def __add__(self, other: Any) -> Any:
        return Coordinate.of(int(self) + other, self.ranks) if isinstance(other, int) else int(self) + other

    def __sub__(self, other: Any) -> Any:
        return Coordinate.of(int(self) - other, self.ranks) if isinstance(other, int) else int(self) - other


@dataclass(frozen=True)
class Extent:
    """An axis of a tensor: all of its elements, and the axis of ranks that they are split over. `own`: a rank's slice, which no
    instance has an axis for; `ranks`: a slice for each."""

    size: int
    over: str | None = None
    own: bool = False
    ranks: bool = False

    def part(self, ranks: Ranks) -> int:
        return max(1, -(-self.size // ranks.sizes[self.over])) if self.over is not None else self.size

    def here(self, ranks: Ranks, rank: int) -> int:
        """Elements that a rank holds."""
        if self.over is None:
            return self.size
        part = self.part(ranks)
        return max(0, min(self.size - ranks.at(rank, self.over) * part, part))


@dataclass
class Instance:
    """Of one rank. `writer`: the run that wrote an element, 0 if none; `told`: the number of the notify that released it;
    `perhaps`: whether a mask that data makes decided about it."""

    values: Any
    writer: Any
    told: Any
    perhaps: Any

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: str) -> Instance:
        values = np.full(shape, -1, np.int64) if dtype.startswith("i") else np.full(shape, np.nan)
        return Instance(values, np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, bool))


@dataclass(eq=False)
class Memory:
    """`by_data`: data decides where somebody writes, or whether."""

    name: str
    axes: tuple[Extent, ...]
    dtype: str
    instances: list[Instance]
    given: bool = False
    owner: str | None = None
    contract: str | None = None
    by_data: bool = False
    notified: bool = False
    waited: bool = False
    names: set[str] = field(default_factory=set[str])
    """What programs call it."""

    @staticmethod
    def of(name: str, axes: tuple[Extent, ...], dtype: str, ranks: Ranks, **more: Any) -> Memory:
        shapes = [tuple(a.here(ranks, r) for a in axes if not a.own) for r in range(ranks.count)]
        return Memory(name, axes, dtype, [Instance.empty(s, dtype) for s in shapes], **more)

    def size(self, name: str) -> int:
        raise Unjudged(f"size({name!r}) of a symbolic tensor")


class Unjudged(Exception):
    """Something that this reading of the language has no meaning for."""


@dataclass(frozen=True)
class View:
    """One axis of a parameter. `kind`: own | ranks | split (positions count over all ranks) | plain; `at`: the axis of an
    instance."""

    kind: str
    size: int
    part: int
    at: int | None
    over: str | None
    owner: str | None = None

    def holder(self, position: Any, ranks: Ranks) -> Any:
        """Coordinates of the ranks that hold positions, along the axis of ranks."""
        if self.owner is not None:
            names, _, text = self.owner.partition("->")
            spelled = {n.strip(): position for n in names.split(",")}
            return eval(text, {"R": ranks.sizes[str(self.over)]}, spelled)
        return position // self.part if self.kind == "split" else position

    def locate(self, position: Any, rank: int, ranks: Ranks) -> tuple[Any, Any]:
        """Whether a rank holds positions, and where in its instance."""
        if self.kind == "own":
            return position % self.size == ranks.at(rank, str(self.over)), None
        if self.kind == "ranks":
            return np.ones_like(position, bool), position % self.size
        inside = (position >= 0) & (position < self.size)
        if self.kind == "plain" and self.owner is None:
            return inside, position
        mine = self.holder(position, ranks) == ranks.at(rank, str(self.over))
        begin = 0 if self.owner is not None else ranks.at(rank, str(self.over)) * self.part
        return inside & mine, position - begin


@dataclass(eq=False)
class Param:
    """A parameter of a step on one rank: a tensor, and how its axes are seen."""

    name: str
    memory: Memory
    views: tuple[View, ...]
    rank: int
    ranks: Ranks
    line: list[int]
    units: tuple[bool, ...]
    dims: tuple[str, ...]
    tables: tuple[str | None, ...] = ()
    """Of each axis, the parameter that says where its segments begin and end."""
    segments: dict[int, Any] = field(default_factory=dict[int, Any])

    @property
    def dtype(self) -> str:
        return self.memory.dtype

    def places(self, grid: tuple[Any, ...], where: Any, rank: int) -> tuple[Instance, Any, tuple[Any, ...]]:
        """Of a block of positions: a rank's instance, which of them it holds, and their indices there, of those alone."""
        instance, held, index = self.memory.instances[rank], where, list[tuple[int, Any]]()
        for view, position in zip(self.views, grid, strict=True):
            mine, at = view.locate(position, rank, self.ranks)
            held = held & mine
            if view.at is not None:
                held = held & (at < instance.values.shape[view.at])  # the last ranks have fewer
                index.append((view.at, at))
        shape = np.broadcast_shapes(np.shape(held), *(np.shape(g) for g in grid))
        held = np.broadcast_to(held, shape)
        spread = [np.broadcast_to(at, shape)[held] for _, at in sorted(index, key=lambda i: i[0])]
        return instance, held, tuple(spread)

    def everywhere(self, grid: tuple[Any, ...]) -> Iterator[tuple[Instance, tuple[Any, ...]]]:
        """Where positions lie, on each rank of the line that holds any."""
        for rank in self.line:
            instance, held, index = self.places(grid, np.bool_(True), rank)
            if held.any():
                yield instance, index
