"""How axes are split: over the ranks, into tiles, and into what the flags of a tensor stand for (f_C, paper section 4)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along


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


class _Pieces(ABC):
    """An axis of `size` elements in pieces of `step`: of the whole axis, or of the parts that the ranks along `over` have of it,
    `per` of a whole one: of all parts (`cut`), or of this rank's."""

    __slots__ = ()
    kind: str
    size: Formula
    over: str

    @property
    @abstractmethod
    def step(self) -> Formula: ...

    @property
    def per(self) -> Formula:
        return F.cdiv(self.part, self.step)

    @property
    def own_part(self) -> bool:
        """Whether they go through this rank's part only."""
        return self.kind in ("mine", "part")

    @property
    def part(self) -> Formula:
        return part(self.size, self.over)

    @property
    def rank(self) -> Formula:
        return rank_along(self.over)

    @property
    def ranks(self) -> Formula:
        return ranks_along(self.over)

    @property
    def own(self) -> Formula:
        """How many this rank's part has."""
        return F.cdiv(here(self.size, over=self.over), self.step)

    @property
    def filled(self) -> Formula:
        """How many have positions: the last parts have fewer, perhaps none."""
        if self.kind == "cut":
            return self.size // self.part * self.per + F.cdiv(self.size % self.part, self.step)
        return self.own if self.own_part else F.cdiv(self.size, self.step)

    def begin(self, index: F.Like) -> Formula:
        """First position of piece `index`."""
        i = F.of(index)
        if self.kind == "cut":
            return i // self.per * self.part + i % self.per * self.step
        return (self.rank * self.part if self.own_part else F.of(0)) + i * self.step


@dataclass(frozen=True, slots=True)
class GridAxis(_Pieces):
    """A one-axis partition into tiles, in closed form. `kind`: `plain` (from 0 to `size`), `cut` (ends at every rank's border
    too), `mine` (this rank's part only, in global positions), `unit` (one position at a time), `own` (this rank's coordinate),
    `table` (ends where the offsets table `table` says). `tile`: elements, None for the whole axis (or the whole part).
    `shared`: some program of the operator splits the axis over the ranks, along which its tiles may then be taken. `over`: the
    axis of those ranks, the step's."""

    dim: str
    kind: str
    size: Formula
    tile: int | None
    var: str | None = None
    shared: bool = False
    table: str | None = None
    over: str = RANK_AXIS

    @property
    def by_parts(self) -> bool:
        """Whether tiles end where ranks' parts do, and go through all of these."""
        return self.kind == "cut"

    @property
    def coordinate(self) -> bool:
        """Whether there is one position: this rank's."""
        return self.kind == "own"

    @property
    def unit(self) -> bool:
        return self.kind in ("unit", "own")

    @property
    def step(self) -> Formula:
        """Elements from one tile's begin to the next's."""
        if self.unit:
            return F.of(1)
        if self.tile is not None:
            return F.of(self.tile)
        return self.part if self.kind in ("cut", "mine") else F.maximum(self.size, 1)

    @property
    def count(self) -> Formula:
        """Number of tiles on this rank."""
        if self.kind == "own":
            return F.of(1)
        if self.kind == "table":
            return Sym(f"{self.table}_tiles")
        if self.tile is not None or self.kind not in ("plain", "free"):
            return self.filled
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
        if self.kind == "own":
            return self.rank
        return F.of(0) if self.kind == "plain" and self.tile is None else _Pieces.begin(self, index)

    def limit(self, index: F.Like) -> Formula:
        """The border that tile `index` does not cross."""
        if self.kind == "cut":
            return F.minimum(F.of(index) // self.per * self.part + self.part, self.size)
        return self.span[1]

    def end(self, index: F.Like) -> Formula:
        """One past the last position of tile `index`."""
        if self.unit:
            return self.begin(index) + 1
        return F.minimum(self.begin(index) + self.step, self.limit(index))


@dataclass(frozen=True, slots=True)
class ChannelAxis(_Pieces):
    """One axis of a tensor's flags. `axis`: the tensor's axis, or None for the axis of source ranks. `kind`: `unit` (one flag
    per position or rank), `plain` (per `span` elements), `cut` (per `span` elements inside each rank's part), `part` (the same
    inside the one part that the flags' rank holds). `over`: the axis of the ranks whose parts they are, or which are the
    sources. `every`: of source ranks, all of which write one instance: a wait that names no peer looks at the flags of all of
    them."""

    axis: int | None
    kind: str
    size: Formula
    span: int | None
    """None: one flag for a whole part, whatever its length."""
    over: str = RANK_AXIS
    every: bool = False

    @property
    def within(self) -> Literal["position", "axis", "parts", "own part"]:
        """What each flag stands for a piece of; `position`: for one of these."""
        found: dict[str, Any] = {"unit": "position", "plain": "axis", "cut": "parts", "part": "own part"}
        return found[self.kind]

    @property
    def step(self) -> Formula:
        """Elements per flag."""
        return self.part if self.span is None else F.of(self.span)

    @property
    def per(self) -> Formula:
        """Flags of one part."""
        return F.of(1) if self.span is None else F.cdiv(self.part, self.span)

    @property
    def count(self) -> Formula:
        if self.kind == "cut":
            return self.per * self.ranks
        return self.per if self.own_part else self.filled

    def first(self, *, local: bool) -> Formula:
        """The position that a program counts from; `local`: from the first of its rank's part."""
        return self.rank * self.part if self.kind == "cut" and local else F.of(0)

    def index(self, at: F.Like) -> Formula:
        """The flag of position `at`."""
        a = F.of(at)
        if self.kind == "unit":
            return a
        if self.kind == "plain":
            return a // self.step
        within = F.of(0) if self.span is None else a % self.part // self.span
        return a // self.part * self.per + within if self.kind == "cut" else within

    def holds(self, grid: GridAxis) -> bool:
        """Whether a tile of `grid` can only lie in one flag (`free`, or by a table: it may begin anywhere)."""
        if grid.unit:
            return True
        if grid.kind in ("free", "table"):
            return self.kind == "plain" and self.span is None
        # Flags end only where tiles do, counted from the same begin.
        aligned = self.span is None or (grid.tile is not None and self.span % grid.tile == 0)
        if grid.kind in ("cut", "mine"):
            return self.kind in ("cut", "part") and self.over == grid.over and aligned
        # Positions counted from the part's own begin: the flags of that part are aligned to them.
        local = self.kind == "part" and grid.kind == "plain" and grid.size != self.size
        return grid.tile is not None and aligned and (self.kind == "plain" or local)

    def interval(self, c: F.Like) -> tuple[Formula, Formula]:
        """Positions `[lo, hi)` of flag `c`; empty where the rank's part ends before it."""
        i, begin = F.of(c), self.begin(c)
        if self.kind == "unit":
            return begin, begin + 1
        if self.kind == "plain":
            return begin, F.minimum(begin + self.step, self.size)
        rank, within = (i // self.per, i % self.per) if self.kind == "cut" else (self.rank, i)
        end = F.minimum(within * self.step + self.step, here(self.size, rank, self.over))
        return begin, rank * self.part + end


@dataclass(frozen=True, slots=True)
class Channel:
    """The flags of one tensor, which go by its name: how many, which flag a position has, how often each is raised in a call.
    `target`: notifies per call of flag (`c0`, `c1`, …), at the rank that holds the flags; 0: it is not raised. `adds`: each
    notify adds 1; else it sets the epoch. `scope`: gpu (one rank's own counters) | sys. `doorbells`: a stream waits for workers
    of its own rank: whoever completes a flag rings its doorbell (`beside` the flags); where streams alone wait, doorbells count
    the notifies themselves, and there are neither flags nor totals (`alone`). `joined`: a table splits the tensor at
    run time: how many tiles that makes is known on the device only, so they are counted where they are made, and the last one
    notifies for all, `target` at once."""

    tensor: str
    axes: tuple[ChannelAxis, ...]
    target: Formula
    adds: bool
    scope: str
    doorbells: Literal["", "beside", "alone"] = ""
    rings: Formula | None = None
    """Of a channel with doorbells, flags whose doorbell is rung and waited for where this is not 0: a stream does not
    wait for what stays on its rank. None: all."""
    joined: bool = False

    def whose(self, along: str) -> ChannelAxis | None:
        """The axis whose parts say which rank along an axis of ranks has these flags: the only one that hears of a tile."""
        return next((a for a in self.axes if a.kind == "part" and a.axis is not None and a.over == along), None)

    @property
    def flags(self) -> Formula:
        return math.prod((a.count for a in self.axes), start=F.of(1))

    def flat(self, indices: tuple[F.Like, ...]) -> Formula:
        """The flag's number, row-major."""
        out: Formula = F.of(0)
        for a, i in zip(self.axes, indices, strict=True):
            out = out * a.count + F.of(i)
        return out

    def at(self, flag: F.Number, env: Mapping[str, F.Number]) -> dict[str, F.Number]:
        """What symbols of `target` and `rings` stand for at a flag, or at many."""
        known = {**env, "flag": flag}
        return {**env, **{f"c{k}": F.evaluate(index, known) for k, index in enumerate(self.indices(Sym("flag")))}}

    def indices(self, flag: F.Like) -> tuple[Formula, ...]:
        """The flag's index per axis, of its number: what `c0`, `c1`, … stand for."""
        out: list[Formula] = []
        behind: Formula = F.of(1)
        for k in reversed(range(len(self.axes))):
            index = F.of(flag) // behind
            out.insert(0, index if k == 0 else index % self.axes[k].count)
            behind = behind * self.axes[k].count
        return tuple(out)
