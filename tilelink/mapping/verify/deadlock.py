"""Rule 5, deadlock: no executor waits for itself; where one does, on other ranks, only for strictly earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx

from tilelink.errors import Note, TilelinkError
from tilelink.ir.plan import Plan
from tilelink.mapping.verify.exact import Moment, find_cycle, shrunk, size_of
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.hosting import executors
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.runs import shift_of_runs

EXACT = 20_000
"""Signals of all ranks up to which the graph of the actual plan is built."""


def check_deadlock(plan: Plan, world: World, laid: Mapping[str, Laid]) -> str:
    """Raises:
    TilelinkError: TL605 with a circle of waits; TL606 where neither proof nor circle is found.
    """
    graph: Any = executors(plan)
    said: list[str] = []
    for members in nx.strongly_connected_components(graph):
        if len(members) > 1 or any(graph.has_edge(m, m) for m in members):
            said.append(_circle(plan, world, laid, graph, set(members)))
    resident = ", ".join(f"{n or 1} of `{path}`" for k in plan.kernels for path, n in k.roles)
    workers = f"with all workers resident ({resident})" if resident else "on streams alone"
    if not said:
        order = " → ".join(f"`{p}`" for p in nx.lexicographical_topological_sort(graph))
        return f"no executor waits for itself ({order}), {workers}"
    return f"{'; '.join(said)}; one worker of each would do, {workers}"


def _circle(plan: Plan, world: World, laid: Mapping[str, Laid], graph: Any, members: set[str]) -> str:
    """Executors that wait for one another."""
    name = ", ".join(f"`{m}`" for m in sorted(members))
    if len(members) == 1:
        host = plan.step(next(iter(members)))
        shift = shift_of_runs(plan, world, laid, host)
        if shift is not None:
            start = "its own rows" if shift == 0 else f"the rows of rank + {shift}"
            return f"{name} waits for strictly earlier runs of the ring, which begins at {start}"
    nodes = size_of(plan, world, members)
    if nodes <= EXACT:
        cycle = find_cycle(plan, members)
        if cycle is not None:
            raise _deadlock(plan, cycle, "")
        return f"{name} waits for itself without a circle, by the exact graph of {nodes} signals"
    small = shrunk(plan)
    cycle = find_cycle(small, members)
    if cycle is not None:
        sizes = ", ".join(f"{n}={v}" for n, v in small.sizes)
        raise _deadlock(plan, cycle, f" (shown for {small.topology.ranks} ranks and {sizes})")
    raise _unproven(plan, graph, members, nodes)


def _deadlock(plan: Plan, cycle: tuple[Moment, ...], where: str) -> TilelinkError:
    start = next((i for i, m in enumerate(cycle) if m.waits), 0)
    around = cycle[start:] + cycle[:start]
    first = around[0]
    return TilelinkError(
        "TL605",
        f"`{first.path}` waits in a circle for itself{where}",
        loc=first.loc,
        why="a worker takes its tiles in order, so whoever waits for a later tile of a worker that waits for him waits forever",
        hint=_advice(plan, first),
        notes=tuple(_step(around, i) for i in range(len(around)) if _tells(around, i)),
    )


def _tells(around: tuple[Moment, ...], i: int) -> bool:
    """Whether the moment is one to show: a wait, or the notify that it waits for."""
    return around[i].waits or around[(i + 1) % len(around)].rank != around[i].rank


def _step(around: tuple[Moment, ...], i: int) -> Note:
    m = around[i]
    verb = "waits" if m.waits else "would notify"
    return Note(f"rank {m.rank}: `{m.path}` {verb} at tile {m.tile_text}, the {_nth(m.position)} of its order", m.loc)


def _nth(position: int) -> str:
    n = position + 1
    if n % 100 in (11, 12, 13):
        return f"{n}th"
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th') }"


def _advice(plan: Plan, first: Moment) -> str:
    host = plan.step(first.executor)
    have = " ".join(f'"{n}"' for n in host.order_names)
    return f'order `{host.path}` so that what others wait for comes first: order="ring+1" instead of {have}'


def _unproven(plan: Plan, graph: Any, members: set[str], nodes: int) -> TilelinkError:
    del graph
    first = plan.step(min(members))
    return TilelinkError(
        "TL606",
        f"it cannot be shown that {', '.join(f'`{m}`' for m in sorted(members))} ever ends",
        loc=first.step.loc,
        why=f"tiles wait for tiles of the same workers, in no order of runs, and {nodes} signals are too many to look at",
        hint='use order=("ring+1", …), or give the steps workers of their own',
        notes=tuple(Note(f"`{m}`", plan.step(m).step.program.loc) for m in sorted(members)),
    )
