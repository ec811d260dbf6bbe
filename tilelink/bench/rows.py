"""What a benchmark has found on one case, as one row of a file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilelink.bench.contest import ASYNC_TP, COMM, GEMM, OURS, OWN_COMM, SEQUENTIAL, TRITON
from tilelink.tuning import Times

NAMED = (OURS, GEMM, TRITON, COMM, OWN_COMM, SEQUENTIAL, ASYNC_TP)


TOLERANCE = 3e-2
"""Of two bf16 results, each of which may be 2e-2 from the right one; rows that went wrong are off by far more."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and with what it was measured. `gpu` is `simulated` where times are simulated ones."""

    world: int
    gpu: str
    torch: str
    triton: str
    commit: str
    backend: str


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds are medians over the rounds of the slowest rank; `ms_ours_low` and `_high` are the quartiles.

    `ms_gemm`: cuBLAS alone, or the emitted matmul where times are simulated. `ms_comm`: NCCL alone, or our own movement
    where times are simulated. `error`: relative Frobenius norm of the difference from `sequential`, the worst of ours
    on the worst rank. `efficiency`: (sequential − ours) / (sequential − gemm), `_low` and `_high` the quartiles
    of the rounds' own. `ratio`: ours / max(gemm, comm). `others`: further schedules of ours. `missing`: contenders that
    did not run, and why.
    """

    operator: str
    case: str
    sizes: Mapping[str, int]
    world: int
    backend: str
    ms_ours: float | None
    ms_ours_low: float | None
    ms_ours_high: float | None
    ms_gemm: float | None
    ms_gemm_triton: float | None
    ms_comm: float | None
    ms_sequential: float | None
    ms_async_tp: float | None
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    ratio: float | None
    host_us: float | None
    rounds: int
    error: float | None
    schedule: str
    others: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]
    gpu: str
    torch: str
    triton: str
    commit: str

    @property
    def right(self) -> bool:
        """Whether ours ran, with the results that it should have."""
        return self.ms_ours is not None and (self.error is None or self.error < TOLERANCE)

    def record(self) -> dict[str, Any]:
        return asdict(self)


def row_of(
    operator: str,
    case: str,
    sizes: Mapping[str, int],
    setting: Setting,
    times: Mapping[str, Times],
    missing: Mapping[str, str],
    schedules: Mapping[str, str],
    error: float | None,
) -> Row:
    """A row of the times of one contest; `schedules`: how each of ours ran."""
    ours = times.get(OURS)
    gemm = times.get(GEMM) or times.get(TRITON)
    comm = times.get(COMM) or times.get(OWN_COMM)
    low, high = _quartiles(ours.ms) if ours else (None, None)
    paired = _paired(times, OURS)
    bound = max((t.median for t in (gemm, comm) if t), default=0.0)
    return Row(
        operator=operator,
        case=case,
        sizes=dict(sizes),
        world=setting.world,
        backend=setting.backend,
        ms_ours=_median(ours),
        ms_ours_low=low,
        ms_ours_high=high,
        ms_gemm=_median(gemm),
        ms_gemm_triton=_median(times.get(TRITON)),
        ms_comm=_median(comm),
        ms_sequential=_median(times.get(SEQUENTIAL)),
        ms_async_tp=_median(times.get(ASYNC_TP)),
        efficiency=efficiency(times, OURS),
        efficiency_low=_quartiles(paired)[0] if paired else None,
        efficiency_high=_quartiles(paired)[1] if paired else None,
        ratio=ours.median / bound if ours and bound else None,
        host_us=ours.host if ours else None,
        rounds=len(ours.ms) if ours else 0,
        error=error,
        schedule=schedules.get(OURS, ""),
        others=_others(times, schedules),
        missing=dict(missing),
        gpu=setting.gpu,
        torch=setting.torch,
        triton=setting.triton,
        commit=setting.commit,
    )


def efficiency(times: Mapping[str, Times], name: str) -> float | None:
    """The part of the communication that contender `name` hides, of the medians."""
    gemm = times.get(GEMM) or times.get(TRITON)
    if gemm is None or name not in times or SEQUENTIAL not in times:
        return None
    return _hidden(times[SEQUENTIAL].median, times[name].median, gemm.median)


def _paired(times: Mapping[str, Times], name: str) -> list[float]:
    """The same round by round."""
    gemm = times.get(GEMM) or times.get(TRITON)
    if gemm is None or name not in times or SEQUENTIAL not in times:
        return []
    rounds = zip(times[SEQUENTIAL].ms, times[name].ms, gemm.ms, strict=True)
    return [e for e in (_hidden(*three) for three in rounds) if e is not None]


def _hidden(sequential: float, ours: float, gemm: float) -> float | None:
    return (sequential - ours) / (sequential - gemm) if sequential != gemm else None


def _others(times: Mapping[str, Times], schedules: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, t in times.items():
        if name not in NAMED:
            low, high = _quartiles(t.ms)
            found[name] = {
                "ms": t.median,
                "ms_low": low,
                "ms_high": high,
                "efficiency": efficiency(times, name),
                "host_us": t.host,
                "schedule": schedules.get(name, ""),
            }
    return found


def _median(times: Times | None) -> float | None:
    return times.median if times else None


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
