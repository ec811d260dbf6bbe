"""A store, load or move in every turn: integers as arrays with one axis per rank, per axis of the tiles and per loop around it.

The last two axes are the lanes of a block: of a vector the last, of a block of rows and columns the last but one and the last.
An array is as short as it can be along an axis on which it does not depend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.partition import GridAxis, extent
from tilelink.ir.program import Bounds, Expr, Holder, Loop, OfTile, Raw, Tiles, walk
from tilelink.mapping.sites import Site
from tilelink.mapping.verify.reach import Key, Laid

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
LANES = 2
"""Axes of a block that are looked at element by element."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Something that data decides: whether an op is executed, how often, or where."""

    what: str
    loc: Loc


@dataclass(slots=True)
class Turns:
    """`spans`: begin and end of the tiles, by axis of the domain and by loop variable; a tile that a table places has none.
    `taken`: what all has to hold for a turn to be taken. `undecided`: what beyond that data decides."""

    laid: Laid
    site: Site
    names: dict[str, Array] = field(default_factory=dict[str, Array])
    spans: dict[Key, tuple[Array, Array]] = field(default_factory=dict[Key, tuple[Array, Array]])
    block: dict[Key, int] = field(default_factory=dict[Key, int])
    """How many lanes a tile has, those past its end included."""
    taken: list[Array] = field(default_factory=list[Array])
    undecided: list[Undecided] = field(default_factory=list[Undecided])
    by_table: set[Key] = field(default_factory=set[Key])
    vectors: dict[str, Callable[[], Array | None]] = field(default_factory=dict[str, "Callable[[], Array | None]"])
    """Names of positions, lane by lane, which are worked out for who asks."""

    @property
    def dims(self) -> int:
        return 1 + len(self.laid.step.grid) + len(self.site.loops) + LANES

    def column(self, values: Any) -> Array:
        """One value for each rank, or for all."""
        found = np.asarray(values)
        return found.reshape((found.size,) + (1,) * (self.dims - 1))

    def along(self, values: Any, axis: int) -> Array:
        """Rows by rank, columns along an axis of the frame."""
        found = np.asarray(values)
        shape = [1] * self.dims
        shape[0], shape[axis] = found.shape
        return found.reshape(shape)

    def lanes(self, length: int) -> Array:
        """The numbers of a vector's elements."""
        return np.arange(length, dtype=np.int64).reshape((1,) * (self.dims - 1) + (length,))

    def value(self, formula: Formula | None) -> Array | None:
        """None: data decides it."""
        if formula is None:
            return None
        named = F.symbols(formula) - {"RANKS"}
        for name in named & self.vectors.keys():
            found = self.vectors.pop(name)()
            if found is not None:
                self.names[name] = found
        if not named <= self.names.keys():
            return None
        found = np.asarray(F.evaluate(formula, {**self.names, "RANKS": self.laid.world.along(self.laid.step.axis)}))
        return found.reshape((1,) * (self.dims - found.ndim) + found.shape)

    def test(self, test: Expr, branch: bool = True) -> Array | None:
        found = self.value(F.truth(test.formula) if test.formula is not None else None)
        return None if found is None else (found != 0) == branch

    def size(self, formula: Formula) -> Array:
        return self.column(self.laid.world.value(formula))

    @property
    def here(self) -> Array:
        """Each rank's coordinate on the step's axis of ranks."""
        return self.column(self.laid.at)


def turns(laid: Laid, site: Site) -> Turns:
    """All turns of an op."""
    out = Turns(laid, site)
    for name, value in laid.step.step.compiled.items():
        out.names[name] = out.column([value])
    for a, g in enumerate(laid.step.grid):
        _domain(out, a, g)
    for op in walk(laid.step.step.program.body):
        if isinstance(op, Tiles) and op in site.loops:
            _tiles(out, op, 1 + len(laid.step.grid) + site.loops.index(op))
        elif isinstance(op, Loop) and op in site.loops:
            _loop(out, op, 1 + len(laid.step.grid) + site.loops.index(op))
        elif isinstance(op, Bounds):
            _bounds(out, op)
        elif isinstance(op, Holder):
            _holder(out, op)
        elif isinstance(op, Raw) and op.what == "rank" and op.name is not None:
            out.names[op.name] = out.here
    for test, branch in site.tests:
        found = out.test(test, branch)
        if found is None:
            out.undecided.append(Undecided(f"`if {test}`", site.op.loc))
            needed = out.value(test.only_if) if branch else None
            found = None if needed is None else needed != 0
        if found is not None:
            out.taken.append(found)
    return out


def _domain(out: Turns, a: int, grid: GridAxis) -> None:
    laid = out.laid
    found = laid.spans[a]
    if found is None:
        out.by_table.add(a)
        return
    out.spans[a] = out.along(found.begin, 1 + a), out.along(found.end, 1 + a)
    out.block[a] = laid.world.number(grid.step)
    out.taken.append(out.along(found.real, 1 + a))
    if grid.var is not None and laid.step.step.binding(laid.step.domain).view[a].unit:
        out.names[grid.var] = out.spans[a][0]


def _tiles(out: Turns, op: Tiles, axis: int) -> None:
    laid = out.laid
    view, grid = laid.step.step.binding(op.param).view[op.axis], laid.step.loop(op)
    plain = laid.world.axis(grid)
    if plain is None:
        out.by_table.add(op.var)
        return
    out.block[op.var] = laid.world.number(grid.step)
    if not op.limited:
        begin, end = out.along(plain.begin, axis), out.along(plain.end, axis)
        out.taken.append(out.along(plain.real, axis))
    else:
        limits = _limits(out, op, grid)
        if limits is None:
            out.undecided.append(Undecided(f"from where to where `tl.tiles` walks `{op.param}`", op.loc))
            low, high = _whole(out, grid)
            out.spans[op.var] = low, high
            return
        low, high = limits
        step = 1 if view.unit else laid.world.number(grid.step)
        most = int(np.max((high - low + step - 1) // step, initial=0))
        begin = low + step * out.along(np.arange(max(most, 0), dtype=np.int64)[None, :], axis)
        end = np.minimum(begin + step, high)
        out.taken.append(begin < high)
    out.spans[op.var] = begin, end
    if view.unit:
        out.names[op.var] = begin


def _whole(out: Turns, grid: GridAxis) -> tuple[Array, Array]:
    """First position of an axis, or of this rank's part, and one past its last."""
    if grid.kind == "mine":
        first = grid.rank * grid.part
        return out.size(first), out.size(F.minimum(first + grid.part, grid.size))
    return out.column([0]), out.size(grid.size)


def _limits(out: Turns, op: Tiles, grid: GridAxis) -> tuple[Array, Array] | None:
    """Where a walk of a part of an axis begins and where it stops; None: data says."""
    low, high = _whole(out, grid)
    if op.start is not None:
        start = out.value(op.start.formula)
        if start is None:
            return None
        low = np.maximum(low, start)
    if op.stop is not None and op.stop.text != "None":
        stop = out.value(op.stop.formula)
        if stop is None:
            return None
        high = np.minimum(high, stop)
    if op.part is not None:
        which, parts = (out.value(e.formula) for e in op.part)
        if which is None or parts is None:
            return None
        piece = (np.maximum(high - low, 0) + parts - 1) // np.maximum(parts, 1)
        low = low + which * piece
        high = np.minimum(low + piece, high)
    return low, high


def _loop(out: Turns, op: Loop, axis: int) -> None:
    often = out.value(op.turns)
    if often is None:
        # What the test of a `while` comes to does not change in its body: it is never entered, or it does not end.
        entered = out.test(op.header) if op.target is None else None
        if entered is not None:
            out.taken.append(entered)
        if entered is None or bool(entered.any()):
            out.undecided.append(Undecided(f"how often `{op.header.text}` goes round", op.loc))
        return
    turn = out.along(np.arange(max(int(often.max(initial=0)), 0), dtype=np.int64)[None, :], axis)
    out.taken.append(turn < often)
    if op.target is not None and op.limits is not None:
        begin, _, step = op.limits
        first = out.value(begin)
        assert first is not None  # else nobody knew how often
        out.names[op.target] = first + turn * step


def _bounds(out: Turns, op: Bounds) -> None:
    laid = out.laid
    tensor = laid.tensor(op.param)
    if op.what == "size" and op.axis is not None:
        out.names[op.name] = out.size(extent(tensor, laid.step.step.binding(op.param).view[op.axis], laid.step.axis))
        return
    if op.what == "range" and op.var is None and op.axis is not None:
        size = extent(tensor, laid.step.step.binding(op.param).view[op.axis], laid.step.axis)
        out.names[op.name] = out.lanes(laid.world.number(size))
        return
    key = laid.key(OfTile(op.var)) if op.var is not None else None
    if key is None or key not in out.spans or op.what not in ("begin", "end", "range", "mask"):
        return
    begin, end = out.spans[key]
    if op.what in ("begin", "end"):
        out.names[op.name] = begin if op.what == "begin" else end
        return
    out.names.pop(op.name, None)
    out.vectors[op.name] = lambda: _lanes(out, op, begin, end, out.block[key])


def _lanes(out: Turns, op: Bounds, begin: Array, end: Array, length: int) -> Array | None:
    """The positions of a tile, or which of them are inside its end and the limits of the mask."""
    place = begin + out.lanes(length)
    if op.what == "range":
        return place
    inside = place < end
    for limit, first in ((op.start, True), (op.stop, False)):
        if limit is None:
            continue
        found = out.value(limit.formula)
        if found is None:
            return None
        found = np.swapaxes(found, -1, -2) if limit.vector else found
        inside = inside & (place >= found if first else place < found)
    return inside


def _holder(out: Turns, op: Holder) -> None:
    """`tl.rank_of`: by the first split axis that the program sees as a whole; else it is this rank."""
    laid = out.laid
    tensor = laid.tensor(op.param)
    for view, entry in laid.index(op.param, op.index):
        if view.axis is None or not tensor.names_holder(view):
            continue
        if isinstance(entry, OfTile):
            key = laid.key(entry)
            found = out.spans[key][0] if key is not None and key in out.spans else None
        else:
            found = out.value(getattr(getattr(entry, "expr", None), "formula", None))
        if found is not None:
            out.names[op.name] = laid.world.holders(tensor, view.axis, found)
        return
    out.names[op.name] = out.here
