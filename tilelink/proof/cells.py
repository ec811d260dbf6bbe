"""Which elements of a tensor are touched, how often and by which executions: boxes taken apart into cells.

A cell is a stretch between two positions at which any box begins or ends. What is touched is a product: places that depend on
different axes of the executions are looked at apart from one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any

MOST = 60_000_000
"""Boxes, or cells, that may be looked at one by one."""


class TooMany(Exception):
    """There are more boxes or cells than can be looked at."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Begin and end along each place, where all of `taken` holds: arrays over the executions that touch them, of which there are
    `shape`, the ranks first."""

    places: tuple[tuple[Array, Array], ...]
    taken: tuple[Array, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """Places of boxes, and the axes on which they alone depend, or those on which none does. For each touch of a cell, `cells`
    has its number among all along these places, and `numbers` that of the execution among all along these axes."""

    places: tuple[int, ...]
    axes: tuple[int, ...]
    taken: tuple[Array, ...]
    cells: Array
    numbers: Array


@dataclass(frozen=True, slots=True)
class Cells:
    """The elements of a tensor as far as boxes tell them apart; `extents`: how many there are along each place."""

    extents: tuple[int, ...]
    edges: tuple[Array, ...]

    @staticmethod
    def of(extents: tuple[int, ...], found: Sequence[Boxes]) -> Cells:
        edges: list[Array] = []
        for k, size in enumerate(extents):
            ends = [narrow(within(x, size)).ravel() for b in found for x in b.places[k]]
            edges.append(np.unique(np.concatenate([*ends, np.array([0, size], dtype=np.int64)])))
        return Cells(extents, tuple(edges))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(e) - 1 for e in self.edges)

    def count(self, boxes: Sequence[Boxes]) -> Array:
        """How many of the boxes hold each cell: one axis per place, of length 1 where the count does not depend on it.

        Raises:
            TooMany: there are more boxes, or cells, than can be looked at one by one.
        """
        found: list[Array] = []
        for b in boxes:
            counts = [self._touched_by(f) for f in self.factors(b)]
            bounded(*counts)
            # The small ones first.
            found.append(reduce(np.multiply, sorted(counts, key=np.size)))
        bounded(*found)
        return reduce(np.add, found, np.zeros((1,) * len(self.shape), dtype=np.int32))

    def _touched_by(self, factor: Factor) -> Array:
        lengths = [n if k in factor.places else 1 for k, n in enumerate(self.shape)]
        found = np.zeros(prod(lengths), dtype=np.bool_)
        found[factor.cells] = True
        if np.count_nonzero(found) < len(factor.cells):  # some are touched again
            found = np.bincount(factor.cells, minlength=prod(lengths)).astype(np.int32)
        return narrow(found.reshape(lengths))

    def factors(self, boxes: Boxes) -> Iterator[Factor]:
        """What is looked at apart: no axis is in two of them."""
        several = [(k,) for k, n in enumerate(boxes.shape) if n != 1]
        on, tested = [depends(*place) for place in boxes.places], [(c, depends(c)) for c in boxes.taken]
        groups = joined([*(tuple(s) for s in (*on, *(s for _, s in tested)) if s), *several])
        for group in (*groups, tuple[int, ...]()):
            places = tuple(k for k, s in enumerate(on) if (s & {*group} if group else not s))
            taken = tuple(c for c, s in tested if (s & {*group} if group else not s))
            yield Factor(places, group, taken, *self._touches(boxes, places, group, taken))

    def _touches(
        self, boxes: Boxes, places: tuple[int, ...], axes: tuple[int, ...], taken: tuple[Array, ...]
    ) -> tuple[Array, Array]:
        front, depth = len(boxes.shape), len(boxes.shape) + len(places)
        lengths = [n if k in axes else 1 for k, n in enumerate(boxes.shape)] + [1] * len(places)
        if max(prod(lengths), prod(self.shape[k] for k in places)) > MOST:
            raise TooMany
        number = np.arange(prod(lengths), dtype=np.int32).reshape(lengths)
        edges = [(deeper(lo, depth), deeper(hi, depth)) for lo, hi in (boxes.places[k] for k in places)]
        cells, where = self.among(places, edges, range(front, depth))
        where += [deeper(c, depth) for c in taken]
        bounded(number, cells, *where)
        number, cells, *where = np.broadcast_arrays(number, cells, *where)
        if where:
            there = reduce(np.logical_and, where)
            return cells[there], number[there]
        return cells.ravel(), number.ravel()

    def among(
        self, places: Sequence[int], edges: Sequence[tuple[Array, Array]], axes: Sequence[int]
    ) -> tuple[Array, list[Array]]:
        """The number, among all along some places, of each cell that boxes touch; those of one box lie along an axis for each
        place. And where there is one."""
        found, where = np.zeros((1,), dtype=np.int64), list[Array]()
        for k, (lo, hi), axis in zip(places, edges, axes, strict=True):
            cell, there = self._touched(k, lo, hi, axis)
            found, where = found * self.shape[k] + cell, where + there
        return found, where

    def _touched(self, k: int, lo: Array, hi: Array, axis: int) -> tuple[Array, list[Array]]:
        lo, hi = (within(x, self.extents[k]) for x in (lo, hi))
        first = self._cell_of(k, lo)
        many = narrow(np.where(lo < hi, self._cell_of(k, hi - 1) + 1 - first, 0))
        first = narrow(first)
        most, last = int(many.max(initial=0)), self.shape[k] - 1
        if most > 1:
            step = np.arange(most).reshape([most if a == axis else 1 for a in range(first.ndim)])
            return np.minimum(first + step, last), [step < many]
        return np.minimum(first, last), [] if many.all() else [many > 0]

    def _cell_of(self, k: int, x: Array) -> Array:
        """The number of the cell in which a position is."""
        return np.searchsorted(self.edges[k], within(x, self.extents[k]), side="right") - 1


def narrow(array: Array) -> Array:
    """Without the axes along which it is the same everywhere."""
    for k, n in enumerate(array.shape):
        if n > 1:
            one = array[(slice(None),) * k + (slice(0, 1),)]
            if (array == one).all():
                array = one
    return array


def bounded(*arrays: Array, most: int = MOST) -> None:
    """
    Raises:
        TooMany: together they have more elements than can be looked at one by one.
    """
    if size(arrays) > most:
        raise TooMany


def size(arrays: Sequence[Array]) -> int:
    """How many elements the arrays have together."""
    return prod(np.broadcast_shapes(*(a.shape for a in arrays)))


def within(x: Array, size: int) -> Array:
    """Positions outside of an extent moved to its end; `np.clip` takes longer."""
    return np.minimum(np.maximum(x, 0), size)


def depends(*arrays: Array) -> set[int]:
    """The axes on which any of the arrays depends."""
    return {k for a in arrays for k, n in enumerate(a.shape) if n != 1}


def deeper(array: Array, depth: int) -> Array:
    """An array with axes behind, so many in all, on which it does not depend."""
    return array.reshape(array.shape + (1,) * (depth - array.ndim))


def entry(array: Array, at: Sequence[int]) -> int:
    """What stands at an index of all axes, along those on which the array depends."""
    return int(array[tuple(i if n != 1 else 0 for i, n in zip(at, array.shape, strict=False))])


def joined(sets: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sets, those that have something in common as one."""
    out: list[set[int]] = []
    for s in sets:
        met = [o for o in out if o & set(s)]
        out = [o for o in out if not o & set(s)]
        out.append(set(s).union(*met))
    return [tuple(sorted(o)) for o in out]
