"""Lowered -> table: one row for each op of each loop, whose columns are arrays over ranks, tiles and turns.

The axes of an array are (rank, index of the tile, …, turn of each loop in a tile, …), each of length 1 where the value does not
depend on it: most columns depend on one index, so that little is worked out even where there are many tiles. The position of a
tile stands in the order of its loop alone (`tilelink.ir.lowered.Tiles.order`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.lowered import (
    Await,
    Check,
    Copy,
    Data,
    Executor,
    Flags,
    For,
    If,
    Lowered,
    Op,
    Read,
    Signal,
    Tiles,
    Write,
    formulas,
    walk,
)
from tilelink.ir.topology import env_of
from tilelink.proof.cells import deeper

Array: TypeAlias = Any
Asked = TypeVar("Asked")
Found = TypeVar("Found")
TOGETHER = 1 << 16
"""Positions that are worked out at a time: what fits into a cache is quicker."""
Leaf: TypeAlias = "Await | Signal | Read | Write | Check"


@dataclass(frozen=True, slots=True)
class Row:
    """An op that is executed where all of `taken` hold, once for each tile and turn. `conditions`: those of them that do not hold
    everywhere; `data`: what decides whether it is, or where, beyond that; `place`: in the text of its loop; `around`: the places
    of the `For`s around it, and the axes of their turns; `copy`: whose source or target it is."""

    op: Leaf
    executor: Executor
    loop: Tiles
    place: int
    values: Mapping[str, Array]
    taken: tuple[Array, ...]
    conditions: tuple[Array, ...]
    data: tuple[Data, ...]
    around: tuple[tuple[int, int], ...] = ()
    copy: Copy | None = None
    said: tuple[str, ...] = ()
    """What the program says of the loops and tests around it."""
    found: dict[int, tuple[Formula, Array]] = field(init=False, default_factory=dict[int, "tuple[Formula, Array]"])
    """By the id of a formula, which has to live as long, the formula and what it comes to."""

    def __call__(self, formula: Formula, said: str = "") -> Array:
        """What a formula of the op's comes to; `said`: as the program has it."""
        if id(formula) not in self.found:
            try:
                value = F.evaluate(formula, self.values, in_kernel=True)
            except F.Beyond as beyond:
                beyond.loc, beyond.said = self.loc, said or " ".join(self.said[-1:])
                raise
            self.found[id(formula)] = formula, whole(value, self.depth)
        return self.found[id(formula)][1]

    def where(self, *tests: Array) -> Row:
        """Where these hold besides."""
        sometimes = [c for c in tests if not (c.size and c.all())]
        return replace(self, taken=(*self.taken, *tests), conditions=(*self.conditions, *sometimes))

    @property
    def loc(self) -> Loc | None:
        """The line of the program that it comes from."""
        return self.op.loc or self.loop.loc

    @property
    def tells(self) -> bool:
        """Whether it is an await, or a signal; what begins a call `back` calls ago has ended long before."""
        return isinstance(self.op, Await | Signal) and not getattr(self.op, "back", 0)

    @property
    def undecided(self) -> tuple[Data, ...]:
        """What data decides and no contract of a table."""
        return tuple(d for d in self.data if d.table is None)

    @property
    def by_data(self) -> bool:
        return bool(self.data)

    @property
    def depth(self) -> int:
        """How many axes its arrays have."""
        return self.values["rank"].ndim


def once(find: Callable[[Table, Asked], Found]) -> Callable[[Table, Asked], Found]:
    """What is looked for the first time that it is asked for, of a number, or of what lives as long as the table."""

    def asked(table: Table, whose: Asked) -> Found:
        key = find, whose if isinstance(whose, int) else id(whose)
        if key not in table.known:
            table.known[key] = find(table, whose)
        return table.known[key]

    return asked


@dataclass(slots=True)
class Table:
    """`ranks`: how many there are in all."""

    lowered: Lowered
    ranks: int = 0
    rows: list[Row] = field(default_factory=list[Row])
    ended: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By executor those that have ended on its rank before it starts."""
    known: dict[tuple[Callable[..., Any], int], Any] = field(default_factory=dict[Any, Any])

    @staticmethod
    def of(lowered: Lowered) -> Table:
        out = Table(lowered, lowered.topology.ranks)
        for executor in lowered.executors:
            out.ended[executor.name] = frozenset(executor.after).union(*(out.ended[e] for e in executor.after))
            for loop in executor.loops:
                out.rows += out._loop(executor, loop)
        return out

    @once
    def symbols(self, depth: int) -> Mapping[str, Array]:
        """The sizes, and each rank's coordinates, as arrays of `depth` axes."""
        number = np.arange(self.ranks, dtype=np.int64).reshape((-1,) + (1,) * (depth - 1))
        return env_of(dict(self.lowered.sizes), self.lowered.topology, number)

    def width(self, flags: str) -> int:
        """The most flags of a kind that a rank has."""
        return int(self.each(self.lowered.flag(flags).count).max(initial=0))

    @once
    def each(self, formula: Formula) -> Array:
        """A formula on every rank."""
        return np.broadcast_to(np.asarray(F.evaluate(formula, self.symbols(1))), (self.ranks,))

    def by_flag(self, flags: Flags, formula: Formula) -> Array:
        """(rank, flag): a formula of each flag."""
        values = {**self.symbols(2), "flag": along(self.width(flags.name), 1, 2)}
        return np.asarray(F.evaluate(formula, values))

    @once
    def path(self, row: Row) -> str:
        """The step whose program an op is of: its loop's, or one that is fused into that."""
        loops = {loop.path for e in self.lowered.executors for loop in e.loops}
        mine = dropwhile(lambda part: part.path != row.loop.path, self.lowered.parts)
        for k, part in enumerate(mine):
            if k and part.path in loops:
                break
            # The lines of its program where it waits, notifies, loads and stores.
            ops = [o for op in walk(part.body) for o in ((op.source, op.target) if isinstance(op, Copy) else (op,))]
            if row.op.loc in (*(s.loc for s, _ in part.said), *(getattr(op, "loc", None) for op in ops)):
                return part.path
        return row.loop.path

    @once
    def at(self, loop: Tiles) -> Array:
        """The position of each tile in the order of its loop, by rank and the tile's indices; -1: none is."""
        return _positions(self, loop)

    @once
    def signals(self, loop: Tiles) -> list[Row]:
        """The awaits and signals of a loop."""
        return [r for r in self.rows if r.loop is loop and r.tells]

    # --------------------------------------------------------------------------------------------------------------- rows
    def _loop(self, executor: Executor, loop: Tiles) -> Iterator[Row]:
        depth = 1 + len(loop.axes) + sum(isinstance(op, For) for op in walk(loop.body))
        values, taken = {**self.symbols(depth)}, list[Array]()
        for k, (name, length) in enumerate(loop.axes):
            often = np.asarray(F.evaluate(length, values))
            values[name] = along(max(int(often.max(initial=0)), 0), 1 + k, depth)
            taken.append(values[name] < often)
        for name, value in loop.lets:
            values[name] = F.evaluate(value, values)
        if loop.axes and any("t" in F.symbols(f) for op in walk(loop.body) for f in formulas(op)):
            values["t"] = deeper(self.at(loop), depth)
            taken.append(values["t"] >= 0)
        start = Row(Check(F.Const(1), ""), executor, loop, 0, values, (), (), _some(loop.by_data)).where(*taken)
        yield from _body(loop.body, start, itertools.count(1), itertools.count(1 + len(loop.axes)))


def _positions(table: Table, loop: Tiles) -> Array:
    counts = np.array([table.each(count) for _, count in loop.axes])
    longest = tuple(int(n) for n in np.maximum(counts.max(axis=1, initial=0), 0))
    out, total = np.full((table.ranks, *longest), -1, dtype=np.int32), table.each(loop.total)
    last = max(int(total.max(initial=0)), 0)
    if not last or not out.size:
        return out
    symbols: dict[str, Array] = {**table.symbols(2), "t": along(last, 1, 2)}
    for name, rows in table.lowered.tables:
        widest = max(map(len, rows))
        symbols[name] = np.array([[*row, *[0] * (widest - len(row))] for row in rows], dtype=np.int64)
    step = max(TOGETHER // last, 1)
    for begin in range(0, table.ranks, step):
        some = slice(begin, begin + step)
        values = {k: v[some] if isinstance(v, np.ndarray) and len(v) == table.ranks else v for k, v in symbols.items()}
        _place(out[some], loop, values, total[some, None], counts[:, some, None])
    return out


def _place(out: Array, loop: Tiles, values: dict[str, Array], total: Array, counts: Array) -> None:
    """Put the positions of the loop's tiles on some ranks where their indices say."""
    for name, value in loop.order:
        values[name] = F.evaluate(value, values)
    there, number = values["t"] < total, np.zeros((1, 1), dtype=np.int64)
    for (name, _), count, size in zip(loop.axes, counts, out.shape[1:], strict=True):
        # The index along this rank's own coordinate is the coordinate, and there is one tile.
        index = np.where(count == 1, 0, values.get(name, 0))
        there = there & (index >= 0) & (index < count)
        number = number * size + index
    ranks = np.arange(len(out)).reshape(-1, 1)
    rank, number, t = np.broadcast_arrays(ranks, number, values["t"])
    if there.all():
        out.reshape(len(out), -1)[rank, number] = t
    else:
        there = np.broadcast_to(there, t.shape)
        out.reshape(len(out), -1)[rank[there], number[there]] = t[there]


def _body(body: tuple[Op, ...], at: Row, places: Iterator[int], axes: Iterator[int]) -> Iterator[Row]:
    for op in body:
        if isinstance(op, For):
            often, axis = at(op.count), next(axes)
            around = (*at.around, (next(places), axis))
            values = {**at.values, op.var: along(max(int(often.max(initial=0)), 0), axis, at.depth)}
            for name, value in op.lets:
                values[name] = F.evaluate(value, values, in_kernel=True)
            turns, data = at.where(values[op.var] < often), at.data + _some(op.by_data)
            inner = replace(turns, values=values, data=data, around=around, said=_more(at.said, op.said))
            yield from _body(op.body, inner, places, axes)
        elif isinstance(op, If):
            # Each by itself: mostly on fewer axes than all together.
            tests = [] if op.test is None else [at(F.truth(test), op.said) != 0 for test in F.conjuncts(op.test)]
            inner = replace(at.where(*tests), data=at.data + _some(op.by_data), said=_more(at.said, op.said))
            yield from _body(op.body, inner, places, axes)
        elif isinstance(op, Copy):
            yield from _body((op.source, op.target), replace(at, copy=op), places, axes)
        elif isinstance(op, Await | Signal | Read | Write | Check):
            decided = _some(op.by_data) if isinstance(op, Read | Write) else ()
            yield replace(at, op=op, place=next(places), data=at.data + decided)


def _more(said: tuple[str, ...], words: str) -> tuple[str, ...]:
    return (*said, words) if words else said


def _some(data: Data | None) -> tuple[Data, ...]:
    return () if data is None else (data,)


def whole(value: Any, depth: int) -> Array:
    """What a formula comes to as an array of so many axes."""
    found = np.asarray(value)
    return found if found.ndim else found.reshape((1,) * depth)


def along(count: int, axis: int, depth: int) -> Array:
    """The numbers from 0 to below `count` along one axis of so many."""
    shape = [1] * depth
    shape[axis] = count
    return np.arange(count, dtype=np.int64).reshape(shape)
