"""The exact graph of a small world: one node per signal of each tile, one worker per executor. To refute, or to accept
what is small enough to look at in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeAlias

import networkx as nx
import numpy as np

from tilelink.errors import Loc
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan, StepPlan
from tilelink.ir.program import Loop, Notify, Wait
from tilelink.mapping.orders import table_of
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.reach import Key, Laid, lay
from tilelink.mapping.verify.sites import sites
from tilelink.mapping.verify.words import Delivery, Told, Words, delivery, signals_on

WordNode: TypeAlias = tuple[str, int, tuple[int, ...]]
"""(channel, rank, word)"""
Graph: TypeAlias = "nx.DiGraph[Moment | WordNode]"


@dataclass(frozen=True, slots=True)
class Moment:
    """One signal of one tile on one rank."""

    rank: int
    executor: str
    worker: int
    position: int
    path: str
    tile: tuple[int, ...]
    op: int
    loc: Loc
    waits: bool

    @property
    def runs_on(self) -> tuple[int, str, int]:
        return self.rank, self.executor, self.worker

    @property
    def tile_text(self) -> str:
        return f"({', '.join(str(i) for i in self.tile)})"


def size_of(plan: Plan, world: World, members: set[str]) -> int:
    """Nodes that the graph of some executors would have."""
    total = 0
    for path in members:
        step = plan.step(path)
        signals = sum(len(list(_ops(plan.step(p)))) for p in (path, *step.fused))
        total += int(np.broadcast_to(world.value(step.total), (world.ranks, 1)).sum()) * signals
    return total


def shrunk(plan: Plan) -> Plan:
    """The same plan in a small world: at most four ranks, two tiles per part and axis."""
    ranks = min(plan.topology.ranks, 4)
    sizes: list[tuple[str, int]] = []
    for name, size in plan.sizes:
        tiles, split = 1, False
        for step in plan.steps:
            for g in (*step.grid, *step.loops):
                if name in F.symbols(g.size):
                    tiles = max(tiles, g.tile or 1)
                    split = split or g.ring is not None or g.kind in ("cut", "mine")
        sizes.append((name, max(1, min(size, 2 * tiles * (ranks if split else 1)))))
    small = replace(plan, sizes=tuple(sizes), topology=replace(plan.topology, ranks=ranks), tables=())
    tables = {first: _sorted(small, s) for s in plan.steps if s.sort_key is not None for first in _table_of(s)}
    return replace(small, tables=tuple(tables.items()))


def _table_of(step: StepPlan) -> Iterator[str]:
    """The name of the table that a user's order looks positions up in."""
    for _, value in step.order:
        if isinstance(value, F.Binary) and value.op == "at":
            yield str(value.left)


def _sorted(plan: Plan, step: StepPlan) -> tuple[tuple[int, ...], ...]:
    """A user's order on every rank of a world of another size."""
    assert step.sort_key is not None
    words = tuple(n for n in step.order_names if not n.startswith("by "))
    ranks = plan.topology.ranks
    return tuple(table_of(step.grid, words, step.sort_key, plan.env(r), r, ranks) for r in range(ranks))


def find_cycle(plan: Plan, members: set[str]) -> tuple[Moment, ...] | None:
    """Signals that wait for one another in a circle, if there are any: one that crosses between workers as seldom as
    can be, and of each worker only where it waits and what it would notify afterwards."""
    builder = _Builder(plan, World(plan), members)
    builder.build()
    for found in nx.strongly_connected_components(builder.graph):
        if len(found) > 1:
            return _told_apart(_shortest(builder.graph.subgraph(found)))
    return None


def _shortest(graph: Graph) -> list[Moment]:
    """Every signal of the graph lies on a circle; take a short one through a wait."""
    start = min((n for n in graph if isinstance(n, Moment) and n.waits), key=lambda m: (m.position, m.rank, m.op))
    best: list[Any] = []
    for before in graph.predecessors(start):
        path = nx.dijkstra_path(graph, start, before, weight=lambda a, b, _: 0 if isinstance(b, Moment) else 1)
        if not best or _crossings(path) < _crossings(best):
            best = path
    return [n for n in best if isinstance(n, Moment)]


def _crossings(path: list[Any]) -> int:
    return sum(not isinstance(n, Moment) for n in path)


def _told_apart(circle: list[Moment]) -> tuple[Moment, ...]:
    """Where the circle comes to a worker and where it leaves it."""
    around = zip(circle, [circle[-1], *circle[:-1]], [*circle[1:], circle[0]], strict=True)
    return tuple(m for m, before, after in around if m.runs_on != before.runs_on or m.runs_on != after.runs_on)


def _ops(step: StepPlan) -> Iterator[Wait | Notify]:
    return (s.op for s in sites(step.step.program) if isinstance(s.op, (Wait, Notify)))


def _empty() -> Graph:
    return nx.DiGraph()


@dataclass(slots=True)
class _Builder:
    plan: Plan
    world: World
    members: set[str]
    graph: Graph = field(default_factory=_empty)
    told: dict[tuple[str, int], Told] = field(default_factory=dict[tuple[str, int], Told])
    to: dict[tuple[str, int], Delivery] = field(default_factory=dict[tuple[str, int], Delivery])

    def build(self) -> None:
        laid = {s.path: lay(self.plan, self.world, s, dense=True) for s in self.plan.steps}
        self._collect(laid)
        for path in sorted(self.members):
            host = self.plan.step(path)
            for rank in range(self.world.ranks):
                self._worker(host, laid, rank)

    def _collect(self, laid: Mapping[str, Laid]) -> None:
        for channel in self.plan.channels:
            for action in ("await", "notify"):
                for told in signals_on(self.plan, laid, channel, action):
                    at = next(i for i, op in enumerate(_ops(told.laid.step)) if op == told.op)
                    self.told[(told.path, at)] = told
                    if action == "notify":
                        self.to[(told.path, at)] = delivery(told)

    def _worker(self, host: StepPlan, laid: Mapping[str, Laid], rank: int) -> None:
        """The tiles of one rank in order, each followed by what is fused into it; copy engines take turns."""
        last: dict[int, Moment] = {}
        for position, tile in enumerate(_tiles(self.world, host, rank)):
            worker = position % host.streams
            for path in (host.path, *host.fused):
                for moment in self._moments(laid[path], rank, host.path, worker, position, tile):
                    if worker in last:
                        self.graph.add_edge(last[worker], moment)
                    last[worker] = moment

    def _moments(
        self, laid: Laid, rank: int, executor: str, worker: int, position: int, tile: tuple[int, ...]
    ) -> Iterator[Moment]:
        step = laid.step
        own = tile if step.into is None else tuple(tile[a] if a is not None else 0 for a in step.host_axes)
        columns: dict[Key, int] = {a: (0 if g.kind == "own" else own[a]) for a, g in enumerate(step.grid)}
        if not all(_real(laid, a, rank, i) for a, i in columns.items()):
            return
        for at, op in enumerate(_ops(step)):
            told = self.told.get((step.path, at))
            if told is None:
                continue
            words = set(self._words(told, columns, rank))
            if not words:
                continue
            moment = Moment(rank, executor, worker, position, step.path, own, at, op.loc, isinstance(op, Wait))
            self.graph.add_node(moment)
            for word in words:
                if isinstance(op, Wait):
                    self.graph.add_edge((told.channel.name, rank, word), moment)
                else:
                    for receiver in self._receivers(told, self.to[(step.path, at)], columns, rank):
                        self.graph.add_edge(moment, (told.channel.name, receiver, word))
            yield moment

    def _words(self, told: Told, columns: dict[Key, int], rank: int) -> Iterator[tuple[int, ...]]:
        """The words of the tile; loops around the signal are walked."""
        loops: list[Key] = [loop.var for loop in told.site.loops if not isinstance(loop, Loop)]
        ranges: list[range] = []
        for key in loops:
            spans = told.laid.spans[key]
            ranges.append(range(spans.begin.shape[1] if spans is not None else 1))
        for chosen in product(*ranges):
            at = {**columns, **dict(zip(loops, chosen, strict=True))}
            if not all(_real(told.laid, k, rank, i) for k, i in zip(loops, chosen, strict=True)):
                continue
            if not _executed(told, at, rank):
                continue
            yield from product(*[_range(w, at, rank) for w in told.words])

    def _receivers(self, told: Told, to: Delivery, columns: dict[Key, int], rank: int) -> Iterator[int]:
        if to.kind == "all":
            found = range(self.world.ranks)
        elif to.kind == "one" and to.to is not None:
            found = [int(to.to[rank])]
        else:
            assert to.to is not None and to.key is not None
            found = [int(to.to[min(rank, to.to.shape[0] - 1), columns.get(to.key, 0)])]
        for receiver in found:
            if not (told.laid.keeps_own and receiver == rank):
                yield receiver


def _tiles(world: World, host: StepPlan, rank: int) -> Iterator[tuple[int, ...]]:
    env: dict[str, Any] = dict(world.plan.env(rank))
    total = int(F.evaluate(host.total, env))
    if not total:
        return
    env["t"] = np.arange(total)
    for name, value in host.order:
        env[name] = F.evaluate(value, env)
    columns = [np.broadcast_to(env[f"i{a}"], (total,)) for a in range(len(host.grid))]
    for t in range(total):
        yield tuple(int(c[t]) for c in columns)


def _real(laid: Laid, key: Key, rank: int, column: int) -> bool:
    spans = laid.spans[key]
    return spans is None or bool(spans.real[min(rank, spans.real.shape[0] - 1), min(column, spans.real.shape[1] - 1)])


def _executed(told: Told, at: Mapping[Key, int], rank: int) -> bool:
    for key, mask in told.mask.by.items():
        column = at.get(key, 0) if key is not None else 0
        if not mask[min(rank, mask.shape[0] - 1), min(column, mask.shape[1] - 1)]:
            return False
    return True


def _range(w: Words, at: Mapping[Key, int], rank: int) -> range:
    row = min(rank, w.first.shape[0] - 1)
    column = min(at.get(w.key, 0) if w.key is not None else 0, w.first.shape[1] - 1)
    last = w.last[min(rank, w.last.shape[0] - 1), min(column, w.last.shape[1] - 1)]
    return range(int(w.first[row, column]), int(last) + 1)
