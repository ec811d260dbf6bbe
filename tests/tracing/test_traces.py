"""Traced calls in the simulated backend, held against the simulation's own records."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import tilelink
from tests.selection import table
from tilelink import copy_engine, fused, ops, sms
from tilelink.runtime.simulated.machine import Record, Recorder
from tilelink.tracing import Total, Trace

RANKS = 3
MATMUL = sms(M=32, N=32, K=32)
RINGED = sms(M=32, N=32, K=32, order="ring+1")
CASES = {
    "SMs pull": (ops.ag_gemm, {"gather": sms(2, M=32, order="ring"), "matmul": MATMUL}),
    "copy engine": (ops.ag_gemm, {"gather": copy_engine(push=True), "matmul": MATMUL}),
    "own kernel": (ops.ag_gemm, {"gather": sms(2, M=32, push=True, own_kernel=True), "matmul": MATMUL}),
    "fused": (ops.gemm_rs, {"scatter": copy_engine(M=32), "reduce": fused("matmul"), "matmul": RINGED}),
    "behind": (
        ops.gemm_rs,
        {"scatter": copy_engine(M=32), "reduce": fused("matmul", N=16, deferred=True), "matmul": RINGED},
    ),
    "ring": (ops.gemm_rs_ring, {"matmul": MATMUL}),
}


@cache
def traced(name: str) -> tuple[Trace, list[Record]]:
    op, placements = CASES[name]
    shapes = [(64, 64), (64, 64)] if op is ops.ag_gemm else [(64 * RANKS, 64), (64, 64)]
    recorder = Recorder()

    def body() -> Trace:
        tensors = [torch.randn(s).to(torch.bfloat16) for s in shapes]
        return op.schedule(placements).trace(*tensors)

    found = tilelink.launch(body, RANKS, recorder=recorder)
    assert all(t.lanes == found[0].lanes for t in found)
    return found[0], recorder.records


def recorded_waits(records: list[Record], kernel: str, rank: int, worker: int) -> float:
    """Microseconds that a worker waited for tiles, by the simulation's records; a trace begins behind the call's entry."""
    mine = [r for r in records if (r.kernel, r.rank, r.worker) == (kernel, rank, worker) and r.function != "call_entry"]
    begin, total = 0.0, 0.0
    for r in mine:
        if r.what == "wait":
            begin = r.time
        elif r.what == "resume":
            total += r.time - begin
    return total


@pytest.mark.parametrize("name", CASES)
def test_workers_waited_as_long_as_the_simulation_says(name: str) -> None:
    trace, records = traced(name)
    kernels = {r.kernel for r in records if r.worker is not None} - {"call_entry", "ready", "call_exit", "await_flag"}
    workers = [t for t in trace.totals() if t.worker is not None]
    assert {t.rank for t in workers} == set(range(RANKS))
    for total in workers:
        said = [recorded_waits(records, k, total.rank, total.worker or 0) for k in kernels if _ran(records, k, total)]
        assert any(total.of("wait") == pytest.approx(s, abs=0.02) for s in said), total
    assert any(t.of("wait") > 0.1 for t in workers)


def _ran(records: list[Record], kernel: str, total: Total) -> bool:
    return any((r.kernel, r.rank, r.worker) == (kernel, total.rank, total.worker) for r in records)


def test_a_simulated_trace_takes_one_call() -> None:
    trace, records = traced("fused")
    kernels = {r.kernel for r in records if r.what == "launch"} - {"call_entry", "ready", "call_exit", "await_flag"}
    assert kernels
    for kernel in kernels:
        launches = [(r.rank, r.worker) for r in records if r.what == "launch" and r.kernel == kernel]
        assert len(launches) == len(set(launches))
    assert trace.ms_untraced is None
    assert trace.cost == 0


def test_what_a_trace_says() -> None:
    trace, _ = traced("fused")
    assert (trace.backend, trace.title) == ("simulated", "gemm_rs: M=192 K=192 N=64")
    lanes = len(trace.lanes)
    assert (
        repr(trace) == f"<trace of {trace.title}: {RANKS} ranks, {lanes} lanes, {trace.ms:.3g} ms, backend simulated>"
    )
    assert min(s.begin for lane in trace.lanes for s in lane.spans) == 0
    assert trace.ms > 0
    assert abs(trace.cost) < 0.01  # reading a simulated clock takes no simulated time
    labels = {lane.label for lane in trace.lanes}
    assert "matmul, reduce" in labels
    assert {"main stream", "copy engine"} <= labels
    wait = next(s for lane in trace.lanes for s in lane.spans if s.kind == "wait" and s.name == "reduce")
    assert "programs.py" in wait.detail
    for total in trace.totals():
        assert total.idle > -1e-6
        assert sum(t for _, t in total.kinds) + total.idle == pytest.approx(trace.span)


@table("name", CASES)
def test_spans_of_a_lane_follow_one_another(name: str) -> None:
    trace, _ = traced(name)
    for lane in trace.lanes:
        for before, after in zip(lane.spans, lane.spans[1:], strict=False):
            assert before.begin < before.end <= after.begin + 1e-9


def test_pictures_and_files(tmp_path: Path) -> None:
    trace, _ = traced("SMs pull")
    drawn = ElementTree.parse(trace.picture(tmp_path / "new" / "t.svg"))
    assert len(drawn.findall(".//{*}title")) == sum(len(lane.spans) for lane in trace.lanes)
    events = json.loads(trace.chrome(tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert "worker 0 on SM 0: gather" in names
    assert sum(e["ph"] == "X" for e in events) == sum(len(lane.spans) for lane in trace.lanes)


def test_results_of_a_traced_operator_are_unchanged() -> None:
    xs = [torch.randn(32, 32).to(torch.bfloat16) for _ in range(2)]
    ws = [torch.randn(32, 32).to(torch.bfloat16) for _ in range(2)]
    assert ops.ag_gemm.trace(xs, ws).span > 0
    for y, w in zip(ops.ag_gemm(xs, ws), ws, strict=True):
        torch.testing.assert_close(y.float(), torch.cat(xs).float() @ w.float(), rtol=2e-2, atol=0.2)
