"""Doorbells, the flags that streams of copy engines wait for and reset: each that is rung is waited for just once in a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import tilelink
import tilelink.language as tl
from tests.mapping.oracle import asked, assert_refused, assert_right
from tests.mapping.plans import plan_of, with_channel, with_step
from tests.selection import table
from tilelink import Operator, copy_engine, fused, operator, sms
from tilelink.ir import formula as F
from tilelink.ir.formula import Sym
from tilelink.ir.plan import Plan
from tilelink.ir.streams import Wait, actions
from tilelink.mapping.lower import lower
from tilelink.mapping.orders import decode
from tilelink.ops import gemm_rs
from tilelink.ops.programs import matmul, reduce, scatter
from tilelink.proof.counts import miscounted
from tilelink.proof.table import Table

SIZES = {"M": 24, "K": 4, "N": 6}


@tilelink.program("R/R M N -> R/R M N")
def once(rows: Any, out: Any) -> None:
    """One notify."""
    s, m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (s, m, n))
    tl.tile_store(out, (s, m, n), tl.tile_load(rows, (s, m, n)))
    tl.producer_tile_notify(out, (s, m, n))


@tilelink.program("R/R M N -> R/R M N")
def apart(rows: Any, out: Any) -> None:
    """Two notifies, one of which is given."""
    s, m, n = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (s, m, n))
    tl.tile_store(out, (s, m, n), tl.tile_load(rows, (s, m, n)))
    if s == 0:
        tl.producer_tile_notify(out, (s, m, n))
    else:
        tl.producer_tile_notify(out, (s, m, n))


def moved(program: Any) -> Operator:
    body = lambda x, weight: reduce(scatter(program(matmul(x, weight), name="made")))  # noqa: E731
    return operator("M K/R, K/R N -> M/R N", name="moved")(body)


def moved_twice(program: Any) -> Operator:
    def body(x: Any, weight: Any) -> Any:
        made = program(matmul(x, weight), name="made")
        return reduce(scatter(made)), reduce(scatter(made, name="again"), name="reduce_again")

    return operator("M K/R, K/R N -> M/R N, M/R N", name="moved_twice")(body)


def planned(op: Operator, rows: int = 4, **more: Any) -> Plan:
    chunk, tile = copy_engine(M=rows, order="ring+1"), sms(M=2, N=2, K=4, order="ring+1")
    return plan_of(op, 3, SIZES, made=sms(M=2, N=2, order="ring+1"), scatter=chunk, matmul=tile, **more)


@table("program", [once, apart])
def test_doorbells_of_several_notifies(program: Any) -> None:
    plan = planned(moved(program))
    assert [c.doorbells for c in plan.channels if c.tensor == "made_out"] == ["alone"]
    assert_right(plan)


@table("program", [once, apart])
def test_two_transfers_of_one_tile(program: Any) -> None:
    plan = planned(moved_twice(program), again=copy_engine(M=4, order="ring+1"))
    assert "waits twice" in assert_refused(plan, "TL605").message


@table("program", [once, apart])
def test_flags_of_two_transfers(program: Any) -> None:
    """The flags of chunks twice as long, counted right: two chunks wait for each."""
    wide = planned(moved(program), rows=8).channel("made_out")
    plan = planned(moved(program))
    plan = replace(plan, channels=tuple(wide if c.tensor == wide.tensor else c for c in plan.channels))
    assert "waits twice" in assert_refused(plan, "TL605").message


@table("program", [once, apart])
def test_a_doorbell_that_nobody_hears(program: Any) -> None:
    """Transfers of own rows only. That tiles are missing is seen before; of the doorbells, the table says so by itself."""
    plan = planned(moved(program))
    grid = tuple(replace(g, kind="mine") if g.kind == "cut" else g for g in plan.step("scatter").grid)
    order, total = decode(grid, ("row",))
    plan = with_step(plan, "scatter", grid=grid, order=order, total=total)
    assert_refused(plan, "TL604")
    assert any("a copy engine waits never" in str(found) for found in miscounted(Table.of(lower(plan))))


def pushed() -> Plan:
    """Own rows are reduced where they are made: neither moved nor waited for by a stream."""
    tile = sms(M=2, N=2, K=4, order="ring+1")
    schedule = {"matmul": tile, "scatter": copy_engine(M=4, order="ring+1"), "reduce": fused("matmul")}
    return plan_of(gemm_rs, 3, SIZES, **schedule)


def test_what_stays_has_no_doorbell() -> None:
    plan = pushed()
    channel = plan.channel("matmul_out")
    for rank in range(3):
        heard = [a.index for a in actions(lower(plan), "scatter", rank)[0] if isinstance(a, Wait)]
        assert heard == [flag for flag in (*range(2 * rank + 2, 6), *range(2 * rank)) if flag // 2 != rank]
        assert heard == sorted(heard, key=lambda flag: (flag - 2 * rank) % 6)
        rung = F.evaluate(channel.rings or 1, channel.at(np.arange(6), plan.env(rank)))
        assert rung.tolist() == [flag in heard for flag in range(6)]
    assert_right(plan)


def test_doorbells_that_are_rung_for_what_stays() -> None:
    """They would be heard in a later call, whose flags may stand for other rows."""
    plan = pushed()
    assert asked(with_channel(plan, "matmul_out", rings=F.of(1))).error is not None


def test_chunks_that_leave_without_a_doorbell() -> None:
    plan = with_channel(pushed(), "matmul_out", rings=F.binary("==", Sym("c0") // 2, Sym("rank")))
    assert_refused(plan, "TL605")
