"""How axes are split: over the ranks, and into tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along
from tilelink.ir.wiring import TensorDecl, ViewAxis

RANK = rank_along()


def part(size: F.Like, over: str | None = RANK_AXIS) -> Formula:
    """Elements per rank of an axis that is split over the ranks of axis `over`: ceil(size / ranks), and never 0, since positions
    are divided by it."""
    return F.maximum(F.cdiv(size, ranks_along(over or RANK_AXIS)), 1)


def here(size: F.Like, rank: F.Like | None = None, over: str | None = RANK_AXIS) -> Formula:
    """Elements of a split axis that rank `rank` holds, this one if none is named: the last ranks get what is left, perhaps
    nothing."""
    p = part(size, over)
    at = rank_along(over or RANK_AXIS) if rank is None else F.of(rank)
    return F.maximum(F.minimum(F.of(size) - at * p, p), 0)


def extent(tensor: TensorDecl, v: ViewAxis, along: str) -> Formula:
    """Positions that a program sees on a view axis, in its own coordinates; `along`: its axis of ranks."""
    if v.axis is None:
        return ranks_along(along)
    of = tensor.axes[v.axis]
    return here(of.size, over=of.over) if v.local else of.size


def pieces(size: Formula, length: Formula, per: Formula, over: str = RANK_AXIS) -> Formula:
    """Pieces of `length` elements of an axis that also end where ranks' parts do, `per` of a whole part: the last parts have
    fewer, perhaps none."""
    return size // part(size, over) * per + F.cdiv(size % part(size, over), length)


def holder(tensor: TensorDecl, axis: int, at: F.Like) -> Formula:
    """f_R: the rank that holds position `at` of an axis, by the tensor's owner map, else by its shape."""
    if tensor.owner_map is not None and axis == tensor.owned:
        return F.substitute(tensor.owner_map.formula, dict.fromkeys(tensor.owner_map.variables, at))
    of = tensor.axes[axis]
    return F.of(at) if of.own_slice else F.of(at) // part(of.size, of.over)


@dataclass(frozen=True, slots=True)
class GridAxis:
    """A one-axis partition into tiles, in closed form.

    `kind`: `plain` (from 0 to `size`), `cut` (ends at every rank's border too), `mine` (this rank's part only, in global
    positions), `unit` (one position at a time), `own` (this rank's coordinate), `table` (ends where the offsets table
    `table` says). `tile`: elements, None for the whole axis (or the whole part). `ring`: the part length along which the
    tiles belong to ranks, if they do. `over`: the axis of those ranks, the step's.
    """

    dim: str
    kind: str
    size: Formula
    tile: int | None
    var: str | None = None
    ring: Formula | None = None
    table: str | None = None
    over: str = RANK_AXIS

    @property
    def own(self) -> bool:
        """Whether it is this rank's coordinate, which no tile walks."""
        return self.kind == "own"

    @property
    def by_parts(self) -> bool:
        """Whether tiles end where ranks' parts do, and go through all of these."""
        return self.kind == "cut"

    @property
    def unit(self) -> bool:
        """Whether its tiles are single positions."""
        return self.kind in ("unit", "own")

    @property
    def part(self) -> Formula:
        return part(self.size, self.over)

    @property
    def rank(self) -> Formula:
        return rank_along(self.over)

    @property
    def step(self) -> Formula:
        """Elements from one tile's begin to the next's."""
        if self.unit:
            return F.of(1)
        if self.tile is not None:
            return F.of(self.tile)
        return self.part if self.kind in ("cut", "mine") else F.maximum(self.size, 1)

    @property
    def per(self) -> Formula:
        """Tiles of one whole part (`cut`)."""
        return F.cdiv(self.part, self.step)

    @property
    def count(self) -> Formula:
        """Number of tiles on this rank."""
        if self.kind == "own":
            return F.of(1)
        if self.kind == "unit":
            return self.size
        if self.kind == "table":
            return Sym(f"{self.table}_tiles")
        if self.kind == "cut":
            return pieces(self.size, self.step, self.per, self.over)
        if self.kind == "mine":
            return F.cdiv(here(self.size, over=self.over), self.step)
        if self.tile is not None:
            return F.cdiv(self.size, self.step)
        # A whole axis is one tile; of the ranks' parts, the last may be empty, and then there is none.
        return F.of(1) if isinstance(self.size, (F.Const, Sym)) else F.minimum(self.size, 1)

    @property
    def span(self) -> tuple[Formula, Formula]:
        """From where to where its tiles go."""
        if self.kind == "mine":
            return self.rank * self.part, F.minimum(self.rank * self.part + self.part, self.size)
        return F.of(0), self.size

    @property
    def ends(self) -> Literal["axis", "part", "anywhere"]:
        """Where a tile that is shorter than the others may end: with the axis, or with a rank's part of it."""
        return "axis" if self.kind == "plain" else "part" if self.kind in ("cut", "mine") else "anywhere"

    @property
    def free(self) -> GridAxis:
        """Tiles of that length that begin anywhere."""
        return replace(self, kind="unit" if self.unit else "free")

    def begin(self, index: F.Like) -> Formula:
        """First position of tile `index`."""
        i = F.of(index)
        if self.kind == "own":
            return self.rank
        if self.kind == "cut":
            return i // self.per * self.part + i % self.per * self.step
        if self.kind == "mine":
            return self.rank * self.part + i * self.step
        if self.kind == "plain" and self.tile is None:
            return F.of(0)
        return i * self.step

    def limit(self, index: F.Like) -> Formula:
        """The border that tile `index` does not cross."""
        if self.kind == "cut":
            return F.minimum(F.of(index) // self.per * self.part + self.part, self.size)
        if self.kind == "mine":
            return F.minimum(self.rank * self.part + self.part, self.size)
        return self.size

    def end(self, index: F.Like) -> Formula:
        """One past the last position of tile `index`."""
        if self.unit:
            return self.begin(index) + 1
        return F.minimum(self.begin(index) + self.step, self.limit(index))
