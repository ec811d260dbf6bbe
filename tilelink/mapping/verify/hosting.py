"""The sequence of a call as a graph: which executors have to be through before another one starts, or waits."""

from __future__ import annotations

from typing import TypeAlias

import networkx as nx

from tilelink.errors import TilelinkError
from tilelink.ir.plan import Fork, Join, Launch, Plan, StepPlan, Transfer

MAIN = 0
Graph: TypeAlias = "nx.DiGraph[str]"
"""Over executors; edges carry `by`: order | words."""


def root(step: StepPlan) -> str:
    """The executor of a step: the step whose workers, or stream, run it."""
    return step.into if step.into is not None else step.path


def executors(plan: Plan) -> Graph:
    """Executors with an edge from each to those that cannot finish before it.

    Raises:
        TilelinkError: TL609, a step that is never started or a side stream that nobody joins.
    """
    graph: Graph = nx.DiGraph()
    graph.add_nodes_from(root(s) for s in plan.steps)
    _in_order(plan, graph)
    for channel in plan.channels:
        using = [s for s in plan.signals if s.channel == channel.name]
        for notify in (s for s in using if s.action == "notify"):
            for wait in (s for s in using if s.action == "await"):
                edge = root(plan.step(notify.path)), root(plan.step(wait.path))
                if not graph.has_edge(*edge):
                    graph.add_edge(*edge, by="words")
    return graph


def _in_order(plan: Plan, graph: Graph) -> None:
    """A stream runs one thing after the other; a fork and a join carry that over to another stream."""
    behind: dict[int, set[str]] = {MAIN: set()}
    started: dict[str, int] = {}

    def start(paths: list[str], stream: int) -> None:
        before = behind.setdefault(stream, set())
        for path in paths:
            started[path] = started.get(path, 0) + 1
            graph.add_edges_from(((b, path) for b in sorted(before)), by="order")
        behind[stream] = before | set(paths)

    open_streams: set[int] = set()
    for h in plan.host:
        if isinstance(h, Fork):
            behind[h.stream] = behind.get(h.stream, set()) | behind[MAIN]
            open_streams.add(h.stream)
        elif isinstance(h, Join):
            behind[MAIN] = behind[MAIN] | behind.get(h.stream, set())
            open_streams.discard(h.stream)
        elif isinstance(h, Launch):
            kernel = next(k for k in plan.kernels if k.name == h.kernel)
            start([path for path, _ in kernel.roles], h.stream)
        elif isinstance(h, Transfer):
            streams = plan.step(h.path).streams
            joined = set[str]().union(*(behind.get(h.stream + k, set()) for k in range(streams)))
            behind[h.stream] = joined
            start([h.path], h.stream)
            for k in range(streams):
                behind[h.stream + k] = behind[h.stream]
    _check_started(plan, started, open_streams)


def _check_started(plan: Plan, started: dict[str, int], open_streams: set[int]) -> None:
    for s in plan.steps:
        times = started.get(root(s), 0)
        if times != 1:
            raise TilelinkError(
                "TL609",
                f"`{s.path}` is started {times} times in a call",
                loc=s.step.loc,
                why="each step runs once per call, on workers or a stream of its own or of the step it is fused into",
                hint="this is the plan's mistake and not yours: please report it with the schedule",
            )
    if open_streams:
        raise TilelinkError(
            "TL609",
            f"side stream {min(open_streams)} is never joined",
            loc=plan.wiring.loc,
            why="the next call, and whoever reads the results, would overtake it",
            hint="this is the plan's mistake and not yours: please report it with the schedule",
        )
