"""The flags of a tensor: which of them stands for what, and how often it is raised (f_C, paper section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula, Sym
from tilelink.ir.partition import GridAxis, here, part, pieces
from tilelink.ir.shape import RANK_AXIS, rank_along, ranks_along


@dataclass(frozen=True, slots=True)
class ChannelAxis:
    """One axis of a tensor's flags (f_C, paper section 4).

    `axis`: the tensor's axis, or None for the axis of source ranks. `kind`: `unit` (one flag per position or rank),
    `plain` (per `span` elements), `cut` (per `span` elements inside each rank's part), `part` (the same inside the one
    part that the flags' rank holds). `over`: the axis of the ranks whose parts they are, or which are the sources.
    `every`: of source ranks, all of which write one instance: a wait that names no peer looks at the flags of all of them.
    """

    axis: int | None
    kind: str
    size: Formula
    span: int | None
    """None: one flag for a whole part, whatever its length."""
    over: str = RANK_AXIS
    every: bool = False

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
    def length(self) -> Formula:
        """Elements per flag."""
        return self.part if self.span is None else F.of(self.span)

    @property
    def per(self) -> Formula:
        """Flags of one part."""
        return F.of(1) if self.span is None else F.cdiv(self.part, self.span)

    @property
    def count(self) -> Formula:
        if self.kind == "unit":
            return self.size
        if self.kind == "plain":
            return F.cdiv(self.size, self.length)
        return self.per * self.ranks if self.kind == "cut" else self.per

    @property
    def filled(self) -> Formula:
        """Flags that stand for positions: parts that end early lack the last ones."""
        if self.kind not in ("cut", "part"):
            return self.count
        if self.kind == "part":
            return F.cdiv(here(self.size, over=self.over), self.length)
        return pieces(self.size, self.length, self.per, self.over)

    def first(self, *, local: bool) -> Formula:
        """The position that a program counts from; `local`: from the first of its rank's part."""
        return self.rank * self.part if self.kind == "cut" and local else F.of(0)

    def index(self, at: F.Like) -> Formula:
        """The flag of position `at`."""
        a = F.of(at)
        if self.kind == "unit":
            return a
        if self.kind == "plain":
            return a // self.length
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
        i = F.of(c)
        if self.kind == "unit":
            return i, i + 1
        if self.kind == "plain":
            return i * self.length, F.minimum(i * self.length + self.length, self.size)
        rank = i // self.per if self.kind == "cut" else self.rank
        within = i % self.per if self.kind == "cut" else i
        base = rank * self.part
        end = F.minimum(within * self.length + self.length, here(self.size, rank, self.over))
        return base + within * self.length, base + end


@dataclass(frozen=True, slots=True)
class Channel:
    """The flags of one tensor: how many, which flag a position has, how often each is raised in a call.

    `target`: notifies per call of flag (`c0`, `c1`, …), at the rank that holds the flags; 0: it is
    not raised. `adds`: each notify adds 1; else it sets the epoch. `scope`: gpu (one rank's own counters) | sys.
    `doorbells`: a stream waits for workers of its own rank: whoever completes a flag rings its doorbell. `joined`: the offsets
    table that splits the tensor at run time: how many tiles that makes is known on the device only, so they are counted
    where they are made, and the last one notifies for all, `target` at once.
    """

    name: str
    tensor: str
    axes: tuple[ChannelAxis, ...]
    target: Formula
    adds: bool
    scope: str
    doorbells: bool = False
    rings: Formula | None = None
    """Of a channel with doorbells, flags whose doorbell is rung and waited for where this is not 0: a stream does not
    wait for what stays on its rank. None: all."""
    counted: bool = False
    """Streams alone wait for it: its doorbells count the notifies themselves, and there are neither flags nor totals."""
    joined: str | None = None

    def whose(self, along: str) -> ChannelAxis | None:
        """The axis whose parts say which rank along an axis of ranks has these flags: the only one that hears of a tile."""
        return next((a for a in self.axes if a.kind == "part" and a.axis is not None and a.over == along), None)

    @property
    def flags(self) -> Formula:
        total: Formula = F.of(1)
        for a in self.axes:
            total = total * a.count
        return total

    def flat(self, indices: tuple[F.Like, ...]) -> Formula:
        """The flag's number, row-major."""
        out: Formula = F.of(0)
        for a, i in zip(self.axes, indices, strict=True):
            out = out * a.count + F.of(i)
        return out

    def rung(self, flag: int, env: Mapping[str, F.Number]) -> bool:
        """Whether the doorbell of a flag is rung, on the rank that `env` is of."""
        if self.rings is None:
            return True
        return bool(F.evaluate(self.rings, self.at(flag, env)))

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
