"""What the tiles of a loop do, in microseconds: how long each takes, and how much of that comes before an await or signal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilelink.cost.machine import LARGE, Machine
from tilelink.ir import formula as F
from tilelink.ir.lowered import Await, Compute, Copy, Executor, For, If, Op, Read, Signal, Tiles, Write, walk
from tilelink.ir.shape import ITEM_BYTES
from tilelink.proof.runs import before
from tilelink.proof.table import Row, Table

Array: TypeAlias = Any
DOT = "tl.dot"


@dataclass(frozen=True, slots=True)
class Product:
    """Products that a turn of a loop makes of what it reads. `names`: of the turn, none outside of all loops; `depth`: how many
    loops are around; `often`: how many products; `function`: the library's that makes them."""

    operands: tuple[Read, ...]
    names: frozenset[str]
    depth: int
    often: int
    function: Compute | None = None


def products(body: tuple[Op, ...], names: frozenset[str] = frozenset(), depth: int = 0) -> Iterator[Product]:
    """Of a body and all loops in it."""
    computes, reads = list[Compute](), list[Read]()
    for op in _straight(body):
        if isinstance(op, For):
            inner = [*products(op.body, frozenset((op.var, *(name for name, _ in op.lets))), depth + 1)]
            yield from inner
            reads += [r for r in walk(op.body) if isinstance(r, Read)] if not inner else []
        elif isinstance(op, Compute):
            computes.append(op)
        elif isinstance(op, Read):
            reads.append(op)
    dots = sum(DOT in op.what for op in computes)
    if dots and reads:
        yield Product(tuple(reads), names, depth, dots)
    # A function of n tensors multiplies n - 1 times; what merges the parts of others takes one.
    called = (op for op in computes if len(op.takes) > 1)
    yield from (Product(tuple(reads), names, depth, len(op.takes) - 1, op) for op in called)


def _straight(body: tuple[Op, ...]) -> Iterator[Op]:
    """The ops of a body, those under tests included."""
    for op in body:
        if isinstance(op, If):
            yield from _straight(op.body)
        else:
            yield op


@dataclass(frozen=True, slots=True)
class Event:
    """An await or signal. `late`: how much of its tile's work comes before it, by tile and turn; `index`: of the flag; `there`:
    where it is executed."""

    row: Row
    late: Array
    index: Array
    there: Array


@dataclass(slots=True)
class Work:
    """A loop of an executor. Its arrays have the axes of its rows, if nothing else is said."""

    table: Table
    executor: Executor
    loop: Tiles
    machine: Machine
    rows: list[Row] = field(default_factory=list[Row])
    costs: list[tuple[Row, Array]] = field(default_factory=list["tuple[Row, Array]"])
    """By row, the microseconds in each turn of each tile."""
    at: Array = None
    """(rank, index, …): the position of each tile; -1: none is."""
    us: Array = None
    """(rank, position): what each tile takes."""
    awaits: list[Event] = field(default_factory=list[Event])
    signals: list[Event] = field(default_factory=list[Event])

    def __post_init__(self) -> None:
        table, loop = self.table, self.loop
        self.rows = [r for r in table.rows if r.loop is loop]
        self.at = table.at(loop) if loop.axes else np.zeros(table.ranks, dtype=np.int64)
        made = [*products(loop.body)]
        operands = {id(read) for p in made for read in p.operands}
        self._accesses(operands, multiplies=bool(made))
        for product in made:
            self._product(product)
        total = sum((self._over(row, us, 0) for row, us in self.costs), start=np.zeros((1,) * self._depth))
        self.us = self._by_position(total, 0.0)
        if self.by_workers:
            self._at_least([r for r in self.rows if id(r.op) in operands])
        events = [r for r in self.rows if isinstance(r.op, Await | Signal) and not getattr(r.op, "back", 0)]
        for row in events:
            (self.awaits if isinstance(row.op, Await) else self.signals).append(self._event(row))

    @property
    def by_workers(self) -> bool:
        return self.executor.engine == "workers"

    @property
    def workers(self) -> int:
        return max(self.executor.workers, 1)

    @property
    def tiles(self) -> int:
        """The most that a rank has."""
        return int(self.at.max(initial=-1)) + 1

    @property
    def _depth(self) -> int:
        return self.rows[0].depth if self.rows else self.at.ndim

    # ------------------------------------------------------------------------------------------------------ reads, writes
    def _accesses(self, operands: set[int], *, multiplies: bool) -> None:
        """Of a product's tile, operands come while others are multiplied, and what it stores on its rank is in its fixed cost."""
        copies = {id(op.target): op.source for op in walk(self.loop.body) if isinstance(op, Copy)}
        sources = {id(source) for source in copies.values()}
        for row in self.rows:
            if isinstance(row.op, Await) and row.op.bell:
                self._cost(row, np.full((1,) * row.depth, self.machine.bell))
            if not isinstance(row.op, Read | Write) or id(row.op) in sources:
                continue
            own, away = row.values["rank"], row(row.op.rank) != row.values["rank"]
            if id(row.op) in copies:
                away = away | (row(copies[id(row.op)].rank) != own)
                self._cost(row, self._copied(nbytes(self.table, row), away))
            elif self.by_workers:
                hidden = id(row.op) in operands or (multiplies and isinstance(row.op, Write))
                near = 0.0 if hidden else 1 / self.machine.local_rate(self.workers)
                far = 1 / self.machine.remote_rate(self.workers)
                self._cost(row, nbytes(self.table, row) * self._share(row) * np.where(away, far, near))

    def _copied(self, size: Array, away: Array) -> Array:
        machine, workers = self.machine, self.workers
        if self.by_workers:
            near, far = (
                2 / machine.local_rate(workers),
                1 / machine.local_rate(workers) + 1 / machine.remote_rate(workers),
            )
            return size * np.where(away, far, near)
        return machine.copy + size * np.where(away, workers / machine.link, 2 / machine.memory)

    def _share(self, row: Row) -> float:
        """Of what data picks from a box, a tile takes its share."""
        return 1 / max(self.tiles, 1) if row.op.by_data is not None and self.loop.by_data is None else 1.0

    @staticmethod
    def _where(row: Row, values: Array) -> Array:
        """Values, and 0 where the op is not executed."""
        for condition in row.conditions:
            values = values * condition
        return values

    def _cost(self, row: Row, us: Array) -> None:
        taken = self._where(row, np.ones((1,) * row.depth))
        again = [k for k in self._axes(row, len(row.around)) if us.shape[k] == 1 and isinstance(row.op, Read)]
        if again:  # in each turn: it comes from memory once
            lengths = self._lengths(row)
            often = taken.sum(axis=tuple(again), keepdims=True)
            often = often * math.prod(lengths[k] for k in again if taken.shape[k] == 1)
            taken = taken / np.maximum(often, 1)
        self.costs.append((row, us * taken))

    # ----------------------------------------------------------------------------------------------------------- products
    def _product(self, product: Product) -> None:
        high, wide = self.tile
        for row, deep in self.deep(product):
            if product.function is None:
                self._cost(row, self.machine.per_depth(high, wide) * self.subtiles * product.often * deep)
            else:
                once = self.machine.library(high, wide, float(deep.max()), self.table.lowered.sms)
                read = sum(float(nbytes(self.table, r).max()) for r in self._operands(product))
                us = max(product.often * once, read / self.machine.memory) + self.machine.library_call
                self._cost(row, np.full((1,) * row.depth, us))

    def _operands(self, product: Product) -> list[Row]:
        return [r for r in self.rows if any(r.op is read for read in product.operands)]

    def deep(self, product: Product) -> list[tuple[Row, Array]]:
        """How far a product sums up in each turn, by the reads of one operand; where it takes all at once, as its operands' sizes
        and that of what it makes tell."""
        found = self._operands(product)
        for param in dict.fromkeys(r.op.param for r in found):
            rows = [r for r in found if r.op.param == param]
            if walks(rows[0], product.names) is not None:
                return [(r, walks(r, product.names) / self._turns(r, product.depth)) for r in rows]
        last = [r for r in found if r.op.param == found[-1].op.param]
        both = max(map(volume, last)) * max((volume(r) for r in found if r not in last), default=1.0)
        return [(r, np.full((1,) * r.depth, math.sqrt(both / max(math.prod(self.tile), 1)))) for r in last]

    def by_library(self) -> float:
        """All of the loop's products on a rank by one call each of a library."""
        high, wide = self.tile
        across = max((k for k, n in enumerate(self.loop.tile) if n != 1), default=len(self.loop.axes) - 1)
        columns = self.at.shape[1 + across] * wide
        us = np.zeros(self.table.ranks)
        for product in products(self.loop.body):
            deep = sum(self._over(row, self._where(row, each), 0) for row, each in self.deep(product))
            most = deep.max(axis=tuple(range(1, deep.ndim)))
            rows, read = (
                self.tiles * self.subtiles * high * wide / columns,
                sum(map(self._touched, self._operands(product))),
            )
            once = [self.machine.library(rows, columns, float(n), self.table.lowered.sms) for n in most]
            us = us + np.maximum(product.often * np.array(once), read / self.machine.memory * (most > 0))
        return float(us.max())

    def reached(self) -> Iterator[tuple[str, float]]:
        """Buffers, and the bytes of them on other ranks that all ranks together read and write."""
        for row in self.rows:
            if isinstance(row.op, Read | Write):
                away = (row(row.op.rank) != row.values["rank"]) * nbytes(self.table, row)
                moved = self._where(row, away)
                lengths = (self.table.ranks, *self._lengths(row)[1:])
                often = math.prod(n for n, m in zip(lengths, moved.shape, strict=True) if m == 1)
                yield row.op.buffer, float(moved.sum()) * often

    @property
    def tile(self) -> tuple[float, float]:
        """Rows and columns of what a tile makes: those that it has room for, or else the most that it writes."""
        room = [n for n in self.loop.tile if n != 1]
        if room and None not in room:
            return math.prod(n or 1 for n in room[:-1]), room[-1] or 1
        largest = max((r for r in self.rows if isinstance(r.op, Write)), key=volume, default=None)
        if largest is None:
            return LARGE.rows, LARGE.columns
        *_, (low, high) = largest.op.box
        wide = float((largest(high) - largest(low)).max(initial=0))
        return volume(largest) / max(wide, 1), wide

    @property
    def subtiles(self) -> float:
        """How many tiles one of a run-time split stands for."""
        if self.loop.by_data is None:
            return 1.0
        most = max((volume(r) for r in self.rows if isinstance(r.op, Write)), default=1.0)
        return max(most / math.prod(self.tile), 1.0)

    # -------------------------------------------------------------------------------------------------------------- tiles
    def _at_least(self, operands: Sequence[Row]) -> None:
        """What a tile takes besides; and that all tiles together take as long as memory takes for what they multiply."""
        self.us = self.us + (self.subtiles * self.machine.fixed(*self.tile) if operands else self.machine.tile_latency)
        if self.loop.by_data is not None:
            self.us = self.us / self.workers
        waves = -(-self.tiles // self.workers)
        self.us = np.maximum(self.us, sum(map(self._touched, operands)) / self.machine.memory / max(waves, 1))

    def _touched(self, row: Row) -> float:
        """Bytes of memory that all tiles of a rank touch, each once."""
        return float(ITEM_BYTES[self.table.lowered.buffer(row.op.buffer).dtype]) * math.prod(self._extent(row))

    @staticmethod
    def _extent(row: Row) -> list[float]:
        """From the first to the last element that all tiles of a rank touch, along each axis of the memory."""
        found = list[float]()
        for low, high in row.op.box:
            axes = tuple(range(1, row.depth))
            long = row(high).max(axis=axes, initial=0) - row(low).min(axis=axes, initial=1 << 62)
            found.append(max(float(long.max(initial=0)), 0.0))
        return found

    def _by_position(self, values: Array, nothing: float) -> Array:
        """(rank, position) of what depends on no turn."""
        shape, ranks = self.at.shape, self.table.ranks
        wide = np.broadcast_to(values.reshape(values.shape[: len(shape)]), shape).reshape(ranks, -1)
        out = np.full((ranks, self.tiles + 1), nothing)
        out[np.arange(ranks)[:, None], self.at.reshape(ranks, -1)] = wide  # position -1 is the last one, and is dropped
        return out[:, :-1]

    def by_tile(self, values: Array) -> Array:
        """The axes of the rows, of what is known by position."""
        ranks = self.table.ranks
        padded = np.pad(values, ((0, 0), (0, 1)))
        found = padded[np.arange(ranks)[:, None], self.at.reshape(ranks, -1)].reshape(self.at.shape)
        return found.reshape(self.at.shape + (1,) * (self._depth - self.at.ndim))

    def ready(self, found: Sequence[Array]) -> Array:
        """(rank, position): the latest of some times by tile and turn."""
        latest = np.full((1,) * self._depth, -np.inf)
        for times in found:
            latest = np.maximum(latest, times.max(axis=tuple(range(self.at.ndim, self._depth)), keepdims=True))
        return self._by_position(latest, -np.inf)

    # ------------------------------------------------------------------------------------------------------------- events
    def _event(self, row: Row) -> Event:
        late = np.zeros((1,) * row.depth)
        for other, us in self.costs:
            among = shared(row, other)
            each = self._over(other, us, among)
            if among:
                each, whole = in_turn(each, self._axes(row, among), self._lengths(row)), each
                late = late + each + (whole if before(other, row) else 0.0)
            elif before(other, row):
                late = late + each
        there = self._where(row, np.ones((1,) * row.depth, dtype=np.bool_))
        return Event(row, late, row(row.op.index), there)

    def latest(self, event: Event, then: Event, times: Array) -> Array | None:
        """Of some times by tile and turn of one event, the latest that comes before the other one."""
        among, own = shared(event.row, then.row), self._axes(event.row, len(event.row.around))
        first = before(event.row, then.row)
        axes = own[among:]
        found = times.max(axis=axes, keepdims=True) if axes else times
        if not among:
            return found if first else None
        return in_turn(found, own[:among], self._lengths(event.row), most=True, with_own=first)

    def _over(self, row: Row, us: Array, among: int) -> Array:
        """Of what a row costs in each turn, the sum over the turns of the loops around it but for the first few."""
        lengths = self._lengths(row)
        for axis in self._axes(row, len(row.around))[among:]:
            us = us.sum(axis=axis, keepdims=True) * (lengths[axis] if us.shape[axis] == 1 else 1)
        return us

    def _turns(self, row: Row, depth: int) -> int:
        """Of the loops around a row but for the first few."""
        lengths = self._lengths(row)
        return math.prod(lengths[axis] for axis in self._axes(row, len(row.around))[depth:]) or 1

    @staticmethod
    def _axes(row: Row, count: int) -> tuple[int, ...]:
        return tuple(axis for _, axis in row.around[:count])

    @staticmethod
    def _lengths(row: Row) -> tuple[int, ...]:
        return tuple(max((c.shape[k] for c in row.taken), default=1) for k in range(row.depth))


def shared(a: Row, b: Row) -> int:
    """How many loops are around both."""
    both = zip(a.around, b.around, strict=False)
    return next((k for k, (x, y) in enumerate(both) if x != y), min(len(a.around), len(b.around)))


def in_turn(
    values: Array, axes: tuple[int, ...], lengths: tuple[int, ...], *, most: bool = False, with_own: bool = False
) -> Array:
    """Of what is known by turn of nested loops, the sum over all turns before each; `most`: the greatest, perhaps `with_own`."""
    wide = np.broadcast_to(values, tuple(lengths[k] if k in axes else n for k, n in enumerate(values.shape)))
    moved = np.moveaxis(wide, axes, range(-len(axes), 0))
    flat = moved.reshape(*moved.shape[: -len(axes)], -1)
    found = np.maximum.accumulate(flat, axis=-1) if most else np.cumsum(flat, axis=-1)
    if not with_own:
        found = np.concatenate([np.full_like(found[..., :1], -np.inf if most else 0.0), found[..., :-1]], axis=-1)
    return np.moveaxis(found.reshape(moved.shape), range(-len(axes), 0), axes)


def walks(row: Row, names: frozenset[str]) -> Array | None:
    """How far a read goes in a turn of the loop whose names these are; None: it is the same in each."""
    out, found = np.ones((1,) * row.depth), False
    for low, high in row.op.box:
        if (F.symbols(low) | F.symbols(high)) & names:
            out, found = out * np.maximum(row(high) - row(low), 0), True
    return out if found else None


def volume(row: Row) -> float:
    """The most elements that an access touches in a turn."""
    return math.prod(float((row(high) - row(low)).max(initial=0)) for low, high in row.op.box)


def nbytes(table: Table, row: Row) -> Array:
    """Of an access, in each turn of each tile."""
    out = np.full((1,) * row.depth, float(ITEM_BYTES[table.lowered.buffer(row.op.buffer).dtype]))
    for low, high in row.op.box:
        out = out * np.maximum(row(high) - row(low), 0)
    return out
