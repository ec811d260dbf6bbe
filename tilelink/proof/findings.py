"""What a question finds wrong, and the executions of ops in which it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilelink.errors import Loc, Note
from tilelink.ir.formula import Formula
from tilelink.ir.lowered import Await, Check, Read, Signal
from tilelink.ir.verdict import Instant
from tilelink.proof.runs import Runs, projected, together
from tilelink.proof.table import Array, Row, Table

REPORT = "this is the plan's mistake and not yours: please report it with the schedule"
"""To do about what no user wrote."""


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
        deep = [c.reshape(c.shape + (1,) * (depth - c.ndim)) for c in (*runs.taken, *conditions)]
        found = witness(deep, depth, last=last)
        if found is None:
            return None
        if last:
            shape = (*runs.shape, *(1 for _ in range(depth - len(runs.shape))))
            touched = {k for c in deep for k in range(c.ndim) if c.shape[k] != 1}
            found = tuple(i if k in touched else n - 1 for k, (i, n) in enumerate(zip(found, shape, strict=True)))
        return Moment(row, runs.index(found), call, late)

    def instant(self, table: Table) -> Instant:
        row, axes = self.row, len(self.row.loop.axes)
        tile = ", ".join(str(i) for i in self.at[1 : 1 + axes])
        loc = row.op.loc or row.loop.loc
        return Instant(self.at[0], table.path(row), f"({tile})" if tile else "", loc, self._does(), self.call)

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
        found = self.row(formula)
        return int(found[tuple(i if n != 1 else 0 for i, n in zip(self.at, found.shape, strict=True))])


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
    buffer: str
    rows: tuple[Row, ...] = ()
    moments: tuple[Moment | None, ...] = ()
    code: str = ""
    why: str = ""
    hint: str = ""
    loc: Loc | None = None
    notes: tuple[Note, ...] = ()

    def __str__(self) -> str:
        return f"`{self.buffer}` {self.what}" if self.buffer else self.what
