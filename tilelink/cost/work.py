"""What the tiles of a loop do, in microseconds: how long each takes, and how much of that comes before an await or signal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilelink.cost.machine import LARGE, Machine
from tilelink.cost.products import Product, products
from tilelink.cost.rows import (
    Array,
    axes_of,
    columns,
    in_turn,
    nbytes,
    once,
    repeated,
    shared,
    summed,
    touched,
    volume,
    where,
)
from tilelink.ir.lowered import Await, Executor, Read, Signal, Tiles, Write
from tilelink.ir.shape import ITEM_BYTES
from tilelink.proof.runs import before
from tilelink.proof.table import Row, Table


@dataclass(frozen=True, slots=True)
class Event:
    """An await or signal. `late`: how much of its tile's work comes before it, by tile and turn; `index`: of the flag; `there`:
    where it is executed."""

    row: Row
    late: Array
    index: Array
    there: Array


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of a row in each turn of each tile: `us` whatever else goes on, and what `link` and `memory` take where nobody
    else uses them."""

    row: Row
    us: Array
    link: Array = 0.0
    memory: Array = 0.0

    def slowed(self, link: Array, memory: Array) -> Cost:
        """Where links and memory take so many times as long on each rank."""
        if (link == 1).all() and (memory == 1).all():
            return replace(self, us=self.us + self.link + self.memory)
        shape = (-1,) + (1,) * (self.row.depth - 1)
        return replace(self, us=self.us + self.link * link.reshape(shape) + self.memory * memory.reshape(shape))


class Work:
    """A loop of an executor. Its arrays have the axes of its rows, if nothing else is said.

    Attributes:
        operands: the places of what products read.
        costs, products: of rows, but for `fixed`, of each tile besides.
        at: (rank, index, …), the position of each tile; -1: none is.
        own, us: (rank, position), what each tile takes for its products, and in all.
    """

    us: Array
    awaits: list[Event]
    signals: list[Event]

    def __init__(self, table: Table, executor: Executor, loop: Tiles, machine: Machine) -> None:
        self.table, self.executor, self.loop, self.machine = table, executor, loop, machine
        self.rows = [r for r in table.rows if r.loop is loop]
        self.at: Array = table.at(loop) if loop.axes else np.zeros(table.ranks, dtype=np.int64)
        self.made = tuple(products(loop.body))
        operands = [row for product in self.made for row in product.rows(self.rows)]
        self.operands = frozenset(row.place for row in operands)
        self.costs = [*self._accesses()]
        self.products = [cost for product in self.made for cost in self._product(product)]
        self.fixed = 0.0
        if self.by_workers:
            self.fixed = self.subtiles * self.machine.fixed(*self.tile) if self.made else self.machine.tile_latency
        self.own = self._total(self.products, self.fixed)
        if self.by_workers:
            waves = max(-(-self.tiles // self.workers), 1)
            deep = sum(float(self._deep(p).max(initial=0)) * p.often for p in self.made)
            read = sum(touched(table, row) for row in operands)
            self.own = self.own * self.machine.sustained(deep, self.tiles / waves / self.machine.sms)
            self.own = np.maximum(self.own, read / self.machine.memory / waves)
        self.share(np.ones(table.ranks), np.ones(table.ranks))

    def share(self, link: Array, memory: Array) -> None:
        """Work out how long each tile takes, and what of it comes before its awaits and signals, where links and memory take so
        many times as long on each rank."""
        costs = [cost.slowed(link, memory) for cost in self.costs]
        self.us = self.own + self._total(costs, 0.0)
        self.awaits, self.signals = [], []
        costs += self.products
        for row in self.rows:
            if isinstance(row.op, Await) and not row.op.back:
                self.awaits.append(self._event(row, row.op, 0.0, costs))
            elif isinstance(row.op, Signal):
                self.signals.append(self._event(row, row.op, self.fixed, costs))

    @property
    def by_workers(self) -> bool:
        return self.executor.engine.by == "kernel"

    @property
    def first(self) -> int:
        """The number of its first worker among all of its kernel."""
        others = self.table.lowered.executors
        mine = others.index(self.executor)
        return sum(max(e.workers, 1) for e in others[:mine] if e.kernel and e.kernel == self.executor.kernel)

    @property
    def workers(self) -> int:
        return max(self.executor.workers, 1)

    @property
    def tiles(self) -> int:
        """The most that a rank has."""
        return int(self.at.max(initial=-1)) + 1

    @property
    def tile(self) -> tuple[float, float]:
        """Rows and columns of what a tile makes: those that it has room for, or else the most that it writes."""
        room = [n for n in self.loop.tile if n is not None and n != 1]
        if room and None not in self.loop.tile:
            return math.prod(room[:-1]), room[-1]
        largest = max((r for r in self.rows if isinstance(r.op, Write)), key=volume, default=None)
        if largest is None:
            return LARGE.rows, LARGE.columns
        return volume(largest) / columns(largest), columns(largest)

    @property
    def subtiles(self) -> float:
        """How many tiles one of a run-time split stands for."""
        if self.loop.by_data is None:
            return 1.0
        most = max((volume(r) for r in self.rows if isinstance(r.op, Write)), default=1.0)
        return max(most / math.prod(self.tile), 1.0)

    @property
    def _depth(self) -> int:
        return self.rows[0].depth if self.rows else self.at.ndim

    # -------------------------------------------------------------------------------------------------------------- costs
    def _accesses(self) -> Iterator[Cost]:
        """Of a product's tile, operands come while others are multiplied, and what it stores on its rank is in its fixed cost."""
        here = max(1 / self.machine.worker_memory, self.workers / self.machine.memory)
        for row in self.rows:
            if isinstance(row.op, Await) and row.op.doorbell:
                yield Cost(row, where(row, self.machine.doorbell))
            if not isinstance(row.op, Read | Write) or (row.copy is not None and isinstance(row.op, Read)):
                continue
            rank, size = row.values["rank"], nbytes(self.table, row)
            peer = row(row.op.rank)
            if row.copy is not None:
                source = row(row.copy.source.rank)
                away, pull = (peer != rank) | (source != rank), bool((source != rank).any())
                there = self._per_byte(row, np.where(source != rank, source, peer), pull)
                fixed = 0.0 if self.by_workers else self.machine.copy
                local = here * np.where(away, 1, 2) if self.by_workers else np.where(away, 0, 2 / self.machine.memory)
                us, size = where(row, fixed), where(row, size)
                yield Cost(row, us, size * np.where(away, there, 0.0), size * local)
            elif self.by_workers:
                hidden = row.place in self.operands or (self.made and isinstance(row.op, Write))
                # Of what data picks from a box, a tile takes its share.
                share = max(self.tiles, 1) if row.op.by_data is not None and self.loop.by_data is None else 1
                often = once(row, size / share) if isinstance(row.op, Read) else where(row, size / share)
                there = self._per_byte(row, peer, isinstance(row.op, Read))
                away, local = peer != rank, 0.0 if hidden else here
                yield Cost(row, 0.0, often * np.where(away, there, 0.0), often * np.where(away, 0.0, local))

    def _per_byte(self, row: Row, peer: Array, pull: bool) -> Array:
        """Microseconds for a byte between two ranks, by one of the workers. All whose tiles of a wave reach other ranks share
        what the links give, and so do streams."""
        machine, rank = self.machine, row.values["rank"]
        if not (peer != rank).any():
            return np.zeros((1,) * row.depth)
        together: Array = self._together(row, peer != rank) if self.by_workers else self.workers

        def us(near: bool) -> Array:
            shared = together / (machine.link if near else machine.network)
            if self.by_workers:
                alone = machine.remote_rate(pull=pull, warps=self.executor.warps, near=near)
            else:
                alone = machine.peer_link if near else machine.network
            return np.maximum(1 / alone, shared)

        if self.table.ranks <= machine.gpus:
            return us(True)
        return np.where(machine.same_node(rank, peer), us(True), us(False))

    def _together(self, row: Row, there: Array) -> Array:
        """By tile, how many tiles of its wave an op is executed for where this holds."""
        wide = where(row, there)
        turns = tuple(range(self.at.ndim, row.depth))
        by_position = self._by_position(wide.max(axis=turns, keepdims=True) if turns else wide, 0.0)
        ranks, tiles = by_position.shape
        waves = -(-tiles // self.workers)
        padded = np.pad(by_position, ((0, 0), (0, waves * self.workers - tiles))).reshape(ranks, waves, self.workers)
        return self.by_tile(np.repeat(padded.sum(axis=2), self.workers, axis=1)[:, :tiles])

    def _product(self, product: Product) -> Iterator[Cost]:
        high, wide = self.tile
        for row, deep in product.deep(self.rows, high * wide):
            if product.function is None:
                us = self.machine.per_depth(high, wide) * self.subtiles * product.often * deep
            else:
                each = self.machine.library(high, wide, float(deep.max()), self.table.lowered.sms)
                read = sum(float(nbytes(self.table, r).max()) for r in product.rows(self.rows))
                us = max(product.often * each, read / self.machine.memory) + self.machine.library_call
            yield Cost(row, where(row, us))

    def _total(self, costs: Sequence[Cost], fixed: float) -> Array:
        """(rank, position): the sum of some costs. Workers share the tile that stands for those of a run-time split."""
        total = sum((summed(cost.row, cost.us) for cost in costs), start=np.full((1,) * self._depth, fixed))
        return self._by_position(total, 0.0) / (self.workers if self.loop.by_data is not None else 1)

    def _deep(self, product: Product) -> Array:
        """How far a product sums up in all turns, by rank and tile."""
        found = product.deep(self.rows, math.prod(self.tile))
        return np.asarray(sum(summed(row, where(row, far)) for row, far in found))

    def flops(self) -> Array:
        """By rank, of all products but those of libraries' functions, and where data decides how many there are."""
        out = np.zeros(self.table.ranks)
        for product in self.made:
            if product.function is not None or self.loop.by_data is not None:
                continue
            made = np.minimum(self._made(), math.prod(self.tile)) * (self._by_position(self._deep(product), 0.0))
            out = out + 2 * product.often * made.sum(axis=1)
        return out

    def _made(self) -> Array:
        """(rank, position): the elements that a tile writes."""
        out = np.zeros((1,) * self._depth)
        for row in self.rows:
            if isinstance(row.op, Write):
                size = nbytes(self.table, row) / ITEM_BYTES[self.table.lowered.buffer(row.op.buffer).dtype]
                out = out + summed(row, where(row, size))
        return self._by_position(out, 0.0)

    def by_library(self) -> float:
        """All of the loop's products on a rank by one call each of a library."""
        high, wide = self.tile
        last = max((k for k, n in enumerate(self.loop.tile) if n != 1), default=len(self.loop.axes) - 1)
        across = self.at.shape[1 + last] * wide
        down = self.tiles * self.subtiles * high * wide / max(across, 1)
        us = np.zeros(self.table.ranks)
        for product in self.made:
            most = self._deep(product).max(axis=tuple(range(1, self._depth)))
            read = sum(touched(self.table, row) for row in product.rows(self.rows))
            each = np.array([self.machine.library(down, across, float(n), self.table.lowered.sms) for n in most])
            us = us + np.where(most > 0, np.maximum(product.often * each, read / self.machine.memory), 0.0)
        return float(us.max())

    def crossing(self) -> Iterator[tuple[Row, Array]]:
        """Accesses of other ranks' memory, and how many bytes each rank moves to or from which other: (rank, other rank)."""
        return ((row, found.sum(axis=1)) for row, found in self.sent())

    def sent(self) -> Iterator[tuple[Row, Array]]:
        """The same by tile: (rank, position, other rank)."""
        ranks = self.table.ranks
        for row in self.rows:
            if not isinstance(row.op, Read | Write):
                continue
            rank, peer = row.values["rank"], row(row.op.rank)
            moved = where(row, nbytes(self.table, row) * (peer != rank))
            if not moved.any():
                continue
            at = self.at.reshape(self.at.shape + (1,) * (row.depth - self.at.ndim))
            moved, rank, at, peer = np.broadcast_arrays(moved, rank, at, np.clip(peer, 0, ranks - 1))
            found = np.zeros((ranks, self.tiles + 1, ranks))
            np.add.at(found, (rank, at, peer), moved * repeated(row, moved))
            yield row, found[:, :-1]  # position -1 is the last one

    # ---------------------------------------------------------------------------------------------------------- positions
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
        found = np.pad(values, ((0, 0), (0, 1)))[np.arange(ranks)[:, None], self.at.reshape(ranks, -1)]
        return found.reshape(self.at.shape + (1,) * (self._depth - self.at.ndim))

    def ready(self, found: Sequence[Array]) -> Array:
        """(rank, position): the latest of some times by tile and turn."""
        latest = np.full((1,) * self._depth, -np.inf)
        for times in found:
            latest = np.maximum(latest, times.max(axis=tuple(range(self.at.ndim, self._depth)), keepdims=True))
        return self._by_position(latest, -np.inf)

    # ------------------------------------------------------------------------------------------------------------- events
    def _event(self, row: Row, op: Await | Signal, late: float, costs: Sequence[Cost]) -> Event:
        out = np.full((1,) * row.depth, late)
        for other, us in ((cost.row, cost.us) for cost in costs):
            among, first = shared(row, other), before(other, row)
            if among:
                out = out + in_turn(row, summed(other, us, among), among, own=first)
            elif first:
                out = out + summed(other, us)
        return Event(row, out, row(op.index), where(row, True))

    @staticmethod
    def latest(event: Event, then: Event, times: Array) -> Array | None:
        """Of some times by tile and turn of one event, the latest that comes before the other one."""
        among, first = shared(event.row, then.row), before(event.row, then.row)
        alone = axes_of(event.row)[among:]
        found = times.max(axis=alone, keepdims=True) if alone else times
        if among:
            return in_turn(event.row, found, among, most=True, own=first)
        return found if first else None
