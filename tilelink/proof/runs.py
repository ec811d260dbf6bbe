"""The executions of an op one by one, told apart along those axes only that matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np

from tilelink.proof.cells import MOST, TooMany
from tilelink.proof.table import Array, Row


@dataclass(frozen=True, slots=True)
class Runs:
    """`at`: of each execution its index along each axis that matters; axis 0 are the ranks."""

    row: Row
    at: Mapping[int, Array]

    def __len__(self) -> int:
        return len(self.at[0])

    def __call__(self, array: Array, own: Mapping[int, int] | None = None) -> Array:
        """What an array of the loop's is in each execution. `own`: the turns of loops around another op."""
        if not len(self):
            return np.zeros(0, dtype=array.dtype)
        index = tuple(
            0 if length == 1 else own[k] if own is not None and k in own else self.at[k]
            for k, length in enumerate(array.shape)
        )
        return np.broadcast_to(array[index] if array.ndim else array, (len(self),))


def runs_of(row: Row, axes: set[int], ranks: int) -> Runs:
    """
    Raises:
        TooMany: there are more than can be looked at one by one.
    """
    shape = np.broadcast_shapes((1,) * row.depth, *(c.shape for c in row.taken))
    shape = tuple((ranks if k == 0 else n) if k in axes or k == 0 else 1 for k, n in enumerate(shape))
    mask = np.ones((1,) * row.depth, dtype=np.bool_)
    for group in _together(row.conditions, axes | {0}):
        found = reduce(np.logical_and, group)
        mask = mask & found.any(axis=tuple(k for k in range(row.depth) if k not in axes and k), keepdims=True)
    if np.prod(shape, dtype=np.float64) > MOST:
        raise TooMany
    found = np.nonzero(np.broadcast_to(mask, shape))
    return Runs(row, {k: found[k] for k in range(row.depth) if k in axes or k == 0})


def _together(conditions: Sequence[Array], axes: set[int]) -> Iterator[list[Array]]:
    """Conditions that have axes in common which are projected away have to hold together."""
    left = list(conditions)
    while left:
        group, hidden = [left.pop(0)], set[int]()
        while True:
            hidden = {k for c in group for k in depends(c)} - axes
            more = [c for c in left if depends(c) & hidden]
            if not more:
                break
            group += more
            left = [c for c in left if not any(c is m for m in more)]
        yield group


def depends(*arrays: Array) -> set[int]:
    """The axes on which any of the arrays depends."""
    return {k for a in arrays for k, n in enumerate(a.shape) if n != 1}


@dataclass(frozen=True, slots=True)
class Beside:
    """Another op of the same loop, seen from the executions of `row`. `own`: the axes of the `For`s around it alone."""

    other: Row
    own: tuple[int, ...]

    @staticmethod
    def of(row: Row, other: Row) -> Beside:
        shared = _shared(row, other)
        return Beside(other, tuple(axis for _, axis in other.around[shared:]))

    def needs(self, arrays: Sequence[Array]) -> set[int]:
        """The axes along which executions of the row have to be told apart, to say what the other's arrays are."""
        return depends(*arrays, *self.other.conditions) - {*self.own}

    def turns(self) -> Iterator[dict[int, int]]:
        """Each turn of its own loops.

        Raises:
            TooMany
        """
        shape = np.broadcast_shapes(*(c.shape for c in self.other.taken))
        lengths = [shape[k] for k in self.own]
        if np.prod(lengths, dtype=np.float64) > MOST:
            raise TooMany
        for turn in product(*(range(n) for n in lengths)):
            yield dict(zip(self.own, turn, strict=True))

    def taken(self, runs: Runs, own: Mapping[int, int]) -> Array:
        """In which executions of the row the other is executed, in that turn of its own loops."""
        return reduce(np.logical_and, (runs(c, own) for c in self.other.conditions), np.ones(len(runs), dtype=np.bool_))


def before(first: Row, then: Row) -> bool:
    """Whether, in each tile and turn that they share, one op stands before the other."""
    shared = _shared(first, then)
    places = [row.around[shared][0] if shared < len(row.around) else row.place for row in (first, then)]
    return places[0] < places[1]


def _shared(a: Row, b: Row) -> int:
    """How many loops are around both."""
    return next(
        (k for k, (x, y) in enumerate(zip(a.around, b.around, strict=False)) if x != y),
        min(len(a.around), len(b.around)),
    )
