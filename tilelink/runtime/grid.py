"""Ranks laid out along several axes: the shape that operators with such axes run on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilelink.errors import TilelinkError
from tilelink.ir.topology import RankAxis, Topology

AS = " as "
"""In a backend's name, between that of its ranks and the axes that they are laid out along."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What `tilelink.group(axes=…)` gives: axes, the outermost first, with how many ranks along each; and whose ranks, as
    `Backend.within` takes them; None: all."""

    axes: tuple[tuple[str, int], ...]
    group: Any = None


def grid_of(axes: Mapping[str, int], group: Any = None) -> Grid:
    """Raises TL457, these are no axes."""
    if not isinstance(axes, Mapping):
        raise TilelinkError(
            "TL457",
            f"`{axes!r}` names no axes of ranks",
            why="axes are names with the number of ranks along each",
            hint='write for example axes={"NODE": 2, "GPU": 8}',
        )
    for name, size in axes.items():
        if not isinstance(size, int) or size < 1 or not name.isupper() or not name.isidentifier() or name == "R":
            raise TilelinkError(
                "TL457",
                f"`{name}={size!r}` is no axis of ranks",
                why="an axis has an upper-case name, as in signatures, and one rank or more",
                hint='write for example axes={"NODE": 2, "GPU": 8}',
            )
    return Grid(tuple(axes.items()), group)


def laid_out(topology: Topology, grid: Grid, reach: Callable[[Sequence[int]], str]) -> Topology:
    """A topology with its ranks along axes; `reach`: how the ranks of a line reach one another. Raises TL457, there are more or
    fewer ranks."""
    if math.prod(size for _, size in grid.axes) != topology.ranks:
        shown = " x ".join(f"{name}={size}" for name, size in grid.axes)
        raise TilelinkError(
            "TL457",
            f"{topology.ranks} ranks cannot be laid out as {shown}",
            why="every place of the grid is one rank",
            hint="let the sizes of the axes multiply to the number of ranks",
        )
    plain = replace(topology, axes=tuple(RankAxis(name, size) for name, size in grid.axes))
    axes = tuple(
        replace(
            a, reach="network" if any(reach(plain.line(r, a.name)) == "network" for r in range(plain.ranks)) else "peer"
        )
        for a in plain.axes
    )
    return replace(plain, axes=axes)


def suffix(topology: Topology) -> str:
    """What a laid-out backend's name ends in; nothing where the ranks have no axes."""
    return AS + ",".join(f"{a.name}={a.size}" for a in topology.axes) if topology.axes else ""


def parsed(name: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The name of a backend's ranks, and the axes that it ends in."""
    base, _, tail = name.partition(AS)
    pairs = (word.partition("=") for word in tail.split(",") if "=" in word)
    return base, tuple((axis, int(size)) for axis, _, size in pairs)
