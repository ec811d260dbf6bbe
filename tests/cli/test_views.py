"""Tables, spans and pictures of plans and runs."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import tilelink
import tilelink.language as tl
from tilelink import ops
from tilelink.explore.cases import Case
from tilelink.explore.report_tables import Sheet, plan_sheets, signals_of
from tilelink.explore.running import run_case
from tilelink.explore.views import counterexample_svg, sheet_table
from tilelink.explore.views.tiles import borders, caption, tile_order, tiles_svg
from tilelink.ir.topology import Topology
from tilelink.ops.programs import fetch, gather
from tilelink.pipeline.compiled import Compiled
from tilelink.pipeline.operator import Operator
from tilelink.runtime.simulated.machine import Recorder
from tilelink.tracing.chrome import trace_events
from tilelink.tracing.spans import Lane, Span, lanes_of
from tilelink.tracing.timeline import MOST, timeline_svg, together

SIZES = (("M", 256), ("N", 128), ("K", 64))
FORMS = {
    "SMs": ops.gemm_rs,
    "fused": ops.gemm_rs.schedule(scatter=tilelink.fused("matmul"), reduce=tilelink.fused("matmul")),
    "copy engine": ops.gemm_rs.schedule(scatter=tilelink.copy_engine(M=64)),
    "gather": ops.ag_gemm,
    "ring": ops.gemm_rs_ring,
}


def recorded(operator: Operator, ranks: int = 2) -> tuple[Compiled, tuple[Lane, ...], Recorder]:
    case, recorder = Case(operator, SIZES, ranks), Recorder()
    stages = case.compiled(Topology(ranks=ranks))
    assert run_case(case, recorder=recorder).within(case.tolerance)
    return stages, lanes_of(recorder.records, stages.plan, stages.source), recorder


@pytest.fixture(scope="module", params=FORMS)
def run(request: pytest.FixtureRequest) -> tuple[Compiled, tuple[Lane, ...], Recorder]:
    return recorded(FORMS[request.param])


def sheets(operator: Operator) -> dict[str, Sheet]:
    return {s.title: s for s in plan_sheets(Case(operator, SIZES, 4).compiled(Topology(ranks=4)).plan)}


# -------------------------------------------------------------------------------------------------------------- tables
across = tilelink.program("n/R g M ... -> n g M ...", name="across")(fetch)


@tilelink.operator("n/NODE g/GPU M K -> n g/GPU M K", axes="NODE GPU")
def from_nodes(x: Any) -> Any:
    return across(x)


def test_axes_of_ranks_are_named() -> None:
    """What is split over several, over which of them, and along which one a step moves."""
    plan = tilelink.launch(lambda: from_nodes.plan(torch.zeros(1, 1, 8, 16)), 4, axes={"NODE": 2, "GPU": 2})[0]
    found = {s.title: s for s in plan_sheets(plan)}
    assert [row[:2] for row in found["Steps"].rows] == [("across", "pull along NODE")]
    assert found["Tensors"].rows[0][:4] == (
        "x", "n=2/NODE × g=2/GPU × M=8 × K=16", "f32", "split: n over NODE, g over GPU",
    )  # fmt: skip


def test_the_mapping_of_ag_gemm() -> None:
    found = sheets(ops.ag_gemm)
    assert found["Steps"].rows == (
        ("gather", "pull", "2 SMs, with matmul", "M by 128 × all of …", "4", "'ring'"),
        ("matmul", "compute", "14 SMs, with gather", "M by 64 × N by 64, over K by 64", "8", "('ring', 'group 8')"),
    )
    assert found["Tensors"].rows[0] == (
        "x", "M=256/R × K=64", "bf16", "split: M over the ranks", "argument, copied to symmetric memory", "2", "8 KiB",
    )  # fmt: skip
    assert found["Channels"].rows == (
        ("rows", "4", "128 of M within a rank's part", "gather on its own rank: adds 1", "1", "matmul"),
    )
    assert found["Dependences"].rows == (
        ("x", "caller", "gather", "yes", "a signal"),
        ("rows", "gather", "matmul", "no", "a signal"),
        ("weight", "caller", "matmul", "no", "being ready"),
    )


def test_what_lives_in_registers_has_no_memory() -> None:
    rows = {row[0]: row for row in sheets(FORMS["fused"])["Tensors"].rows}
    assert "registers only" in {row[4] for row in rows.values()}


def test_a_plan_shows_its_sheets_and_its_tiles() -> None:
    plan = Case(ops.ag_gemm, SIZES, 4).compiled(Topology(ranks=4)).plan
    shown = plan._repr_html_()
    for sheet in plan_sheets(plan):
        assert f"<caption>{sheet.title}</caption>" in shown
    assert "<td>2 SMs, with matmul</td>" in shown
    assert tiles_svg(plan) in shown


def test_what_a_table_says_is_no_markup() -> None:
    assert "<td>x&lt;b&gt;&amp;</td>" in sheet_table(Sheet("T", ("a", "b"), (("x<b>&", "z"),)))


@tilelink.program("M K -> M K")
def early(rows: Any, out: Any) -> None:
    tile = tl.tile_id(out)
    tl.tile_store(out, tile, tl.tile_load(rows, tile))


@tilelink.operator("M/R K -> M K")
def unguarded(x: Any) -> Any:
    return early(gather(x))


def test_a_refusal_says_what_is_wrong() -> None:
    verdict = unguarded.verify(torch.zeros(4, 8), ranks=2)
    shown = verdict._repr_html_()
    assert '<p class="verdict refused">refused</p>' in shown
    assert "TL602: `rows` is read and no wait covers it" in shown
    (line,) = re.findall(r'<div class="at"><b>(\d+)</b>', shown)
    assert verdict.error is not None
    assert verdict.error.loc is not None
    assert int(line) == verdict.error.loc.line
    assert verdict.counterexample is not None
    assert counterexample_svg(verdict.counterexample) in shown


# ---------------------------------------------------------------------------------------------------------------- spans
def test_a_lane_does_one_thing_at_a_time(run: tuple[Compiled, tuple[Lane, ...], Recorder]) -> None:
    for lane in run[1]:
        assert lane.spans
        assert lane.label or all(s.kind in ("wait", "set up") for s in lane.spans)
        if lane.worker is not None:
            assert all(a.end <= b.begin + 1e-9 for a, b in zip(lane.spans, lane.spans[1:], strict=False))


def test_every_rank_computes_communicates_and_waits(run: tuple[Compiled, tuple[Lane, ...], Recorder]) -> None:
    for rank in range(2):
        kinds = {s.kind for lane in run[1] if lane.rank == rank for s in lane.spans}
        assert "set up" in kinds
        assert any("compute" in k for k in kinds)
        assert any("communicate" in k for k in kinds)


def test_what_comes_behind_its_host_runs_in_the_same_lane() -> None:
    """Whoever takes the work indices is a worker of the matmul."""
    stages, lanes, recorder = recorded(ops.gemm_rs)
    (step,) = [s for s in stages.plan.steps if s.deferred]
    drivers = {function for function, path in stages.source.functions if path == step.path}
    taking = {(r.rank, r.worker) for r in recorder.records if r.function in drivers}
    assert {(lane.rank, lane.worker) for lane in lanes if lane.label == "matmul + reduce"} == taking
    beside = {s.name for lane in lanes if lane.worker is None for s in lane.spans}
    assert beside <= {"call_entry", "copy", "scatter", "stream"}


def test_lanes_are_named_by_what_runs_there() -> None:
    labels = {lane.label for lane in recorded(ops.ag_gemm)[1]}
    assert labels == {"main stream", "gather", "matmul"}
    fused = {lane.label for lane in recorded(FORMS["fused"])[1]}
    assert any(label.startswith("matmul + scatter") for label in fused)


def test_the_bar_knows_how_many_signals_come(run: tuple[Compiled, tuple[Lane, ...], Recorder]) -> None:
    stages, _, recorder = run
    assert sum(r.what == "signal" for r in recorder.records) == signals_of(stages.plan)


# -------------------------------------------------------------------------------------------------- pictures and traces
def test_a_timeline_has_a_bar_for_each_span(run: tuple[Compiled, tuple[Lane, ...], Recorder]) -> None:
    drawn = ElementTree.fromstring(timeline_svg(run[1], "title"))
    bars = [g.get("height") for g in drawn.findall(".//{*}rect") if g.find("{*}title") is not None]
    assert len(bars) == sum(len(lane.spans) for lane in run[1])


def test_a_timeline_of_very_many_tiles_joins_those_that_touch() -> None:
    tiles = tuple(Span(float(k), k + 1.0, "compute", "matmul", 0, f"({k},)") for k in range(MOST + 1))
    titles = [
        t.text for t in ElementTree.fromstring(timeline_svg([Lane(0, 0, 0, tiles)], "many")).findall(".//{*}title")
    ]
    assert len(titles) == 1
    assert f"{MOST + 1} of them, one after the other" in str(titles[0])


def test_the_tiles_of_a_plan_are_drawn_by_step_and_rank() -> None:
    plan = Case(ops.ag_gemm, SIZES, 4).compiled(Topology(ranks=4)).plan
    drawn = ElementTree.fromstring(tiles_svg(plan))
    assert len(drawn.findall("{*}image")) == len(plan.steps) * 4
    numbers = [int(t.text or "") for t in drawn.findall("{*}text") if (t.text or "").isdigit()]
    assert sorted(numbers) == sorted([*range(4), *range(8)] * 4)


def test_what_a_rank_ran_alike_is_drawn_together() -> None:
    """A traced call has a lane for each kernel on an SM: by SM the rows of two kernels would take turns."""
    span = lambda name: Span(0.0, 1.0, "compute", name, 0, "")  # noqa: E731
    lanes = [Lane(r, 0, w, (span(name),), sm=w) for r in range(2) for w in range(3) for name in ("matmul", "reduce")]
    assert [lane.label for lane in together(lanes)] == 2 * (3 * ["matmul"] + 3 * ["reduce"])
    assert [(lane.rank, lane.sm) for lane in together(lanes)] == [
        (r, w) for r in range(2) for _ in range(2) for w in range(3)
    ]


def test_a_picture_says_what_it_does_not_show() -> None:
    placed = ops.gemm_rs.schedule(scatter=tilelink.fused("matmul"), reduce=tilelink.sms(M=16, N=64))
    plan = Case(placed, SIZES, 16).compiled(Topology(ranks=16)).plan
    said = caption(plan).removesuffix(".").split("; ")
    assert said[1:] == [
        "orange lines: where the rows of one rank end and those of the next begin",
        "8 of 16 ranks",
        "scatter is not shown, it runs with the tiles of matmul",
    ]


def test_borders_are_those_among_the_tiles_of_a_panel() -> None:
    placed = ops.gemm_rs.schedule(matmul=tilelink.sms(M=32, N=64, order="ring+1"), reduce=tilelink.sms(M=16, N=64))
    plan = Case(placed, SIZES, 4).compiled(Topology(ranks=4)).plan
    pushed = ops.ag_gemm.schedule(gather=tilelink.sms(2, M=32, push=True))
    of_own = Case(pushed, SIZES, 4).compiled(Topology(ranks=4)).plan
    for rank in range(4):
        assert borders(plan, plan.step("matmul"), rank) == [2.0, 4.0, 6.0]
        assert borders(plan, plan.step("reduce"), rank) == []
        assert borders(of_own, of_own.step("gather"), rank) == []


def test_nothing_can_be_drawn() -> None:
    assert "nothing" in timeline_svg((), "nothing")


def test_trace_events_name_the_users_line(run: tuple[Compiled, tuple[Lane, ...], Recorder]) -> None:
    stages, lanes, _ = run
    events = trace_events(lanes, stages.source)
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == sum(len(lane.spans) for lane in lanes)
    assert all(e["dur"] > 0 for e in spans)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert named == {(e["pid"], e["tid"]) for e in spans}
    assert any(".py:" in e["args"].get("line", "") for e in spans)


def test_orders_take_every_tile_once_and_rings_begin_at_home() -> None:
    plan = Case(ops.ag_gemm, SIZES, 4).compiled(Topology(ranks=4)).plan
    for rank in range(4):
        order = tile_order(plan, plan.step("matmul"), rank)
        assert order.shape == (4, 2)
        assert sorted(order.flat) == list(range(8))
        assert int(np.argwhere(order == 0)[0][0]) == rank
