"""Which schedule a call takes where nobody says how it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tilelink import Operator, TilelinkError, copy_engine, ops, sms
from tilelink.explore.cases import Case
from tilelink.ir.schedule import Schedule
from tilelink.ir.topology import Device, Topology
from tilelink.pipeline.choosing import estimated, even
from tilelink.runtime.session import require
from tilelink.tuning.tables import Entry, Problem

RANKS = 2
H200 = Topology(4, "peer", device=Device("NVIDIA H200", 132, capability=90))
SMALL = Schedule().merged({"gather": copy_engine(push=True), "matmul": sms(M=16, N=16, K=16, order="ring")})
LARGE = Schedule().merged({"gather": sms(1, M=32), "matmul": sms(M=64, N=64, K=64, order="ring")})


def entry(m: int, schedule: Schedule) -> Entry:
    sizes = (("K", 32), ("M", m), ("N", 32))
    problem = Problem("ag_gemm", str(ops.ag_gemm.signature), "simulated", "simulated", RANKS, ("bf16", "bf16"), sizes)
    return Entry(problem, schedule, 1.0, None, "on a day")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    entries = [entry(32, SMALL), entry(256, LARGE)]
    monkeypatch.setattr("tilelink.pipeline.choosing.shipped", lambda: entries)
    return entries


def inputs(m: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(m + tilelink.rank())
    return [torch.randn(s, generator=generator).to(torch.bfloat16) for s in ((m // RANKS, 32), (32, 32))]


def fresh(operator: Operator) -> Operator:
    """Without what other tests have made it remember."""
    return operator.with_schedule(operator.schedules)


def unscheduled() -> Operator:
    import dataclasses

    return dataclasses.replace(fresh(ops.ag_gemm), scheduled=False)


def test_calls_take_the_schedule_that_was_measured_nearby(table: list[Entry]) -> None:
    op = unscheduled()

    def body() -> list[Any]:
        found: list[Any] = []
        for m in (32, 256, 32, 300, 16):
            x, w = inputs(m)
            y = op(x, w)
            rows = torch.cat(require().world.agree(x))
            torch.testing.assert_close(y.float(), rows.float() @ w.float(), rtol=2e-2, atol=0.2)
            found.append((dict(op.plan(x, w).schedule.entries)["gather"], str(op.choice(x, w))))
        op.close()
        return found

    gathers, words = zip(*tilelink.launch(body, RANKS)[0], strict=True)
    small, large = SMALL.get("gather"), LARGE.get("gather")
    assert gathers == (small, large, small, large, small)
    assert words[0] == "overlapped: measured at K=32 M=32 N=32, on a day"


def test_who_says_how_it_runs_is_obeyed(table: list[Entry]) -> None:
    op = unscheduled().schedule(gather=sms(2, M=16))

    def body() -> tuple[Any, str]:
        x, w = inputs(32)
        return op.plan(x, w).schedule.get("gather"), str(op.choice(x, w))

    assert tilelink.launch(body, RANKS)[0] == (sms(2, M=16), "overlapped: as it is scheduled")


def test_a_schedule_of_nothing_says_nothing() -> None:
    assert not unscheduled().schedule().scheduled
    assert not unscheduled().schedule({}).scheduled
    assert unscheduled().schedule(sequential=False).scheduled
    assert unscheduled().schedule(slots=3).scheduled


@tilelink.operator("M/R K, K N -> M N")
def plain_or_not(x: Any, weight: Any) -> Any:
    return ops.ag_gemm(x, weight)


@plain_or_not.reference
def reference(x: Any, weight: Any, *, group: Any = None) -> Any:
    assert group == "the ranks"
    return torch.cat(require().world.agree(x)) @ weight


def test_the_plain_form_runs_where_less_can_be_hidden_than_overlapping_costs() -> None:
    def body() -> tuple[str, int, bool]:
        world: Any = require().world
        world.group = "the ranks"
        x, w = inputs(32)
        y = plain_or_not(x, w)
        out = torch.empty_like(y)
        assert plain_or_not(x, w, out=out) is out
        torch.testing.assert_close(out, y)
        tiles = plain_or_not.schedule(sequential=False)(x, w)
        torch.testing.assert_close(tiles.float(), y.float(), rtol=2e-2, atol=0.2)
        return str(plain_or_not.choice(x, w)), len(plain_or_not.plan(x, w).steps), bool(torch.isfinite(y).all())

    words, steps, finite = tilelink.launch(body, RANKS)[0]
    assert words.startswith("sequential: estimated: 0 µs can be hidden, and overlapping costs about")
    assert steps == 2
    assert finite


def test_without_libraries_there_is_no_plain_form() -> None:
    def body() -> None:
        plain_or_not.schedule(sequential=True)(*inputs(32))

    with pytest.raises(TilelinkError, match="TL229"):
        tilelink.launch(body, RANKS)


@pytest.mark.parametrize(("m", "sequential"), [(1, True), (128, True), (512, True), (4096, False), (8192, False)])
def test_the_estimate_for_an_mlp(m: int, sequential: bool) -> None:
    plan = Case(ops.ag_gemm, (("M", m), ("N", 5504), ("K", 4096)), 4).stages(H200).plan
    choice = estimated(plan, ops.ag_gemm.schedules)
    assert choice.schedule.sequential is sequential
    assert choice.schedule.sequential or choice.schedule == ops.ag_gemm.schedules


def test_plain_forms_know_even_parts_only() -> None:
    from tilelink.pipeline.arguments import Bound

    def of(m: int) -> Bound:
        return Bound((("M", m), ("K", 8), ("N", 8)), ("bf16", "bf16"), (), ())

    assert even(ops.ag_gemm.signature, of(8), 4)
    assert not even(ops.ag_gemm.signature, of(7), 4)
    assert not even(ops.gemm_rs.signature, of(6), 4)
