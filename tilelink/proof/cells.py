"""How often each element of a tensor is touched: boxes counted over cells.

A cell is a stretch between two positions at which any box begins or ends. A count is a product: places that depend on different
axes of the turns are counted apart from one another, and those that all ranks touch alike once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any

MOST = 60_000_000
"""Boxes, or cells, that may be looked at one by one."""

DENSE = 1 << 22
"""Positions along an axis for which a table is quicker than sorting."""


class TooMany(Exception):
    """There are more boxes or cells than can be looked at."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Begin and end along each place, where all of `taken` holds: arrays whose first axis are the ranks that touch them."""

    places: tuple[tuple[Array, Array], ...]
    taken: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class _Factor:
    """Places that have to be counted together, over the axes of the turns on which they depend."""

    places: tuple[int, ...]
    axes: tuple[int, ...]
    taken: tuple[Array, ...]


@dataclass(slots=True)
class Cells:
    """The elements of a tensor as far as the boxes of `all_` tell them apart; `extents`: how many there are along each place."""

    extents: tuple[int, ...]
    ranks: int
    edges: list[Array] = field(default_factory=list[Array])
    numbers: list[Array | None] = field(default_factory=list[Any])
    """The cell that begins at each edge, by position; none of an axis too long for it."""

    @staticmethod
    def of(extents: tuple[int, ...], ranks: int, found: Sequence[Boxes]) -> Cells:
        out = Cells(extents, ranks)
        for k, size in enumerate(extents):
            ends = [within(x, size).ravel() for b in found for x in b.places[k]]
            ends.append(np.array([0, size], dtype=np.int64))
            if size > DENSE:
                out.edges.append(np.unique(np.concatenate(ends)))
                out.numbers.append(None)
                continue
            seen = np.zeros(size + 1, dtype=np.bool_)
            for x in ends:
                seen[x] = True
            out.edges.append(np.flatnonzero(seen))
            out.numbers.append(np.cumsum(seen) - 1)
        return out

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(max(len(e) - 1, 0) for e in self.edges)

    def count(self, boxes: Sequence[Boxes]) -> Array:
        """How many of the boxes hold each cell: one axis per place, of length 1 where the count does not depend on it.

        Raises:
            TooMany: it cannot be worked out.
        """
        parts = [list(_factors(b)) for b in boxes]
        groups = joined([f.places for part in parts for f in part if f.places])
        total = self._zeros((1,) * len(self.shape))
        for b, part in zip(boxes, parts, strict=True):
            for counted in self._products(b, part, groups):
                if np.broadcast_shapes(total.shape, counted.shape) != total.shape:
                    total = total + counted
                else:
                    total += counted
        return total

    def _products(self, b: Boxes, factors: list[_Factor], groups: list[tuple[int, ...]]) -> Iterator[Array]:
        """The count of some boxes, in summands."""
        often = np.ones(1, dtype=np.int64)
        alike: list[Array] = []
        by_rank: list[tuple[tuple[int, ...], list[_Factor]]] = []
        for f in factors:
            if not f.places:  # how often its turns are taken, on each rank
                often = often * reduce(np.logical_and, _flat(f.taken, f.axes)).sum(axis=1)
        for group in groups:
            of = [f for f in factors if f.places and set(f.places) <= set(group)]
            if all(self._rows(b, f) == 1 for f in of):
                alike.append(self._spread([self._table(b, f)[0] for f in of], of))
            else:
                by_rank.append((group, of))
        common = reduce(np.multiply, alike, np.ones((1,) * len(self.shape), dtype=np.int32))
        if not by_rank:
            yield common * int(often.sum() if len(often) > 1 else often[0] * self.ranks)
            return
        if len(by_rank) == 1 and len(by_rank[0][1]) == 1:
            f = by_rank[0][1][0]
            yield common * self._spread([self._table(b, f, summed=np.broadcast_to(often, (self.ranks,)))[0]], [f])
            return
        yield common * self._by_rank(often, [(f, self._table(b, f)) for _, of in by_rank for f in of])

    def _by_rank(self, often: Array, tables: list[tuple[_Factor, Array]]) -> Array:
        """The sum over the ranks of products that differ from rank to rank in several factors."""
        among = {k for f, _ in tables for k in f.places}
        out = self._zeros(tuple(n if k in among else 1 for k, n in enumerate(self.shape)))
        spans = [[_span(table, axis) for axis in range(1, table.ndim)] for _, table in tables]
        for rank in range(self.ranks):
            window = [slice(0, 1)] * out.ndim
            piece = np.full((1,) * out.ndim, often[min(rank, len(often) - 1)], dtype=out.dtype)
            for (f, table), touched in zip(tables, spans, strict=True):
                at = min(rank, len(table) - 1)
                row, shape = table[at], [1] * out.ndim
                for k, (first, end) in zip(f.places, touched, strict=True):
                    window[k] = slice(int(first[at]), int(end[at]))
                    shape[k] = window[k].stop - window[k].start
                piece = piece * row[tuple(window[k] for k in f.places)].reshape(shape)
            out[tuple(window)] += piece
        return out

    def _zeros(self, shape: tuple[int, ...]) -> Array:
        if np.prod(shape, dtype=np.float64) > MOST:
            raise TooMany
        return np.zeros(shape, dtype=np.int32)

    def _rows(self, b: Boxes, f: _Factor) -> int:
        arrays = [*f.taken, *(x for k in f.places for x in b.places[k])]
        return max((a.shape[0] for a in arrays), default=1)

    def _spread(self, tables: list[Array], factors: list[_Factor]) -> Array:
        """The product of counts, each along its places."""
        out = np.ones((1,) * len(self.shape), dtype=np.int32)
        for table, f in zip(tables, factors, strict=True):
            shape = [1] * len(self.shape)
            if table.size and bool((table == table.flat[0]).all()):
                table = table.flat[:1]
            else:
                for k, n in zip(f.places, table.shape, strict=True):
                    shape[k] = n
            if np.prod(np.broadcast_shapes(out.shape, tuple(shape)), dtype=np.float64) > MOST:
                raise TooMany
            out = out * table.reshape(shape)
        return out

    def _table(self, b: Boxes, f: _Factor, summed: Array | None = None) -> Array:
        """(rank or 1, cells…): how many boxes hold each; `summed`: all ranks in one row, so often each."""
        arrays = [x for k in f.places for x in b.places[k]]
        flat = _flat((*f.taken, *arrays), f.axes)
        taken = reduce(np.logical_and, flat[: len(f.taken)], np.ones((1, 1), dtype=np.bool_))
        ends = flat[len(f.taken) :]
        if summed is None and (cells := self._one_cell_each(f.places, ends)) is not None:
            out = self._zeros((self._rows(b, f), len(self.edges[f.places[0]]) - 1))
            out[:, cells] = taken
            return out
        rows = max(self._rows(b, f), 1 if summed is None else self.ranks)
        shape = np.broadcast_shapes(taken.shape, (rows, 1), *(x.shape for x in ends))
        if np.prod(shape, dtype=np.float64) > MOST:
            raise TooMany
        full = np.ones(shape, dtype=np.bool_) & taken
        for lo, hi in zip(ends[::2], ends[1::2], strict=True):
            full &= lo < hi
        row, column = np.nonzero(full)
        cells = [self._cells(k, x, full.shape, row, column) for k, x in zip(np.repeat(f.places, 2), ends, strict=True)]
        weight = None if summed is None else summed[row]
        size = tuple(len(self.edges[k]) for k in f.places)
        at = np.zeros_like(row) if summed is not None else row
        out = self._zeros((1 if summed is not None else rows, *size))
        for corner in product((0, 1), repeat=len(f.places)):
            index = np.ravel_multi_index((at, *(cells[2 * k + side] for k, side in enumerate(corner))), out.shape)
            counts = np.bincount(index, weight, out.size).astype(out.dtype).reshape(out.shape)
            out += counts if sum(corner) % 2 == 0 else -counts
        for axis in range(1, out.ndim):
            np.cumsum(out, axis=axis, out=out)
        return out[(slice(None), *(slice(0, -1) for _ in f.places))]

    def _one_cell_each(self, places: tuple[int, ...], ends: list[Array]) -> Array | None:
        """The cell of each turn where all ranks have the same boxes, of one cell each and no two alike, as tiles are."""
        if len(places) != 1 or any(len(x) > 1 for x in ends):
            return None
        first, last = (self.cell_of(places[0], x[0]) for x in ends)
        alone = bool(np.all(last == first + 1)) and bool(np.all(np.diff(first) > 0))
        return first if alone else None

    def cell_of(self, k: int, x: Array) -> Array:
        """The number of the cell in which a position is."""
        inside, numbers = within(x, self.extents[k]), self.numbers[k]
        return np.searchsorted(self.edges[k], inside, side="right") - 1 if numbers is None else numbers[inside]

    def _cells(self, k: int, x: Array, shape: tuple[int, ...], row: Array, column: Array) -> Array:
        if x.size > len(row):
            return self.cell_of(k, np.broadcast_to(x, shape)[row, column])
        return np.broadcast_to(self.cell_of(k, x), shape)[row, column]


def _span(table: Array, axis: int) -> tuple[Array, Array]:
    """By row of a table, the first index along an axis at which something is, and the end of the last one."""
    hit = table.any(axis=tuple(a for a in range(1, table.ndim) if a != axis))
    some = hit.any(axis=1)
    return np.where(some, hit.argmax(axis=1), 0), np.where(some, hit.shape[1] - hit[:, ::-1].argmax(axis=1), 0)


def within(x: Array, size: int) -> Array:
    """Positions outside of an extent moved to its end; `np.clip` takes longer."""
    return np.minimum(np.maximum(x, 0), size)


def _flat(arrays: Sequence[Array], axes: tuple[int, ...]) -> list[Array]:
    """Each as (rank or 1, turns): with the axes in one."""
    wide = np.broadcast_shapes(*(tuple(a.shape[k] for k in axes) for a in arrays))
    if np.prod(wide, dtype=np.float64) > MOST:
        raise TooMany
    found: list[Array] = []
    for a in arrays:
        kept = a.reshape((a.shape[0], *(a.shape[k] for k in axes)))
        full = kept if kept.shape[1:] == wide else np.broadcast_to(kept, (a.shape[0], *wide))
        found.append(full.reshape(a.shape[0], -1))
    return found


def depends(*arrays: Array) -> set[int]:
    """The axes on which any of the arrays depends."""
    return {k for a in arrays for k, n in enumerate(a.shape) if n != 1}


def deeper(array: Array, depth: int) -> Array:
    """An array with axes behind, so many in all, on which it does not depend."""
    return array.reshape(array.shape + (1,) * (depth - array.ndim))


def entry(array: Array, at: Sequence[int]) -> int:
    """What stands at an index of all axes, along those on which the array depends."""
    return int(array[tuple(i if n != 1 else 0 for i, n in zip(at, array.shape, strict=False))])


def _factors(b: Boxes) -> Iterator[_Factor]:
    """What is counted apart: no axis of the turns is in two of them. What depends on ranks alone is one of its own."""
    on = [depends(*place) - {0} for place in b.places]
    tested = [(a, depends(a) - {0}) for a in b.taken]
    for group in joined([tuple(s) for s in (*on, *(s for _, s in tested)) if s]):
        places = tuple(k for k, s in enumerate(on) if s & {*group})
        yield _Factor(places, group, tuple(a for a, s in tested if s & {*group}))
    for k, s in enumerate(on):
        if not s:
            yield _Factor((k,), (), ())
    alone = tuple(a for a, s in tested if not s)
    if alone:
        yield _Factor((), (), alone)


def joined(sets: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sets, those that have something in common as one."""
    out: list[set[int]] = []
    for s in sets:
        met = [o for o in out if o & set(s)]
        out = [o for o in out if not o & set(s)]
        out.append(set(s).union(*met))
    return [tuple(sorted(o)) for o in out]
