"""Rule 5, deadlock: no executor waits for itself; where one does, on other ranks, only for strictly earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx

from tilelink.errors import Note, TilelinkError
from tilelink.ir.plan import Plan
from tilelink.mapping.exact import Moment, NotExact, Outside, circle_of, described, small_worlds
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.hosting import STAGING, executors
from tilelink.mapping.verify.onward import onward
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.runs import runs_of
from tilelink.mapping.verify.together import together


def check_deadlock(plan: Plan, world: World, laid: Mapping[str, Laid]) -> str:
    """Raises:
    TilelinkError: TL605 with a circle of waits; TL606 where neither proof nor circle is found.
    """
    graph: Any = executors(plan)
    said: list[str] = []
    for members in nx.strongly_connected_components(graph):
        if len(members) > 1 or any(graph.has_edge(m, m) for m in members):
            said.append(_circle(plan, world, laid, graph, set(members)))
    roles = [((path,), n) for k in plan.kernels for path, n in k.beside]
    roles += [(k.in_turn, k.roles[-1][1]) for k in plan.kernels]
    resident = ", ".join(f"{n or 1} of {', then '.join(f'`{p}`' for p in paths)}" for paths, n in roles)
    workers = f"with all workers resident ({resident})" if resident else "on streams alone"
    if not said:
        order = " → ".join(f"`{p}`" for p in nx.lexicographical_topological_sort(graph) if p != STAGING)
        return f"no executor waits for itself ({order}), {workers}"
    return f"{'; '.join(said)}; one worker of each would do, {workers}"


def _circle(plan: Plan, world: World, laid: Mapping[str, Laid], graph: Any, members: set[str]) -> str:
    """Executors that wait for one another."""
    name = ", ".join(f"`{m}`" for m in sorted(members - {STAGING}))
    inside = graph.subgraph(members).edges(data="by")
    if all(by == "words" for *_, by in inside):
        if len(members) == 1 and together(plan, world, laid, next(iter(members))):
            return f"{name} waits in each tile for the same tile of other ranks, which all take in one order"
        runs = runs_of(plan, world, laid, sorted(members))
        if runs is not None:
            return f"{name} {'waits' if len(members) == 1 else 'wait'} for earlier runs only, {runs}"
    if onward(plan, world, laid, graph, members):
        return f"{name} {'waits' if len(members) == 1 else 'wait'} for other ranks in one direction only"
    try:
        circle, events = circle_of(plan)
    except NotExact:
        raise _refuted(plan, members) from None
    except Outside as outside:
        raise _unproven(plan, members, str(outside)) from outside
    if circle is not None:
        raise _deadlock(plan, circle, "")
    return f"{name} waits for itself without a circle, by the exact graph of {events} events"


def _refuted(plan: Plan, members: set[str]) -> TilelinkError:
    """A circle in a small world is one in the large one as well."""
    for small in small_worlds(plan):
        try:
            circle, _ = circle_of(small)
        except (NotExact, Outside):
            continue
        if circle is not None:
            return _deadlock(plan, circle, f" (shown for {described(small)})")
    return _unproven(plan, members, "there are too many tiles to look at each")


def _deadlock(plan: Plan, cycle: tuple[Moment, ...], where: str) -> TilelinkError:
    first = cycle[0].event
    return TilelinkError(
        "TL605",
        f"`{first.path}` waits in a circle for itself{where}",
        loc=first.loc,
        why="a worker takes its tiles in order, so whoever waits for a later tile of a worker that waits for him waits forever",
        hint=_advice(plan, cycle),
        notes=tuple(_step(m) for m in cycle),
    )


def _step(m: Moment) -> Note:
    e = m.event
    verb = "waits" if e.waits else "would notify" if e.raises else "goes on"
    where = (
        f"at tile {e.tile_text}, the {_nth(e.position)} of its order" if e.tile else f"as the {_nth(e.position)} step"
    )
    return Note(f"rank {e.rank}: `{e.path}` {verb} {where}", e.loc)


def _nth(position: int) -> str:
    n = position + 1
    if n % 100 in (11, 12, 13):
        return f"{n}th"
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th') }"


def _advice(plan: Plan, cycle: tuple[Moment, ...]) -> str:
    """Whoever hands rows on must take the others' rows first, and all of the circle in one order."""
    hosts = [plan.step(path) for path in sorted({m.event.executor for m in cycle if m.event.kind != "host"})]
    names = " and ".join(f"`{h.path}`" for h in hosts)
    have = [", ".join(f'"{n}"' for n in h.order_names) for h in hosts]
    if len(hosts) > 1:
        return f'let {names} take their tiles in one order, such as order="ring+1" (now {" and ".join(have)})'
    return f'order {names} so that what others wait for comes first, such as order="ring+1" (now {have[0]})'


def _unproven(plan: Plan, members: set[str], why: str) -> TilelinkError:
    steps = sorted(members - {STAGING})
    return TilelinkError(
        "TL606",
        f"it cannot be shown that {', '.join(f'`{m}`' for m in steps)} ever ends",
        loc=plan.step(steps[0]).step.loc,
        why=f"tiles wait for tiles of the same workers, in no order of runs, and {why}",
        hint='use order=("ring+1", …), or give the steps workers of their own',
        notes=tuple(Note(f"`{m}`", plan.step(m).step.program.loc) for m in steps),
    )
