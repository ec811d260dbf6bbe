"""Workers stay until what they wait for has come, so all that run side by side have to find SMs, and streams one for what they
do by them: copies within the GPU, pulls, waiting for a flag that is no doorbell, functions of libraries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import networkx as nx
import numpy as np

from tilelink.ir.lowered import Await, Executor, Read, Write, walk
from tilelink.proof.findings import Found
from tilelink.proof.table import Row, Table


def crowded(table: Table) -> Iterator[Found]:
    taken, sms = _workers(table), table.lowered.sms
    waiting = next((r for r in table.rows if isinstance(r.op, Await) and r.executor.engine.sm == "worker"), None)
    if waiting is not None and taken > sms:
        yield Found(
            f"`{table.path(waiting)}` waits in kernels that have {taken} workers side by side, and there are {sms} SMs",
            "",
            (waiting,),
            why="a worker stays until what it waits for has come, and whoever makes that may find no SM meanwhile",
        )
    first = next((e for e in table.lowered.executors if _takes_an_sm(table, e)), None)
    if first is not None and taken >= sms:
        yield Found(
            f"`{first.loops[0].path}` needs an SM while {taken} workers, which may wait for it, can have all {sms}",
            "",
            why="a GPU copies within itself by its SMs, and a stream waits for peers by a kernel",
            loc=first.loops[0].loc,
        )


def _workers(table: Table) -> int:
    """The most that there can be at a time: of kernels of which none comes before another."""
    kernels: dict[str, list[Executor]] = {}
    for e in table.lowered.executors:
        if e.engine.sm == "worker":
            kernels.setdefault(e.kernel, []).append(e)
    together: nx.Graph[str] = nx.Graph()
    for name, members in kernels.items():
        together.add_node(name, weight=sum(e.workers for e in members))
    for a, b in combinations(kernels, 2):
        pairs = [(x.name, y.name) for x in kernels[a] for y in kernels[b]]
        if not all(x in table.ended[y] or y in table.ended[x] for x, y in pairs):
            together.add_edge(a, b)
    return int(nx.max_weight_clique(together)[1]) if kernels else 0


def _takes_an_sm(table: Table, e: Executor) -> bool:
    if e.engine.sm != "within":
        return e.engine.sm == "always"
    flags = {f.name: f.style for f in table.lowered.flags}
    ops = [op for loop in e.loops for op in walk(loop.body)]
    if any(isinstance(op, Await) and flags[op.flags] != "doorbell" for op in ops):
        return True
    rows = [r for r in table.rows if r.executor is e and isinstance(r.op, Read | Write)]
    within = [_stays(r) for r in rows if isinstance(r.op, Write)]
    # Where all workers begin when it has ended, there is room.
    workers = [other.name for other in table.lowered.executors if other.engine.sm == "worker"]
    return any(within) and not all(e.name in table.ended[name] for name in workers)


def _stays(row: Row) -> bool:
    """Whether some of what it writes lies on its own rank."""
    assert isinstance(row.op, Write)
    found = row(row.op.rank) == row.values["rank"]
    for condition in row.taken:
        found = found & condition
    return bool(np.any(found))


__all__ = ["crowded"]
