"""The least that any schedule of a call can take on a machine, which resource says so, and how far a plan is from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilelink.cost.machine import H200, Machine
from tilelink.cost.model import predict
from tilelink.cost.prediction import Played, Prediction
from tilelink.cost.rows import Array, access, touched
from tilelink.cost.work import Work
from tilelink.ir.lowered import Lowered, Read, Write

Spans = tuple[tuple[float, float], ...]
CLOSE = 0.005
"""Of the whole call: what a resource pauses for less does not end an interval."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What one resource needs for what it has to do in any schedule.

    Attributes:
        resource: `compute`, `memory`, `link out`, `link in`, `network out`, `network in` or `critical path`.
        rank: the one where it needs the most.
        us: how long it needs.
        busy: from when until when the plan is predicted to use it there, in microseconds.
    """

    resource: str
    rank: int
    us: float
    busy: Spans = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """`limits`: by resource, the largest first: it *binds*. `prediction`: of the plan that was asked about."""

    limits: tuple[Limit, ...]
    prediction: Prediction = field(repr=False)

    @property
    def binds(self) -> Limit:
        """The resource that no schedule can relieve."""
        return self.limits[0]

    @property
    def us(self) -> float:
        """The least time of any schedule."""
        return self.binds.us

    @property
    def gap(self) -> float:
        """By what share of the bound the plan is predicted to take longer."""
        return self.prediction.us / self.us - 1 if self.us else 0.0

    def __str__(self) -> str:
        found = self.binds
        when = f" from {found.busy[0][0]:.0f} to {found.busy[-1][1]:.0f} µs" if found.busy else ""
        return (
            f"{self.gap:.0%} from the bound ({self.prediction.us:.0f} µs of at least {self.us:.0f}); "
            f"the {found.resource} of rank {found.rank} binds{when}"
        )


def bound(lowered: Lowered, machine: Machine = H200) -> Bound:
    """What the data of a call need on a machine, however they are tiled, ordered and moved.

    Products need the multiprocessors at `flops_limit`; arguments that are read and results that are written pass through memory
    once, at `memory_limit`; what goes from rank to rank passes each GPU's links once, at `link_limit`. A kernel has to be
    launched, and what comes from others has to be told. What data decides is left out, and so are functions of libraries,
    whose products a lowered plan does not say.
    """
    prediction = predict(lowered, machine)
    found = list(_limits(prediction.loops, machine))
    return Bound(tuple(sorted(found, key=lambda limit: -limit.us)), prediction)


def _limits(loops: Sequence[Played], machine: Machine) -> Iterator[Limit]:
    works = [played.work for played in loops]
    ranks = works[0].table.ranks if works else 1
    launch = machine.launch if any(w.executor.engine.launched for w in works) else 0.0
    near, far = _crossing(works, machine, ranks)
    told = (machine.network_signal if far.any() else machine.remote_signal) if near.any() or far.any() else 0.0
    yield Limit("critical path", 0, launch + told)
    flops = sum((w.flops() for w in works), start=np.zeros(ranks))
    if flops.any():
        yield _limit("compute", launch + flops / machine.flops_limit, [_of_rank(p) for p in loops if p.work.made])
    passed = _memory(works, ranks)
    if passed.any():
        yield _limit("memory", launch + passed / machine.memory_limit, [_of_rank(p) for p in loops])
    # All that goes to one peer goes over one link where there are no switches.
    one = machine.link_limit * machine.peer_link / machine.link
    for name, moved, rate, alone in (
        ("link", near, machine.link_limit, one),
        ("network", far, machine.network, np.inf),
    ):
        for way, axis in (("out", 1), ("in", 0)):
            if moved.any():
                us = np.maximum(moved.sum(axis=axis) / rate, moved.max(axis=axis) / alone)
                crossing = [_of_link(p, way, machine, name == "link") for p in loops if any(p.work.crossing())]
                yield _limit(f"{name} {way}", us, crossing)


def _crossing(works: Sequence[Work], machine: Machine, ranks: int) -> tuple[Array, Array]:
    """(rank, rank): the bytes that have to go from one to the other over links, and between nodes."""
    moved = np.zeros((ranks, ranks))
    for work in works:
        for row, between in work.crossing():
            if row.by_data:
                continue
            if isinstance(row.op, Read):
                # What many tiles read has to come once.
                between = np.minimum(between, touched(work.table, row)).T
            moved = moved + between
    return machine.split(moved)


def _memory(works: Sequence[Work], ranks: int) -> Array:
    """By rank, the bytes of arguments and results that are read or written there by the rank itself."""
    most = dict[str, float]()
    for work in works:
        for row in work.rows:
            op = row.op
            if not isinstance(op, Read | Write) or row.by_data:
                continue
            space = work.table.lowered.buffer(op.buffer).space
            here = bool((row(access(row).rank) == row.values["rank"]).all())
            if here and space == ("argument" if isinstance(op, Read) else "result"):
                most[op.buffer] = max(most.get(op.buffer, 0.0), touched(work.table, row))
    return np.full(ranks, sum(most.values()))


# ---------------------------------------------------------------------------------------------------------- when in use
def _limit(resource: str, us: Array, used: Sequence[tuple[Array, Array, Array]]) -> Limit:
    """`used`: begin and end of tiles, by rank and position, and whether they use it there."""
    rank = int(np.argmax(us))
    begins = np.concatenate([b[there[:, :, rank]] for b, _, there in used])
    ends = np.concatenate([e[there[:, :, rank]] for _, e, there in used])
    return Limit(resource, rank, float(us[rank]), _merged(begins, ends))


def _of_rank(played: Played) -> tuple[Array, Array, Array]:
    """Tiles use what is on their own rank."""
    ranks, tiles = played.ends.shape
    there = np.broadcast_to(np.eye(ranks, dtype=np.bool_)[:, None, :], (ranks, tiles, ranks))
    return played.ends - played.work.us, played.ends, there & (played.work.us > 0)[:, :, None]


def _of_link(played: Played, way: str, machine: Machine, near: bool) -> tuple[Array, Array, Array]:
    """Tiles use the links of their own rank, and of the one that they reach into, in opposite directions."""
    ranks, tiles = played.ends.shape
    there = np.zeros((ranks, tiles, ranks), dtype=np.bool_)
    rank = np.arange(ranks)
    kind = machine.same_node(rank[:, None], rank) == near
    for row, sent in played.work.sent():
        reached = (sent > 0) & kind[:, None, :]
        own = np.eye(ranks, dtype=np.bool_)[:, None, :] & reached.any(axis=2, keepdims=True)
        there |= own if (way == "in") == isinstance(row.op, Read) else reached
    return played.ends - played.work.us, played.ends, there


def _merged(begins: Array, ends: Array) -> Spans:
    """What intervals cover together."""
    if not len(begins):
        return ()
    order = np.argsort(begins)
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    new = np.flatnonzero(begins[1:] > reached[:-1] + CLOSE * reached[-1]) + 1
    first, last = np.concatenate([[0], new]), np.concatenate([new, [len(begins)]]) - 1
    return tuple((float(a), float(b)) for a, b in zip(begins[first], reached[last], strict=True))
