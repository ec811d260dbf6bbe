"""Rule 5 for executors that wait for themselves, or in a circle, on other ranks: cut their orders into runs.

Rank q takes the rows of part p in run (p - q - shift) mod R (or, part by part, p R more). If no order ever goes back to an
earlier run, and whatever a tile waits for is raised by tiles of a strictly earlier run on the rank that raises it, then
nobody waits for itself: along a chain of waits the run only grows. Between two executors the same run will do, if it only
ever goes one way. One worker suffices for this, and so any number does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import networkx as nx
import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.verify.geometry import Bools, Ints, Spans, World
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.taking import turn_of
from tilelink.mapping.verify.words import Delivery, Told, Words, delivery, signals_on, spans_on

DIRECT = 4_000_000
"""Positions of all ranks that may be looked at one by one, where the order is no rotation."""
ALL_PAIRS = 64
Chosen: TypeAlias = "tuple[tuple[StepPlan, int], ...]"
"""Executors, each with the axis of its grid along which the parts lie."""


def runs_of(plan: Plan, world: World, laid: Mapping[str, Laid], members: list[str]) -> str | None:
    """How the orders of executors are cut so that they wait for earlier runs only, in words; None: not in these ways.

    Along one axis of ranks: what waits in a circle along several is played through.
    """
    if len(plan.axes) > 1:
        return None
    cuts = [[(plan.step(m), a) for a, g in enumerate(plan.step(m).grid) if g.kind == "cut"] for m in members]
    for chosen in product(*cuts):
        orders = [_order(world, host, axis) for host, axis in chosen]
        parts = {world.part(host.grid[axis].size) for host, axis in chosen}
        found = [o for o in orders if o is not None]
        if len(found) < len(orders) or len(parts) > 1:
            continue
        for distance, text in _ways(chosen, found, world.ranks):
            if not all(o.ascends(distance) for o in found):
                continue
            if _Runs(plan, world, laid, dict(zip(members, chosen, strict=True)), distance).wait_for_earlier():
                return text
    return None


def _ways(chosen: Chosen, orders: list[Order], ranks: int) -> Iterator[tuple[Ints, str]]:
    """(rank, part) -> run: round the ring from where the ranks begin, or part by part and round the ring in each."""
    own, part = np.arange(ranks, dtype=np.int64)[:, None], np.arange(ranks, dtype=np.int64)[None, :]
    shifts = [s for (host, _), order in zip(chosen, orders, strict=True) for s in _shifts(host, order, ranks)]
    for shift in dict.fromkeys(shifts):
        yield (part - own - shift) % ranks, f"round the ring from the rows of {_place(shift)}"
    for shift in (1, 0):
        yield part * ranks + (part - own - shift) % ranks, f"part by part, in each round the ring from {_place(shift)}"


def _place(shift: int) -> str:
    return "its own rank" if shift == 0 else f"rank + {shift}"


# --------------------------------------------------------------------------------------------------------------- orders
@dataclass(frozen=True, slots=True)
class Order:
    """`parts`: the part that a rank is in, position by position where it changes (ranks, changes)."""

    parts: Ints
    real: Bools

    def ascends(self, distance: Ints) -> bool:
        """Along each rank's sequence the distance never falls."""
        runs = np.take_along_axis(distance, self.parts, axis=1)
        return bool(((np.diff(runs, axis=1) >= 0) | ~self.real[:, 1:]).all())


def _shifts(host: StepPlan, order: Order, ranks: int) -> list[int]:
    """Where the runs may begin: as the schedule says, or where the ranks do begin."""
    named = [int(n[5:]) % ranks for n in host.order_names if n.startswith("ring+") and n[5:].isdigit()]
    named += [0 for n in host.order_names if n == "ring"]
    if not order.parts.shape[1]:
        return named or [0]
    seen = (order.parts[:, 0] - np.arange(ranks)) % ranks
    return list(dict.fromkeys([*named, *(int(s) for s in np.unique(seen)[:4])]))


def _order(world: World, host: StepPlan, axis: int) -> Order | None:
    total = world.value(host.total)
    if int(total.max()) == 0:
        return Order(np.zeros((world.ranks, 0), np.int64), np.zeros((world.ranks, 0), np.bool_))
    if len(total) == 1 and not world.by_rank(*(value for _, value in host.order)):
        return _same_for_all(world, host, axis, int(total.max()))
    found = _rotation(world, host, axis, total) if len(total) == 1 else None
    if found is None and int(total.max()) * world.ranks <= DIRECT:
        found = _direct(world, host, axis, total)
    return found


def _same_for_all(world: World, host: StepPlan, axis: int, total: int) -> Order | None:
    """The order of all ranks, where it is one: the parts in turn."""
    env = _turns(world, host, total)
    parts = _part_of(world, host, axis, np.broadcast_to(env[f"i{axis}"], (1, total)))
    if parts is None:
        return None
    turns = parts[0, np.flatnonzero(np.diff(parts[0], prepend=-1))]
    if len(turns) * world.ranks > DIRECT:
        return None
    shape = (world.ranks, len(turns))
    return Order(np.broadcast_to(turns, shape), np.ones(shape, dtype=np.bool_))


def _turns(world: World, host: StepPlan, total: int) -> dict[str, Any]:
    """What the order makes of positions up to `total`, on all ranks."""
    env: dict[str, Any] = {"t": np.arange(total, dtype=np.int64)[None, :]}
    for name, value in host.order:
        env[name] = world.value(value, env)
    return env


def _part_of(world: World, host: StepPlan, axis: int, index: Any) -> Ints | None:
    """The part in which tile `index` lies; None if some tile lies in two."""
    grid = host.grid[axis]
    at = F.Sym("_at")
    begin, end = (world.value(f, {"_at": index}) for f in (grid.begin(at), grid.end(at)))
    size = world.part(grid.size)
    first, last = begin // size, np.maximum(end - 1, begin) // size
    return first.astype(np.int64) if bool((first == last).all()) else None


def _direct(world: World, host: StepPlan, axis: int, total: Any) -> Order | None:
    env = _turns(world, host, int(total.max()))
    parts = _part_of(world, host, axis, env[f"i{axis}"])
    if parts is None:
        return None
    shape = (world.ranks, env["t"].shape[1])
    return Order(np.broadcast_to(parts, shape), np.broadcast_to(env["t"] < total, shape))


def _rotation(world: World, host: StepPlan, axis: int, total: Any) -> Order | None:
    """The order of all ranks from one walk: each goes round the same circle and starts elsewhere.

    That is so if the rank enters by one let `(e + start) % length` alone, in which `e` rises with the position.
    """
    turn = turn_of(host)
    if turn is None:
        return None
    name, rises, start, length = turn
    env: dict[str, Any] = {"t": np.arange(int(total.max()), dtype=np.int64)[None, :]}
    for n, value in host.order:
        if n == name:
            break
        if not world.by_rank(value):
            env[n] = world.value(value, env)
    size = int(world.value(length, env).max())
    steps = world.value(rises, env)
    if size < 1 or bool((np.diff(steps, axis=1) < 0).any()) or int(steps.max()) >= size:
        return None
    index = _index_on_circle(world, host, axis, name, size)
    parts = _part_of(world, host, axis, index) if index is not None else None
    if parts is None:
        return None
    first = np.broadcast_to(world.value(start, env), (world.ranks, 1)) % size
    return _round(parts[0], first, int(steps[0, 0]), int(steps[0, -1]))


def _index_on_circle(world: World, host: StepPlan, axis: int, name: str, size: int) -> Any | None:
    """The tile index on `axis` at each point of the circle; None if it depends on more than that."""
    env: dict[str, Any] = {name: np.arange(size, dtype=np.int64)[None, :]}
    after = False
    for n, value in host.order:
        if after and F.symbols(value) <= env.keys() | dict(world.plan.sizes).keys() | {"RANKS"}:
            env[n] = world.value(value, env)
        after = after or n == name
    return env.get(f"i{axis}")


def _round(parts: Ints, first: Ints, lowest: int, highest: int) -> Order | None:
    """Blocks of equal part on a circle, seen from each rank's start."""
    size = len(parts)
    if lowest != 0 or highest != size - 1:
        return None
    starts = np.flatnonzero(np.concatenate([[True], np.diff(parts) != 0]))
    blocks = len(starts)
    block = np.searchsorted(starts, first[:, 0], side="right") - 1
    sequence = (block[:, None] + np.arange(blocks + 1)[None, :]) % blocks
    real = np.ones_like(sequence, dtype=np.bool_)
    # Whoever starts inside a block comes back to its beginning at the end.
    real[:, -1] = first[:, 0] != starts[block]
    return Order(parts[starts][sequence], real)


# ---------------------------------------------------------------------------------------------------------------- waits
@dataclass(frozen=True, slots=True)
class _Runs:
    plan: Plan
    world: World
    laid: Mapping[str, Laid]
    hosts: Mapping[str, tuple[StepPlan, int]]
    """Executor -> its step and the axis of its grid along which the parts lie."""
    distance: Ints
    """(rank, part) -> run."""

    def wait_for_earlier(self) -> bool:
        """Every wait is for an earlier run, or for the same one of another executor, which then never waits back."""
        level: nx.DiGraph[str] = nx.DiGraph()
        for channel in self.plan.channels:
            notifies = [t for t in signals_on(self.plan, self.laid, channel, "notify") if t.executor in self.hosts]
            waits = [t for t in signals_on(self.plan, self.laid, channel, "await") if t.executor in self.hosts]
            for w in waits:
                for n in notifies:
                    if not self._holds(channel, w, n, np.less):
                        if not self._holds(channel, w, n, np.less_equal):
                            return False
                        level.add_edge(n.executor, w.executor)
        return nx.is_directed_acyclic_graph(level)

    def _holds(self, channel: Channel, wait: Told, notify: Told, before: Any) -> bool:
        """Whether the run of each notify is `before` that of the waits which hear it."""
        waits, raises = self._parts(channel, wait), self._parts(channel, notify)
        if waits is None or raises is None or (wait.laid.step.push is False):
            return False
        to, run = delivery(notify), self.distance
        ranks = np.arange(self.world.ranks)
        skip = notify.laid.keeps_own or self._just_made(wait, notify)
        if to.kind == "one" and to.to is not None:
            # q tells to[q], of the same part.
            bad = waits[to.to] & raises & ~before(run, run[to.to])
            return not (bad & ((to.to != ranks)[:, None] if skip else True)).any()
        if to.kind == "tile" and self._to_parts(notify, to):
            # q tells the rank that holds part p.
            bad = waits[ranks, ranks][None, :] & raises & ~before(run, run[ranks, ranks][None, :])
            return not (bad & ((ranks[:, None] != ranks[None, :]) if skip else True)).any()
        if to.kind == "all" and self.world.ranks <= ALL_PAIRS:
            bad = waits[:, None, :] & raises[None, :, :] & ~before(run[None, :, :], run[:, None, :])
            return not (bad & ((ranks[:, None] != ranks[None, :])[:, :, None] if skip else True)).any()
        return False

    def _just_made(self, wait: Told, notify: Told) -> bool:
        """Whether a fused step waits, as far as its own rank goes, for what its host has announced in that very tile."""
        step, host = wait.laid.step, notify.laid.step
        if step.into is None or step.into != host.path:
            return False
        pairs = list(zip(wait.words, notify.words, strict=True))
        return all(
            any(self._of_one_tile(w, n, notify, step.host_axes, a) for w, n in pairs) for a in self.world.several(host)
        )

    def _of_one_tile(
        self, wait: Words, notify: Words, told: Told, host_axes: tuple[int | None, ...], axis: int
    ) -> bool:
        """Whether each tile of this rank's part, along an axis of the host, has a word of its own for the notify and the wait."""
        spans = told.laid.spans[axis]
        if wait.by_data or notify.by_data or notify.key != axis or not isinstance(wait.key, int) or spans is None:
            return False
        alone = np.array_equal(notify.first, notify.last) and np.array_equal(wait.first, wait.last)
        other = np.diff(notify.first, axis=1) > 0
        if axis == self.hosts[told.executor][1] and self._to_parts(told, delivery(told)):
            other = other | (np.diff(spans.begin // self._part(told), axis=1) != 0)
        return alone and host_axes[wait.key] == axis and bool(other.all())

    def _part(self, told: Told) -> int:
        host, axis = self.hosts[told.executor]
        return self.world.part(host.grid[axis].size)

    def _grid_axis(self, told: Told) -> int | None:
        step = told.laid.step
        _, axis = self.hosts[told.executor]
        if step.into is None:
            return axis
        return next((k for k, a in enumerate(step.host_axes) if a == axis), None)

    def _parts(self, channel: Channel, told: Told) -> Bools | None:
        """(rank, part): whether the signal is given for tiles of that part; None: its words do not tell parts apart."""
        key = self._grid_axis(told)
        for axis in channel.axes:
            if axis.axis is None or axis.kind not in ("cut", "part") or key is None:
                continue
            found = spans_on(told, axis.axis)
            if found is None or found[0] != key or self.world.part(axis.size) != self._part(told):
                continue
            spans = told.mask.on(found[1], key)
            return self._by_part(spans, spans.begin // self.world.part(axis.size))
        return None

    def _by_part(self, spans: Spans, part: Ints) -> Bools:
        ranks, filled = self.world.ranks, spans.filled
        out = np.zeros((ranks, ranks), dtype=np.bool_)
        if not filled.size:
            return out
        if len(part) == 1 and bool((np.diff(part, axis=1) >= 0).all()):
            starts = np.flatnonzero(np.diff(part[0], prepend=-1))
            out[:, part[0, starts]] = np.logical_or.reduceat(filled, starts, axis=1)
            return out
        row, col = np.nonzero(np.broadcast_to(filled, (ranks, filled.shape[1])))
        out[row, np.broadcast_to(part, (ranks, filled.shape[1]))[row, col]] = True
        return out

    def _to_parts(self, notify: Told, to: Delivery) -> bool:
        """Whether a tile goes to the rank whose part it lies in."""
        key = self._grid_axis(notify)
        spans = notify.laid.spans[key] if key is not None else None
        if key is None or to.key != key or to.to is None or spans is None:
            return False
        return bool((to.to == spans.begin // self._part(notify)).all())
