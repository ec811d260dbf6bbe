"""The executions of an op, in arrays that broadcast against one another, and where conditions on them hold together.

The arrays are those of the op's table, but for axes along which a condition holds in few places only: these are packed into
one, which counts the places where it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from tilelink.errors import Loc, Note
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.lowered import Await, Check, Read, Signal
from tilelink.ir.verdict import Instant
from tilelink.proof.cells import bounded, deeper, depends, entry, size
from tilelink.proof.table import Array, Row, Table, along, once, whole

MOST = 200_000_000
"""Truths that are looked at together."""
FEW = 128
"""Elements that are looked at all at once rather than packed, or axis by axis."""


class _Values(dict[str, Array]):
    """What symbols stand for, each looked at when it is asked for."""

    def __init__(self, values: Mapping[str, Array], change: Callable[[Array], Array]) -> None:
        super().__init__()
        self.values_of, self.change = values, change

    def __missing__(self, name: str) -> Array:
        value = self.values_of[name]
        self[name] = self.change(value) if isinstance(value, np.ndarray) else value
        return self[name]


@dataclass(frozen=True, slots=True)
class Runs:
    """`lengths`: of the axes of the op's table; `shape`: of these axes; `packed`: axes, each time, and the places along them;
    `taken`: where it is executed."""

    row: Row
    lengths: tuple[int, ...]
    shape: tuple[int, ...]
    packed: tuple[tuple[tuple[int, ...], tuple[Array, ...]], ...]
    taken: tuple[Array, ...]
    values: Mapping[str, Array]

    @staticmethod
    @once
    def of(table: Table, row: Row) -> Runs:
        # A loop without turns has an axis without places, which others do not make one of.
        lengths = [{1, *(c.shape[k] for c in row.taken)} for k in range(1, row.depth)]
        shape = (table.ranks, *(0 if 0 in found else max(found) for found in lengths))
        runs = Runs(row, shape, shape, (), row.conditions, row.values)
        while (sparse := next(filter(_sparse, runs.taken), None)) is not None:
            axes = tuple(sorted(depends(sparse)))
            places = tuple(x for k, x in enumerate(np.nonzero(sparse)) if k in axes)
            lengths = {k: len(places[0]) if k == axes[0] else 1 for k in axes}
            taken = [_pack(c, axes, places) for c in runs.taken if c is not sparse]
            runs = replace(
                runs,
                shape=tuple(lengths.get(k, n) for k, n in enumerate(runs.shape)),
                packed=(*runs.packed, (axes, places)),
                taken=tuple(c for c in taken if not c.all()),
            )
        return replace(runs, values=_Values(row.values, runs.pack)) if runs.packed else runs

    def __call__(self, formula: Formula) -> Array:
        """What a formula of the op's comes to."""
        if self.values is self.row.values:
            return self.row(formula)
        return whole(F.evaluate(formula, self.values), len(self.shape))

    def beside(self, other: Row, then: Callable[[Array], Array] = lambda array: array) -> Runs:
        """Another op of the loop, in these executions, and in the turns of those `For`s that are around it alone; `then`: what is
        done to each array besides."""

        def change(array: Array) -> Array:
            return then(self.pack(array))

        return replace(
            self, row=other, taken=tuple(map(change, other.conditions)), values=_Values(other.values, change)
        )

    def pack(self, array: Array) -> Array:
        """An array of the loop's, as one of the executions; it may have more axes behind."""
        for axes, places in self.packed:
            array = _pack(array, axes, places)
        return array

    def index(self, at: Sequence[int]) -> tuple[int, ...]:
        """The index along each axis of its loop, of an execution."""
        return tuple(entry(self.along(axis), at) for axis in range(len(self.lengths)))

    def along(self, axis: int) -> Array:
        """The index of each execution along an axis of its loop."""
        return self.pack(along(self.lengths[axis], axis, len(self.lengths)))


def _sparse(condition: Array) -> bool:
    return condition.size > FEW and 0 < 2 * int(np.count_nonzero(condition)) < condition.size


def _pack(array: Array, axes: tuple[int, ...], places: tuple[Array, ...]) -> Array:
    if all(array.shape[k] == 1 for k in axes):
        return array
    front = np.moveaxis(array, axes, range(len(axes)))
    found = front[tuple(x if n != 1 else 0 for x, n in zip(places, front.shape, strict=False))]
    found = found.reshape(found.shape[:1] + (1,) * (len(axes) - 1) + found.shape[1:])
    return np.moveaxis(found, range(len(axes)), axes)


def together(join: Any, arrays: Sequence[Array]) -> Array:
    """The arrays as one; of none: True.

    Raises:
        TooMany: it has more elements than can be looked at one by one.
    """
    bounded(*arrays, most=MOST)
    return reduce(join, arrays) if arrays else np.ones((), dtype=np.bool_)


def projected(conditions: Sequence[Array], axes: set[int], *, counted: bool = False) -> list[Array]:
    """Arrays over these axes alone that hold together where the conditions do for some index along all others; `counted`: whose
    product says for how many of these indices along which any depends."""
    join: Any = np.multiply if counted else np.logical_and
    left = list(conditions)
    while hidden := depends(*left) - axes:
        # The axis first that leaves the least to be looked at.
        axis = min(hidden, key=lambda k: size([c for c in left if c.shape[k] != 1]) if len(hidden) > 1 else 0)
        every = together(join, [c for c in left if c.shape[axis] != 1])
        found = every.sum(axis=axis, keepdims=True) if counted else every.any(axis=axis, keepdims=True)
        left = [c for c in left if c.shape[axis] == 1]
        if counted or not found.all():
            left.append(found)
    return left


def picked(conditions: Sequence[Array], *arrays: Array) -> list[Array]:
    """The elements of arrays for which the conditions hold together anywhere."""
    where = together(np.logical_and, projected(conditions, depends(*arrays)))
    *found, where = np.broadcast_arrays(*arrays, where)
    return [a[where] for a in found]


def possible(conditions: Sequence[Array]) -> bool:
    """Whether the conditions hold together anywhere."""
    if not all(c.any() for c in conditions):
        return False
    left = [c for c in conditions if not c.all()]
    if len(left) < 2:
        return True
    if size(left) <= FEW:
        return bool(reduce(np.logical_and, left).any())
    return all(c.any() for c in projected(left, set()))


def unsettled(left: Sequence[Array], reasons: Iterable[Sequence[Array]]) -> list[Array] | None:
    """Conditions that hold together where these do, and those of none of the reasons; None: nowhere."""
    left = list(left)
    if not possible(left):
        return None
    for known in reasons:
        if not any(possible([*left, ~c]) for c in known if not c.all()):
            return None
        if possible([*left, *known]):
            left.append(~together(np.logical_and, known))
    return left if possible(left) else None


def own_axes(row: Row, other: Row) -> tuple[int, ...]:
    """The axes of the `For`s that are around another op, and not around this one."""
    return tuple(axis for _, axis in other.around[_shared(row, other) :])


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


# -------------------------------------------------------------------------------------------- what is wrong, and when


@dataclass(frozen=True, slots=True)
class Moment:
    """An execution of an op: `at`, the index along each axis of its loop, the rank first. `call`: how many calls later than the
    first; `how`: `now`, `late` (only now, or it would), as a person says it."""

    row: Row
    at: tuple[int, ...]
    call: int = 0
    late: bool = False

    @staticmethod
    def first(
        table: Table,
        row: Row,
        conditions: Sequence[Array] = (),
        *,
        last: bool = False,
        call: int = 0,
        late: bool = False,
    ) -> Moment | None:
        """The first, or the last, where these hold: arrays of the op's runs, with any axes behind. None: there is none."""
        runs = Runs.of(table, row)
        depth = max([len(runs.shape), *(c.ndim for c in conditions)])
        deep = [deeper(c, depth) for c in (*runs.taken, *conditions)]
        found = witness(deep, depth, last=last)
        if found is None:
            return None
        if last:  # along axes on which nothing depends, too
            touched = depends(*deep)
            found = [i if k in touched else n - 1 for k, (i, n) in enumerate(zip(found, runs.shape, strict=False))]
        return Moment(row, runs.index(found), call, late)

    def instant(self, table: Table) -> Instant:
        row, axes = self.row, len(self.row.loop.axes)
        tile = ", ".join(str(i) for i in self.at[1 : 1 + axes])
        return Instant(self.at[0], table.path(row), f"({tile})" if tile else "", row.loc, self._does(), self.call)

    def _does(self) -> str:
        op = self.row.op
        if isinstance(op, Check):
            return f"reaches {op.what}"
        if isinstance(op, Await):
            return f"waits for flag {self.value(op.index)} of `{op.flags}`"
        if isinstance(op, Signal):
            to = "" if op.rank is None else f" on rank {self.value(op.rank)}"
            return f"{'would notify' if self.late else 'notifies'} flag {self.value(op.index)} of `{op.flags}`{to}"
        verb = "reads" if isinstance(op, Read) else "writes"
        return f"{verb} `{op.buffer}` of rank {self.value(op.rank)}{' only now' if self.late else ''}"

    def value(self, formula: Formula) -> int:
        """What a formula of the op's comes to then."""
        return entry(self.row(formula), self.at)


def witness(conditions: Sequence[Array], depth: int, *, last: bool = False) -> tuple[int, ...] | None:
    """The least index, or the greatest, at which all hold; None: nowhere. Along axes on which none depends, 0."""
    left, out = list(conditions), list[int]()
    for axis in range(depth):
        where = np.atleast_1d(together(np.logical_and, projected(left, {axis}))).ravel()
        if not where.any():
            return None
        out.append(len(where) - 1 - int(np.argmax(where[::-1])) if last else int(np.argmax(where)))
        left = [c.take([out[-1]], axis) if c.shape[axis] != 1 else c for c in left]
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong. `rows`: that have to do with it, the first at fault; `moments`: executions that show it, in order. `code`,
    `why` and `hint`: where they are not those of the question; `loc`: where no row has one."""

    what: str
    rows: tuple[Row, ...] = ()
    moments: tuple[Moment | None, ...] = ()
    code: str = ""
    why: str = ""
    hint: str = ""
    loc: Loc | None = None
    notes: tuple[Note, ...] = ()
