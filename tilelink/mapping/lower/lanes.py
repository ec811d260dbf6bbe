"""Positions along an axis, and the elements of a block one by one: masks and vectors of positions as formulas of the lane that
each element is in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Binary, Formula, Sym
from tilelink.ir.lowered import Data, For, Op
from tilelink.ir.partition import GridAxis, extent
from tilelink.ir.program import At, Bounds, Expr, Gather, IndexEntry

if TYPE_CHECKING:
    from tilelink.mapping.lower.frame import Frame

AXES = 2
"""Axes of a block that are looked at element by element, counted from the last."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Positions along one axis, as the program counts them. `grid`: of the partition whose tile it is, if it is one; `whole`: the
    index leaves the axis whole."""

    begin: Formula
    end: Formula
    by_data: Data | None = None
    grid: GridAxis | None = None
    whole: bool = False
    subtiles: int = 1

    @property
    def block(self) -> Formula:
        """How many elements a block of it has, those past its end included."""
        return self.end - self.begin if self.grid is None else self.grid.step // self.subtiles


@dataclass(slots=True)
class Lanes:
    """Of one access. `lengths`: of the axes of its block whose elements a formula tells apart, the last being 1: how many."""

    frame: Frame
    name: str = "lane"
    lengths: dict[int, Formula] = field(default_factory=dict[int, Formula])

    def var(self, back: int) -> str:
        return self.frame.unique(f"{self.name}{back}")

    def mask(self, mask: Expr | None, loc: Loc | None) -> tuple[list[Formula], Data | None]:
        """What has to hold of an element, and what data decides beyond that."""
        if mask is None or self.frame.by_name:
            return [], None
        found = self._asked(mask.formula, 1)
        by_data = Data(f"the mask `{mask}`", loc) if found is None else None
        found = self._asked(mask.only_if, 1) if found is None else found
        return [] if found is None else [F.truth(found)], by_data

    def one(self, entry: IndexEntry) -> Formula | None:
        """An element of a vector of positions."""
        return self._asked(entry.expr.formula, 1) if isinstance(entry, Gather) else None

    def along(self, tile: Interval, entry: IndexEntry, back: int) -> Interval:
        """The positions of the access along an axis of the block, of one element where elements are told apart."""
        if isinstance(entry, Gather) and not self.frame.by_name:
            at = self._asked(entry.expr.formula, back) if back <= AXES else None
            return tile if at is None else Interval(at, at + 1)
        if isinstance(entry, At | Gather) or back not in self.lengths or tile.by_data:
            return tile
        at = tile.begin + Sym(self.var(back))
        self.lengths[back] = F.minimum(self.lengths[back], tile.end - tile.begin)
        return replace(tile, begin=at, end=at + 1)

    def each(self, body: tuple[Op, ...]) -> tuple[Op, ...]:
        """The access of each element."""
        for back in sorted(self.lengths):
            body = (For(self.var(back), self.lengths[back], body),) if body else ()
        return body

    def _asked(self, formula: Formula | None, back: int) -> Formula | None:
        """None, and no lanes, if it is not known, or two vectors along one axis have different lengths."""
        before = dict(self.lengths)
        found = None if formula is None else self._one(formula, back)
        if found is None:
            self.lengths = before
        return found

    def _one(self, f: Formula, back: int) -> Formula | None:
        if isinstance(f, Sym):
            if f.name in self.frame.vectors:
                return self._named(self.frame.vectors[f.name], back)
            return F.of(self.frame.names[f.name]) if f.name in self.frame.names else None
        if not isinstance(f, Binary):
            return f
        if f.op == "column":
            return self._one(f.left, AXES + 1 - back)
        if f.op == "arange":
            first, last = self._one(f.left, back), self._one(f.right, back)
            return None if first is None or last is None else self._lane(first, last - first, back)
        left, right = self._one(f.left, back), self._one(f.right, back)
        return None if left is None or right is None else F.binary(f.op, left, right)

    def _named(self, op: Bounds, back: int) -> Formula | None:
        """An element of `tl.tile_range` or of `tl.tile_mask`."""
        frame = self.frame
        if op.var is None:
            view = frame.step.step.binding(op.param).view
            tile = Interval(F.of(0), extent(frame.tensor(op.param), view[op.axis or 0], frame.step.axis))
        else:
            tile = frame.tiles.get(op.var)
        if tile is None or tile.by_data:
            return None  # data says which they are
        place = self._lane(tile.begin, tile.block, back)
        if place is None or op.what == "range":
            return place
        inside = F.binary("<", place, tile.end)
        for limit, comparison in ((op.start, ">="), (op.stop, "<")):
            if limit is not None:
                asked = None if limit.formula is None else self._one(limit.formula, AXES + 1 - back)
                if asked is None:
                    return None
                inside = F.binary("and", inside, F.binary(comparison, place, asked))
        return inside

    def _lane(self, first: Formula, length: Formula, back: int) -> Formula | None:
        if self.lengths.setdefault(back, length) != length:
            return None
        return first + Sym(self.var(back))
