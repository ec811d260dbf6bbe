"""Figures of a row from the times of a contest."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selection import table
from tilelink.bench.contest import ASYNC_TP, COMM, GEMM, OURS, TRITON, UNFUSED, Place, Roles
from tilelink.bench.report import save
from tilelink.bench.rows import Found, Row, Setting, row_of
from tilelink.bench.running import setting_of
from tilelink.ir.topology import Device, Topology
from tilelink.tuning.measuring import Times

SETTING = Setting(ranks=4, gpu="a GPU", torch="2", triton="3", commit="c", backend="peer")
WANTED = {
    "operator", "case", "ranks", "ms_ours", "ms_gemm", "ms_comm", "ms_unfused", "ms_async_tp", "efficiency", "schedule",
    "gpu", "torch", "triton", "commit", "baseline", "ms_baseline", "ms_graph", "ms_baseline_graph", "contenders", "missing",
}  # fmt: skip


def times(*ms: float) -> Times:
    return Times(ms, (10.0,) * len(ms))


MEASURED = {
    OURS: times(1.1, 1.3, 1.2),
    GEMM: times(1.0, 1.0, 1.0),
    TRITON: times(1.1, 1.1, 1.1),
    COMM: times(0.4, 0.4, 0.4),
    UNFUSED: times(1.5, 1.4, 1.4),
    "two chunks": times(1.3, 1.3, 1.3),
}


def row(measured: dict[str, Times], error: float | None = 0.0) -> Row:
    errors = {} if error is None else {OURS: 0.0, UNFUSED: error}
    found = Found(measured, errors=errors, missing={ASYNC_TP: "why"}, schedules={OURS: "how"})
    return row_of("op", "case", {"M": 1}, SETTING, found)


@table("shared, gpu", [(False, "NVIDIA H200"), (True, "NVIDIA H200, shared")])
def test_rows_say_that_ranks_share_gpus(shared: bool, gpu: str) -> None:
    topology = Topology(4, "peer", device=Device("NVIDIA H200"), shared=shared)
    backend: Any = SimpleNamespace(ranks=4, topology=topology)
    setting = setting_of(Place(backend, "0"))
    assert (setting.ranks, setting.gpu, setting.backend) == (4, gpu, "peer")
    assert setting_of(Place(backend, None)).gpu == "simulated"


def test_the_figures() -> None:
    found = row(MEASURED)
    assert (found.ms_ours, found.ms_gemm, found.ms_comm, found.ms_unfused) == (1.2, 1.0, 0.4, 1.4)
    assert found.efficiency == pytest.approx((1.4 - 1.2) / (1.4 - 1.0))
    assert (found.efficiency_low, found.efficiency_high) == pytest.approx((0.375, 0.65))  # of 0.8, 0.25 and 0.5
    assert (found.ms_ours_low, found.ms_ours_high) == pytest.approx((1.15, 1.25))
    assert found.ratio == pytest.approx(1.2)
    assert found.ms_async_tp is None
    assert found.missing == {ASYNC_TP: "why"}
    assert found.others["two chunks"]["efficiency"] == pytest.approx(0.25)


def test_communication_can_be_the_bound() -> None:
    assert row(MEASURED | {COMM: times(2.4, 2.4, 2.4)}).ratio == pytest.approx(0.5)


def test_without_cublas_the_emitted_matmul_is_the_gemm() -> None:
    found = row({n: t for n, t in MEASURED.items() if n != GEMM})
    assert found.ms_gemm == 1.1
    assert found.efficiency == pytest.approx((1.4 - 1.2) / (1.4 - 1.1))


def test_what_ours_lacks_is_not_made_up() -> None:
    found = row({n: t for n, t in MEASURED.items() if n != OURS})
    assert (found.ms_ours, found.efficiency, found.ratio, found.right) == (None, None, None, False)


@table("error, right", [(0.01, True), (0.5, False), (float("nan"), False)])
def test_a_wrong_result_is_no_good_result(error: float, right: bool) -> None:
    assert row(MEASURED, error).right is right


def test_the_baseline_is_the_fastest_of_those_to_beat() -> None:
    roles = Roles(gemm="", comm=COMM, unfused="", baseline=(COMM, "other", "absent"))
    graphed = {OURS: times(0.2), COMM: times(0.6), "other": times(0.5)}
    measured = {OURS: times(0.5), COMM: times(1.0), "other": times(1.5)}
    found = row_of("op", "case", {}, SETTING, Found(measured, graphed, roles=roles, calls=10))
    assert (found.baseline, found.ms_baseline, found.speedup) == (COMM, 1.0, 2.0)
    assert (found.ms_graph, found.ms_baseline_graph, found.speedup_graph) == (0.2, 0.5, 2.5)
    assert (found.ms_gemm, found.ms_unfused, found.efficiency) == (None, None, None)
    assert found.contenders["other"]["ms_graph"] == 0.5


def test_a_wrong_graph_is_no_good_result() -> None:
    assert not row_of("op", "case", {}, SETTING, Found({OURS: times(1.0)}, error_graph=0.5)).right
    assert row_of("op", "case", {}, SETTING, Found({OURS: times(1.0)}, error_graph=0.0)).right


def test_a_file_has_the_fields_that_are_promised(tmp_path: Path) -> None:
    path = save(tmp_path / "new" / "rows.json", [row(MEASURED)])
    (found,) = json.loads(path.read_text())["rows"]
    assert set(found) >= WANTED
