"""Contenders in captured CUDA graphs: what a call takes where no host starts its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilelink.bench.contest import NO_GPU, OURS, Contest, Place
from tilelink.tuning.comparison import apart, results
from tilelink.tuning.measuring import Times, attempt, interleaved

GRAPHS = "graphs"
"""What is missing where nobody is captured."""


def in_graphs(
    place: Place, contest: Contest, names: Sequence[str], rounds: int
) -> tuple[dict[str, Times], dict[str, str], float | None]:
    """Collective: times of a call in a graph of `contest.graphed` calls, why others have none, and the error of ours there.

    Called after everybody has been timed without: a captured operator takes its credits from then on.
    """
    if not contest.graphed:
        return {}, {}, None
    if place.simulated:
        return {}, {GRAPHS: NO_GPU}, None
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    results: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in names:
        reason = contest.contenders[name].ungraphed
        problem = reason or attempt(place.backend, lambda name=name: _capture(contest, name, graphs, results))
        if problem:
            missing[_in_graph(name)] = problem
            graphs.pop(name, None)
    runs = {name: graph.replay for name, graph in graphs.items()}
    times, failed = interleaved(place.backend, runs, rounds, contest.fresh)
    error = _error(place, contest, results[OURS], graphs[OURS]) if OURS in times else None
    place.backend.barrier()
    missing |= {_in_graph(name): why for name, why in failed.items()}
    return {name: t.divided(contest.graphed) for name, t in times.items()}, missing, error


def _in_graph(name: str) -> str:
    return f"{name}, in a graph"


def _capture(contest: Contest, name: str, graphs: dict[str, torch.cuda.CUDAGraph], results: dict[str, Any]) -> None:
    torch.cuda.synchronize()
    contest.rewind()
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog asks for events meanwhile, in a thread of its own.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(contest.graphed):
            results[name] = contest.contenders[name].run()
    graphs[name] = graph


def _error(place: Place, contest: Contest, result: Any, graph: torch.cuda.CUDAGraph) -> float:
    """Of the last call of the graph of ours, against the same call without."""
    contest.fresh()
    graph.replay()
    torch.cuda.synchronize()
    ours = contest.contenders[OURS]
    assert ours.checked is not None
    got = [t.clone() for t in results(ours.reads(result))]
    contest.rewind(contest.graphed - 1)
    return max(place.backend.agree(apart(got, results(ours.checked()))))
