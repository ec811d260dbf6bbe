"""Rule 5 for executors that wait in a circle, but for other ranks in one direction only: nobody is ever waited for in turn.

Where a tile of one rank waits for a tile of another, draw an arrow from rank to rank; where executors of one rank wait for one
another, or begin behind one another, an arrow from executor to executor. If neither drawing has a circle, nobody waits for
ever, whatever the orders of tiles are: take the first of the ranks that anybody is stuck on, and there the first executor.
Stages of a pipeline are so, and a state that is handed on along a sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np

from tilelink.ir.plan import Plan
from tilelink.mapping.verify.geometry import Bools, World
from tilelink.mapping.verify.hosting import STAGING
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.words import Told, delivery, signals_on

MOST_ARROWS = 100_000


def onward(plan: Plan, world: World, laid: Mapping[str, Laid], graph: Any, members: set[str]) -> bool:
    """Whether the members of a circle of executors are proven to end by the rule above."""
    if STAGING in members:
        return False
    here: nx.DiGraph[str] = nx.DiGraph()
    here.add_edges_from((a, b) for a, b, by in graph.subgraph(members).edges(data="by") if by != "words")
    arrows = np.zeros((world.ranks, world.ranks), dtype=np.bool_)
    for channel in plan.channels:
        notifies = [t for t in signals_on(plan, laid, channel, "notify") if t.executor in members]
        for wait in signals_on(plan, laid, channel, "await"):
            if wait.executor not in members:
                continue
            for notify in notifies:
                told = _tells(world, notify, wait)
                if told is None:
                    return False
                if bool(told.diagonal().any()):
                    here.add_edge(notify.executor, wait.executor)
                arrows |= told
    np.fill_diagonal(arrows, val=False)
    if int(arrows.sum()) > MOST_ARROWS or not nx.is_directed_acyclic_graph(here):
        return False
    return nx.is_directed_acyclic_graph(nx.DiGraph([(int(a), int(b)) for a, b in np.argwhere(arrows)]))


def _tells(world: World, notify: Told, wait: Told) -> Bools | None:
    """(rank, rank): whose notify may raise a word that whose wait looks at; None: data says."""
    to = delivery(notify)
    told = np.zeros((world.ranks, world.ranks), dtype=np.bool_)
    if to.kind == "all":
        told |= world.same_line(notify.laid.step.axis)
    elif to.kind == "one" and to.to is not None:
        told[np.arange(world.ranks), to.to] = True
    elif to.kind == "tile" and to.to is not None:
        for rank, peers in enumerate(to.to):
            told[rank if len(to.to) > 1 else slice(None), np.unique(peers)] = True
    else:
        return None
    return told & _acts(world, notify)[:, None] & _acts(world, wait)[None, :]


def _acts(world: World, told: Told) -> Bools:
    """The ranks that may give the signal."""
    found = np.ones(world.ranks, dtype=np.bool_)
    for key, holds in told.mask.by.items():
        spans = told.laid.spans.get(key) if key is not None else None
        found &= np.asarray(holds if spans is None else holds & spans.real).any(axis=1)
    return found
