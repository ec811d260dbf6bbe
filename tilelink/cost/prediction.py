"""What a call is predicted to take: its end, and what each worker, stream and link does until then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tilelink.cost.rows import Array
from tilelink.cost.work import Work
from tilelink.ir.lowered import Read

LEAST = 0.005
"""Microseconds; what is shorter is no interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From when until when something happens on a rank, in microseconds from the beginning of the call.

    Attributes:
        resource: `SM 17`, `gather 0` (a stream of an executor's), `host`, `link out` or `link in`.
        name: the step.
        kind: `work`, `wait`, `copy` (by a stream) or `transfer` (what a link does meanwhile).
        tile: its indices; none of what has no tiles.
        nbytes: of a copy or transfer.
    """

    rank: int
    resource: str
    name: str
    start_us: float
    end_us: float
    label: str
    tile: tuple[int, ...]
    kind: str
    nbytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """A loop that has been played through. `begin`, `end`: by rank; `who`: (rank, worker), the number of the worker that takes
    positions `w`, `w + workers`, …; `begins`, `ends`: (rank, position), when each tile could begin and when it has ended."""

    work: Work
    begin: Array
    end: Array
    who: Array
    begins: Array
    ends: Array


@dataclass(frozen=True)
class Prediction:
    """`begins`, `ends`: of each executor, by name, on each rank, in microseconds from the beginning of the call."""

    begins: Mapping[str, Array]
    ends: Mapping[str, Array]
    loops: tuple[Played, ...] = field(default=(), repr=False)
    flags: Mapping[str, Array] = field(default_factory=dict[str, Array], repr=False)
    """By name, (rank, flag), when each is complete; minus infinity for those that nobody signals."""

    @property
    def us(self) -> float:
        """Until the last rank is through."""
        return max((float(end.max(initial=0.0)) for end in self.ends.values()), default=0.0)

    @cached_property
    def timeline(self) -> tuple[Interval, ...]:
        """What everything does, by rank, resource and begin."""
        found = [i for played in self.loops for i in _intervals(played)]
        return tuple(sorted(found, key=lambda i: (i.rank, _natural(i.resource), i.start_us)))

    def on(self, rank: int, resource: str | None = None) -> tuple[Interval, ...]:
        """What a rank does, or one resource of it."""
        return tuple(i for i in self.timeline if i.rank == rank and resource in (None, i.resource))


def _natural(resource: str) -> tuple[str, int]:
    name, _, number = resource.rpartition(" ")
    return (name, int(number)) if number.isdigit() else (resource, 0)


def _intervals(played: Played) -> Iterator[Interval]:
    work = played.work
    name, by, workers, first = work.loop.path, work.executor.engine.by, played.who.shape[1], work.first
    indices = _indices(work)
    links = [*work.sent()]
    for rank in range(played.ends.shape[0]):
        ends, lengths, frees = played.ends[rank].tolist(), work.us[rank].tolist(), played.begins[rank].tolist()
        numbers = played.who[rank].tolist()
        for t, each in enumerate(indices[rank].tolist()):
            tile = tuple(each)
            if tile and tile[0] < 0:
                continue
            number, end, long, free = numbers[t % workers], ends[t], lengths[t], frees[t]
            on = {"kernel": f"SM {number + first}", "stream": f"{work.executor.name} {number}"}.get(by, "host")
            if end - long - free > LEAST:
                yield Interval(rank, on, name, free, end - long, f"wait: {name} {_said(tile)}", tile, "wait")
            moved = sum(float(sent[rank, t].sum()) for _, sent in links)
            if long > LEAST:
                kind = "copy" if by == "stream" and not work.made else "work"
                yield Interval(rank, on, name, end - long, end, f"{name} {_said(tile)}", tile, kind, moved)
            for row, sent in links:
                for peer in np.flatnonzero(sent[rank, t]):
                    source, target = (int(peer), rank) if isinstance(row.op, Read) else (rank, int(peer))
                    label, size = f"{name}: rank {source} to rank {target}", float(sent[rank, t, peer])
                    yield Interval(source, "link out", name, end - long, end, label, tile, "transfer", size)
                    yield Interval(target, "link in", name, end - long, end, label, tile, "transfer", size)


def _said(tile: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, tile))}]" if tile else ""


def _indices(work: Work) -> list[Array]:
    """By rank, the indices of the tile at each position; -1 where there is none."""
    out: list[Array] = []
    axes = work.at.ndim - 1
    for at in work.at:
        found = np.full((work.tiles, axes), -1)
        there = np.argwhere(np.asarray(at) >= 0)
        found[np.asarray(at)[tuple(there.T)] if axes else np.zeros(len(there), dtype=int)] = there
        out.append(found)
    return out
