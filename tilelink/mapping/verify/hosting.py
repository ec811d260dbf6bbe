"""The sequence of a call as a graph: which executors have to be through before another one starts, or waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import networkx as nx

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.host import MAIN, Fork, HostStep, Join, Keep, Launch, Stage, Transfer
from tilelink.ir.plan import Plan, StepPlan
from tilelink.mapping.verify.mistakes import REPORT

STAGING = "the staging of arguments"
"""Stands among the executors for what the main stream does before it says that arguments are ready."""
Graph: TypeAlias = "nx.DiGraph[str]"
"""Over executors; edges carry `by`: order | words."""


def executors(plan: Plan) -> Graph:
    """Executors with an edge from each to those that cannot finish before it.

    Raises:
        TilelinkError: TL609, a step that is never started, a side stream that nobody joins.
    """
    sequence = _Sequence(plan)
    sequence.run()
    graph = sequence.graph
    for channel in plan.channels:
        using = [s for s in plan.signals if s.channel == channel.name]
        for notify in (s for s in using if s.action == "notify"):
            for wait in (s for s in using if s.action == "await"):
                _by_words(graph, plan.step(notify.path).executor, plan.step(wait.path).executor)
    for wait in (s for s in plan.signals if s.action == "ready"):
        if graph.has_node(STAGING):
            _by_words(graph, STAGING, plan.step(wait.path).executor)
    return graph


def _by_words(graph: Graph, first: str, then: str) -> None:
    if not graph.has_edge(first, then):
        graph.add_edge(first, then, by="words")


@dataclass(slots=True)
class _Sequence:
    """A stream runs one thing after the other; a fork and a join carry that over to another stream."""

    plan: Plan
    graph: Graph = field(default_factory=lambda: nx.DiGraph())
    behind: dict[int, set[str]] = field(default_factory=lambda: {MAIN: set[str]()})
    started: dict[str, int] = field(default_factory=dict[str, int])
    open_streams: set[int] = field(default_factory=set[int])
    staged: set[str] = field(default_factory=set[str])

    def run(self) -> None:
        self.graph.add_nodes_from(s.executor for s in self.plan.steps)
        for h in self.plan.host:
            self._step(h)
        for s in self.plan.steps:
            times = self.started.get(s.executor, 0)
            if times != 1:
                why = "each step runs once per call, on workers or a stream of its own or of the step it is fused into"
                raise _wrong(f"`{s.path}` is started {times} times in a call", why, s.step.loc)
        if self.open_streams:
            why = "the next call, and whoever reads the results, would overtake it"
            raise _wrong(f"side stream {min(self.open_streams)} is never joined", why, self.plan.wiring.loc)

    def _step(self, h: HostStep) -> None:
        if isinstance(h, Fork):
            self.behind[h.stream] = self.behind.get(h.stream, set()) | self.behind[MAIN]
            self.open_streams.add(h.stream)
        elif isinstance(h, Join):
            self.behind[MAIN] = self.behind[MAIN] | self.behind.get(h.stream, set())
            self.open_streams.discard(h.stream)
        elif isinstance(h, Stage):
            self._start([STAGING], [MAIN])
            self.staged.update(h.tensors)
        elif isinstance(h, Keep):
            self._check_staged(self.plan.step(h.path))
            kernels = {path for k in self.plan.kernels for path, _ in k.roles}
            for first in sorted((self.behind[MAIN] | kernels & self.started.keys()) - {STAGING})[:1]:
                why = "that may wait for it, and comes before it on the same stream or takes SMs"
                raise _wrong(f"what `{h.path}` keeps comes behind `{first}`", why, self.plan.step(h.path).step.loc)
        elif isinstance(h, Launch):
            kernel = self.plan.kernel(h.kernel)
            self._start([path for path, _ in kernel.roles], [h.stream])
            self.graph.add_edges_from(pairwise(kernel.in_turn), by="order")
        elif isinstance(h, Transfer):
            self._start([h.path], [h.stream + k for k in range(self.plan.step(h.path).streams)])

    def _check_staged(self, step: StepPlan) -> None:
        """What stays on a rank is copied out of what peers read, as soon as that is there."""
        movement = step.step.program.movement
        assert movement is not None
        source = step.step.binding(movement.source).tensor
        if self.plan.buffer(source).staged and source not in self.staged:
            why = "it is copied out of the memory that the argument is staged in"
            raise _wrong(f"what `{step.path}` keeps comes before `{source}` is staged", why, step.step.loc)

    def _start(self, paths: list[str], streams: list[int]) -> None:
        for stream in streams:
            if stream != MAIN and stream not in self.open_streams:
                why = "what runs there would not wait for the call before, nor for the arguments"
                raise _wrong(f"side stream {stream} is used before it is forked", why, self.plan.wiring.loc)
        before = set[str]().union(*(self.behind.get(s, set[str]()) for s in streams))
        for path in paths:
            self.started[path] = self.started.get(path, 0) + 1
            self.graph.add_edges_from(((b, path) for b in sorted(before)), by="order")
        for stream in streams:
            self.behind[stream] = before | set(paths)


def _wrong(what: str, why: str, loc: Loc | None) -> TilelinkError:
    return TilelinkError("TL609", what, loc=loc, why=why, hint=REPORT)
