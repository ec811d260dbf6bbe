"""What a benchmark has found on one case, as one row of a file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from tilelink.bench.contest import ASYNC_TP, COMM, GEMM, OURS, OWN_COMM, TRITON, UNFUSED, Roles
from tilelink.tuning.comparison import tolerance
from tilelink.tuning.measuring import Times

NAMED = (OURS, GEMM, TRITON, COMM, OWN_COMM, UNFUSED, ASYNC_TP)


TOLERANCE = tolerance([torch.bfloat16])
"""Rows that went wrong are off by far more."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and with what it was measured. `gpu` is `simulated` where times are simulated ones."""

    ranks: int
    gpu: str
    torch: str
    triton: str
    commit: str
    backend: str


@dataclass(frozen=True, slots=True)
class Found:
    """Of one contest. `times`, `graphed`: by contender, called one by one and in a CUDA graph of `calls` calls. `errors`: by
    contender, against ours; `error_graph`: of ours in a graph. `schedules`: how each of ours ran."""

    times: Mapping[str, Times]
    graphed: Mapping[str, Times] = field(default_factory=dict[str, Times])
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    error_graph: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    schedules: Mapping[str, str] = field(default_factory=dict[str, str])
    roles: Roles = field(default_factory=Roles)
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Row(Setting):
    """Milliseconds are medians over the rounds of the slowest rank; `ms_ours_low` and `_high` are the quartiles.

    `baseline`: what ours is to beat, the fastest of several if there are; `speedup`: baseline / ours. `ms_graph`,
    `ms_baseline_graph`, `speedup_graph`: the same of calls in a CUDA graph, of `graph_calls` calls. `ms_gemm`: work without
    communication, or the emitted matmul where times are simulated. `ms_comm`: communication alone, or our own copy program
    where times are simulated. `error`: relative Frobenius norm of the difference from ours, of the contender that is
    farthest from it, on the worst rank; infinite if one is wrong beyond measure. `efficiency`: (unfused − ours) /
    (unfused − gemm), `_low` and `_high` the quartiles of the rounds' own. `ratio`: ours / max(gemm, comm).
    `contenders`: all of them by name. `others`: those that no other field tells of. `missing`: contenders that did not run,
    and why. None: not measured, or without meaning here.
    """

    operator: str
    case: str
    sizes: Mapping[str, int]
    ms_ours: float | None
    ms_ours_low: float | None
    ms_ours_high: float | None
    baseline: str | None
    ms_baseline: float | None
    speedup: float | None
    ms_graph: float | None
    ms_baseline_graph: float | None
    speedup_graph: float | None
    graph_calls: int
    ms_gemm: float | None
    ms_gemm_triton: float | None
    ms_comm: float | None
    ms_unfused: float | None
    ms_async_tp: float | None
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    ratio: float | None
    host_us: float | None
    rounds: int
    error: float | None
    error_graph: float | None
    schedule: str
    contenders: Mapping[str, Mapping[str, Any]]
    others: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]

    @property
    def right(self) -> bool:
        """Whether ours ran, with the results that it should have, and others have too."""
        errors = [e for e in (self.error, self.error_graph) if e is not None]
        return self.ms_ours is not None and all(e < TOLERANCE for e in errors)

    def record(self) -> dict[str, Any]:
        return asdict(self)


def row_of(operator: str, case: str, sizes: Mapping[str, int], setting: Setting, found: Found) -> Row:
    """A row of what one contest has found."""
    times, roles = found.times, found.roles
    ours, gemm, mine = times.get(OURS), _gemm(found), _contender(found, OURS)
    comm = times.get(roles.comm) or times.get(OWN_COMM)
    paired = [*_hidden(found, OURS, lambda t: t.ms)]
    low, high = _quartiles(paired) if paired else (None, None)
    bound = max((t.median for t in (gemm, comm) if t), default=0.0)
    name, rival, rival_graph = *_fastest(times, roles.baseline), _fastest(found.graphed, roles.baseline)[1]
    return Row(
        operator=operator,
        case=case,
        sizes=dict(sizes),
        ms_ours=mine["ms"],
        ms_ours_low=mine["ms_low"],
        ms_ours_high=mine["ms_high"],
        baseline=name,
        ms_baseline=rival,
        speedup=_times(rival, ours),
        ms_graph=mine["ms_graph"],
        ms_baseline_graph=rival_graph,
        speedup_graph=_times(rival_graph, found.graphed.get(OURS)),
        graph_calls=found.calls,
        ms_gemm=_median(gemm),
        ms_gemm_triton=_median(times.get(TRITON)),
        ms_comm=_median(comm),
        ms_unfused=_median(times.get(roles.unfused)),
        ms_async_tp=_median(times.get(ASYNC_TP)),
        efficiency=mine["efficiency"],
        efficiency_low=low,
        efficiency_high=high,
        ratio=ours.median / bound if ours and bound else None,
        host_us=mine["host_us"],
        rounds=len(ours.ms) if ours else 0,
        error=_worst(found.errors.values()),
        error_graph=found.error_graph,
        schedule=mine["schedule"],
        contenders={n: _contender(found, n) for n in {**times, **found.errors}},
        others={n: _contender(found, n) for n in times if n not in (*NAMED, roles.gemm, roles.comm, roles.unfused)},
        missing=dict(found.missing),
        **asdict(setting),
    )


def geometric(speedups: Sequence[float]) -> float | None:
    """Their geometric mean."""
    return statistics.geometric_mean(speedups) if speedups else None


def _worst(errors: Iterable[float]) -> float | None:
    """The largest; infinite if any is none."""
    return max((e if e == e else math.inf for e in errors), default=None)


def _gemm(found: Found) -> Times | None:
    return found.times.get(found.roles.gemm) or found.times.get(TRITON)


def _fastest(times: Mapping[str, Times], names: Sequence[str]) -> tuple[str | None, float | None]:
    there = [(times[n].median, n) for n in names if n in times]
    return (min(there)[1], min(there)[0]) if there else (None, None)


def _times(rival: float | None, ours: Times | None) -> float | None:
    return rival / ours.median if rival is not None and ours is not None and ours.median else None


def _contender(found: Found, name: str) -> dict[str, Any]:
    """Whatever is known of one."""
    called, graphed = found.times.get(name), found.graphed.get(name)
    low, high = _quartiles(called.ms) if called else (None, None)
    return {
        "ms": _median(called),
        "ms_low": low,
        "ms_high": high,
        "ms_graph": _median(graphed),
        "efficiency": next(_hidden(found, name, lambda t: (t.median,)), None),
        "host_us": called.host if called else None,
        "late": called.late if called else 0,
        "error": found.errors.get(name),
        "schedule": found.schedules.get(name, ""),
    }


def _hidden(found: Found, name: str, ms: Callable[[Times], Sequence[float]]) -> Iterator[float]:
    """The part of the communication that a contender hides, of each of some times."""
    gemm, unfused, ours = _gemm(found), found.times.get(found.roles.unfused), found.times.get(name)
    if gemm is not None and unfused is not None and ours is not None:
        rounds = zip(ms(unfused), ms(ours), ms(gemm), strict=True)
        yield from ((apart - it) / (apart - alone) for apart, it, alone in rounds if apart != alone)


def _median(times: Times | None) -> float | None:
    return times.median if times else None


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
