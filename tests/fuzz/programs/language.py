"""What tile programs say, done at once on every rank's memory: the words of `tilelink.language` in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tests.fuzz.programs.blocks import Arithmetic, Block, Tile, block, held_as, lifted, of_data, power
from tests.fuzz.programs.memory import GIVEN, Coordinate, Instance, Memory, Param, Ranks, Unjudged

CALLS = 4000
"""Words that one run of a program may say."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a program. `kind`: unread | unwritten | conflict (no result has a meaning), or what a refusal may be
    for although the result has one: unwaited | untold | twice | circle | argument. `tensor`: what it is called, here and there;
    `by_data`: data decides it."""

    kind: str
    tensor: tuple[str, ...]
    text: str
    by_data: bool = False

    @property
    def fatal(self) -> bool:
        return self.kind in ("unread", "unwritten", "conflict")


@dataclass(eq=False)
class Run:
    """One tile of one step on one rank. `events`: numbers of its notifies, and for each wait the places that it names."""

    number: int
    step: str
    rank: int
    tile: tuple[Any, ...]
    domain: str
    params: list[Param]
    line: list[int]
    width: dict[str, int]
    steered: bool = False
    calls: int = 0
    events: list[int | list[tuple[Instance, Any]]] = field(default_factory=list[Any])
    waited: dict[int, Any] = field(default_factory=dict[int, Any])


class Hub(Protocol):
    """Who lets runs go on in turn."""

    run: Run
    ranks: Ranks
    reads: list[tuple[Memory, Instance, Any]]

    def give_way(self) -> bool:
        """False: everybody waits for what nobody writes."""
        ...

    def fault(self, kind: str, memory: Memory, text: str, by_data: bool = False) -> None: ...

    def number(self) -> int: ...


class Language(Arithmetic):
    """`tl`, for all runs of one call."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    # ------------------------------------------------------------------------------------------------------------- where
    def _grid(self, t: Param, index: Any) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Positions of each axis of a view, of shapes that broadcast, and the shape of the block."""
        run = self._hub.run
        run.calls += 1
        if run.calls > CALLS:
            raise Unjudged("a program without end")
        given = list(index) if isinstance(index, tuple) else [] if index is None else [index]
        if len(given) > len(t.views):
            raise Unjudged("more entries than axes")
        given += [self._whole(t, k) for k in range(len(given), len(t.views))]
        found, shape, together = list[tuple[Any, int | None]](), list[int](), None
        for entry in given:
            at = entry.positions if isinstance(entry, Tile) else np.asarray(entry)
            if at.ndim > 1:
                raise Unjudged("an index of several dimensions")
            if at.ndim == 0:
                found.append((at, None))
            elif isinstance(entry, Tile) or together is None:
                together = together if isinstance(entry, Tile) else len(shape)
                found.append((at, len(shape)))
                shape.append(len(at))
            else:
                found.append((at, together))
        grid = [a if d is None else a.reshape([-1 if k == d else 1 for k in range(len(shape))]) for a, d in found]
        return tuple(grid), tuple(shape)

    @staticmethod
    def _whole(t: Param, axis: int) -> Any:
        view = t.views[axis]
        return np.arange(view.size) if t.units[axis] else Tile(0, view.size, power(view.size))

    def _named(self, t: Param, grid: tuple[Any, ...]) -> Iterator[tuple[Instance, Any]]:
        """Whom a wait for a tile is for: its holders, or this rank."""
        if any(v.kind in ("own", "split") or v.owner for v in t.views):
            yield from t.everywhere(grid)
        else:
            instance, _, index = t.places(grid, np.bool_(True), t.rank)
            yield instance, index

    # ------------------------------------------------------------------------------------------------------------ signals
    def consumer_tile_wait(self, t: Param, tile: Any = None) -> None:
        places = list(self._named(t, self._grid(t, tile)[0]))
        for instance, index in places:
            self._hub.run.waited.setdefault(id(instance), np.zeros_like(instance.told, bool))[index] = True
        self._hub.run.events.append(places)
        t.memory.waited = True

    def producer_tile_notify(self, t: Param, tile: Any = None, mode: Any = None) -> None:
        del mode
        run, number = self._hub.run, self._hub.number()
        for instance, index in t.everywhere(self._grid(t, tile)[0]):
            mine = (instance.writer[index] == run.number) & (instance.told[index] == 0)
            instance.told[tuple(i[mine] for i in index)] = number
        run.events.append(number)
        t.memory.notified = True

    def peer_tile_wait(self, t: Param, tile: Any, rank: Any) -> None:
        del rank
        self.consumer_tile_wait(t, tile)

    def peer_tile_notify(self, t: Param, tile: Any, rank: Any) -> None:
        del rank
        self.producer_tile_notify(t, tile)

    rank_wait, rank_notify = consumer_tile_wait, producer_tile_notify

    # --------------------------------------------------------------------------------------------------------------- data
    def tile_load(self, t: Param, tile: Any = None, other: Any = 0) -> Block:
        grid, shape = self._grid(t, tile)
        instance, held, index = t.places(grid, np.ones(shape, bool), t.rank)
        self._read(t, instance, index)
        whole = t.memory.dtype.startswith("i")
        values = np.full(shape, other if other is not None else 0, np.int64 if whole else np.float64)
        values[held] = instance.values[index]
        return block(values, self._hub.run)

    def _read(self, t: Param, instance: Instance, index: Any) -> None:
        hub, run = self._hub, self._hub.run
        while not (there := instance.writer[index] != 0).all() and hub.give_way():
            pass
        if not there.all():
            by_data = bool(instance.perhaps[index][~there].all())
            hub.fault("unread", t.memory, f"{run.step} reads what nobody has written", by_data)
        strange = (instance.writer[index] != GIVEN) & (instance.writer[index] != run.number) & there
        seen = run.waited.get(id(instance))
        if strange.any() and (seen is None or not seen[index][strange].all()):
            hub.fault("unwaited", t.memory, f"{run.step} reads without a wait")
        hub.reads.append((t.memory, instance, tuple(i[strange] for i in index)))

    def tile_store(self, t: Param, tile: Any, value: Any, mask: Any = None) -> None:
        grid, shape = self._grid(t, tile)
        self._store(t, grid, shape, value, mask, [t.rank], of_data(tile))

    def tile_push_data(self, t: Param, tile: Any, data: Any, mask: Any = None) -> None:
        grid, shape = self._grid(t, tile)
        self._store(t, grid, shape, data, mask, t.line, of_data(tile))

    def _store(self, t: Param, grid: Any, shape: Any, value: Any, mask: Any, ranks: list[int], origin: object) -> None:
        where = np.broadcast_to(np.asarray(True if mask is None else mask), shape)
        values = np.broadcast_to(np.asarray(value), shape)
        t.memory.by_data |= origin is not None
        for rank in ranks:
            if of_data(mask) is not None:
                instance, _, index = t.places(grid, np.ones(shape, bool), rank)
                instance.perhaps[index] = True
            instance, held, index = t.places(grid, where, rank)
            self._written(t.memory, instance, index, held_as(t.dtype, values[held]))

    def _written(self, memory: Memory, instance: Instance, index: Any, values: Any) -> None:
        hub, run = self._hub, self._hub.run
        before = instance.writer[index]
        if (before == GIVEN).any():
            hub.fault("argument", memory, f"{run.step} writes to an argument")
        again = (before != 0) & (before != GIVEN)
        if again.any():
            differs = again & (values != instance.values[index])
            open_ = (before == run.number) & (instance.told[index] == 0)
            wrong = bool((differs & ~open_).any())
            hub.fault("conflict" if wrong else "twice", memory, f"{run.step} writes what was written before")
        instance.values[index], instance.writer[index], instance.told[index] = values, run.number, 0
        if (instance.values[index] != values).any() and not np.isnan(values.astype(float)).any():
            hub.fault("conflict", memory, f"{run.step} writes one element twice at once")

    def tile_pull_data(self, t: Param, tile: Any, source: Param) -> None:
        self._move(t, tile, source, [t.rank])

    def rank_copy_data(self, t: Param, tile: Any, source: Param) -> None:
        self._move(t, tile, source, t.line if self._hub.run.domain == source.name else [t.rank])

    def _move(self, t: Param, tile: Any, source: Param, ranks: list[int]) -> None:
        grid, shape = self._grid(t, tile)
        there, _ = self._grid(source, tile)
        missing = np.ones(shape, bool)
        values = np.zeros(shape, np.int64 if t.dtype.startswith("i") else np.float64)
        for rank in (source.rank, *source.line):
            instance, held, index = source.places(there, missing, rank)
            values[held] = instance.values[index]
            self._read(source, instance, index)
            values[held] = instance.values[index]
            missing = missing & ~held
        self._store(t, grid, shape, values, ~missing, ranks, of_data(tile))

    # --------------------------------------------------------------------------------------------------------------- tiles
    def tile_id(self, t: Param) -> Any:
        del t
        first, *others = self._hub.run.tile
        return (first, *others) if others else first

    def tile_shape(self, t: Param) -> tuple[int, ...]:
        del t
        return tuple(e.width for e in self._hub.run.tile if isinstance(e, Tile))

    def acc_dtype(self, t: Param) -> str:
        return "i32" if t.dtype.startswith("i") else "f32"

    def tiles(self, t: Param, axis: int = 0, start: Any = None, stop: Any = None, part: Any = None) -> Iterator[Any]:
        view = t.views[axis]
        low, high = 0, view.size
        if view.kind == "split":
            low = t.ranks.at(t.rank, str(view.over)) * view.part
            high = min(low + view.part, view.size)
        low = low if start is None else max(low, int(start))
        high = high if stop is None else min(high, int(stop))
        if part is not None:
            piece = -(-max(high - low, 0) // int(part[1]))
            low += int(part[0]) * piece
            high = min(low + piece, high)
        if t.units[axis]:
            ranks = view.kind in ("own", "ranks")
            yield from (Coordinate.of(i, view.size) if ranks else i for i in range(low, high))
            return
        width = self._width(t.dims[axis], max(high - low, 1))
        for begin in range(low, high, width):
            yield Tile(begin, min(begin + width, high), width)

    def _width(self, dim: str, size: int) -> int:
        return self._hub.run.width.get(dim, power(size))

    def tile_range(self, t: Param, tile: Any = None, axis: int = 0) -> Block:
        if tile is None:
            tile = Tile(0, t.views[axis].size, power(t.views[axis].size))
        return block(tile.range)

    def tile_mask(self, t: Param, tile: Tile, start: Any = None, stop: Any = None) -> Block:
        del t
        keep = lifted(
            lambda lo, hi: (tile.positions >= np.reshape(lo, (-1, 1))) & (tile.range < np.reshape(hi, (-1, 1)))
        )
        return keep(0 if start is None else start, tile.end if stop is None else stop)

    def tile_begin(self, t: Param, tile: Tile) -> int:
        del t
        return tile.begin

    def tile_end(self, t: Param, tile: Tile) -> int:
        del t
        return tile.end

    def segment(self, t: Param, tile: Tile) -> Block:
        return block(np.searchsorted(next(iter(t.segments.values())), tile.begin, "right") - 1, self._hub.run)

    def size(self, t: Param, axis: int) -> int:
        return t.views[axis].size

    def rank_of(self, t: Param, tile: Any) -> Any:
        given = tile if isinstance(tile, tuple) else (tile,)
        for entry, view in zip(given, t.views, strict=False):
            if view.kind in ("own", "split") or view.owner is not None:
                place = view.holder(entry.begin if isinstance(entry, Tile) else entry, t.ranks)
                return Coordinate.of(int(place), len(t.line))
        raise Unjudged("rank_of a tensor that everybody holds")

    def rank(self, axis: int = -1) -> int:
        del axis
        if len(self._hub.ranks.sizes) > 1:
            raise Unjudged("a rank's number where ranks have several axes")
        return self._hub.run.rank

    def num_ranks(self, axis: int = -1) -> int:
        del axis
        return len(self._hub.run.line)
