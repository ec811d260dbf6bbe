"""Programs whose waits and notifies do not fit what they read and write: `programs.txt` holds them and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilelink
import tilelink.language as tl
from benchmarks.mutants.bodies import with_body
from tests.frontend.harness import Section, load, message, sections, tile_program
from tests.mapping.oracle import asked, assert_right
from tests.mapping.plans import form, plan_of, verify
from tests.selection import table
from tilelink import Operator, operator, sms
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.program import Expr, If, Loop, Notify, Op, Store, Tiles, Wait
from tilelink.ops import ag_gemm, gemm_rs
from tilelink.ops.programs import gather, matmul, reduce, scatter

FILE = Path(__file__).parent / "programs.txt"
SIZES = {"M": 64, "K": 256, "N": 32}
TILE = sms(M=16, N=16, K=16)


SIGNATURES = {
    "consumer": ("M K, K N -> M N", "rows, weight, out, *, m_first: bool = True"),
    "producer": ("M K, K N -> M N", "rows, weight, out, *, m_first: bool = True"),
    "reducer": ("s M N -> M N", "inbox, out"),
    "owner": ("M N -> M/R N", "partial, out"),
}


def around(f: Any, where: str) -> Operator:
    """An operator in which the program has the part that its case is about."""
    if where == "consumer":
        return operator("M/R K, K N -> M N", name="op")(lambda x, weight: f(gather(x), weight))
    if where == "reducer":
        return operator("M K/R, K/R N -> M/R N", name="op")(lambda x, weight: f(scatter(matmul(x, weight))))
    if where == "producer":
        return operator("M K/R, K/R N -> M/R N", name="op")(lambda x, weight: reduce(scatter(f(x, weight))))
    return operator("M K/R, K/R N -> M/R N", name="op")(lambda x, weight: f(matmul(x, weight)))


def said(case: Section, folder: Path) -> str:
    (where,) = case.about
    module = load(folder, tile_program(*SIGNATURES[where], case.program))

    def cause() -> None:
        op = around(module.f, where)
        tile = sms(M=16, N=16) if where in ("reducer", "owner") else TILE
        verify(plan_of(op, 4, SIZES, f=tile))

    if case.text == "proved":
        cause()
        return "proved"
    # Lines of the library's own programs are named from the checkout on, wherever it lies.
    return message(cause, folder).replace(f"{FILE.parents[2]}/", "")


@table("case", [pytest.param(c, id=c.name) for c in sections(FILE, 7)])
def test_what_is_said(case: Section, tmp_path: Path) -> None:
    assert said(case, tmp_path) == case.text


@tilelink.program("M N, R M N -> M N")
def push_and_look(x: Any, box: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    for q in tl.tiles(box, axis=0):
        tl.tile_push_data(box, (q, m, n), tl.tile_load(x, (m, n)))
        tl.tile_store(out, (m, n), tl.tile_load(box, (q, m, n)))
        tl.producer_tile_notify(box, (q, m, n))


def test_what_is_pushed_to_others_is_not_here() -> None:
    op = operator("M N -> M N", name="looked")(lambda x: push_and_look(x, tilelink.symmetric("R M N", like=x)))
    error = refused(plan_of(op, 2, {"M": 4, "N": 4}, push_and_look=sms(M=2, N=2)))
    assert (error.code, error.message) == ("TL602", "`box` is read and no wait covers it")


@tilelink.program("M N, R M N -> M N")
def push_and_tell_of_another(x: Any, box: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    q = 0
    tl.tile_push_data(box, (q, m, n), tl.tile_load(x, (m, n)))
    q = 1
    tl.producer_tile_notify(box, (q, m, n))
    tl.consumer_tile_wait(box, (0, m, n))
    tl.tile_store(out, (m, n), tl.tile_load(box, (0, m, n)))


def test_a_notify_of_the_tile_that_a_name_has_come_to_mean() -> None:
    body = lambda x: push_and_tell_of_another(x, tilelink.symmetric("R M N", like=x), name="f")  # noqa: E731
    error = refused(plan_of(operator("M N -> M N", name="told")(body), 2, {"M": 4, "N": 4}, f=sms(M=2, N=2)))
    assert (error.code, error.message) == ("TL603", "no notify covers this tile of `box`")


# ------------------------------------------------------------------------------------- programs that capture does not let in
def spoilt(plan: Plan, path: str, change: Any) -> Plan:
    """The plan with another body for one program."""
    return with_body(plan, path, tuple(new for op in plan.step(path).step.program.body for new in change(op)))


def ag() -> Plan:
    return plan_of(ag_gemm, 2, SIZES, gather=sms(2, M=16), matmul=TILE)


def refused(plan: Plan) -> TilelinkError:
    error = asked(plan).error
    assert error is not None
    return error


@tilelink.program("M s -> M, M s")
def row_by_row(x: Any, sums: Any, out: Any) -> None:
    m = tl.tile_id(sums)
    rows = tl.tile_load(x, m)
    tl.tile_store(sums, m, tl.sum(rows, axis=1))
    tl.tile_store(out, m, rows)
    for s in tl.tiles(out, axis=1):
        tl.producer_tile_notify(out, (m, s))


@tilelink.program("M s -> M, M s")
def row_by_row_in_part(x: Any, sums: Any, out: Any) -> None:
    m = tl.tile_id(sums)
    rows = tl.tile_load(x, m)
    tl.tile_store(sums, m, tl.sum(rows, axis=1))
    tl.tile_store(out, m, rows)
    for s in tl.tiles(out, axis=1, stop=2):
        tl.producer_tile_notify(out, (m, s))


@tilelink.program("M s -> M s")
def one_by_one(rows: Any, out: Any) -> None:
    m, s = tl.tile_id(out)
    tl.consumer_tile_wait(rows, (m, s))
    tl.tile_store(out, (m, s), tl.tile_load(rows, (m, s)))


def test_what_is_told_of_one_by_one_is_told_of() -> None:
    def told(f: Any) -> Plan:
        @operator("M s -> M, M s", name="rows")
        def op(x: Any) -> Any:
            sums, rows = f(x, name="f")
            return sums, one_by_one(rows)

        return plan_of(op, 2, {"M": 16, "s": 4}, f=sms(2, M=8), one_by_one=sms(M=8))

    assert_right(told(row_by_row))
    error = refused(told(row_by_row_in_part))
    assert (error.code, error.message) == ("TL603", "no notify covers this tile of `out`")


def test_a_wait_in_a_while() -> None:
    """The frontend refuses it before (TL161): there is no telling that it comes before the load."""

    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Wait):
            return (Loop(header=Expr("while todo", ("todo",), positional=False), target=None, body=(op,), loc=op.loc),)
        return (op,)

    error = refused(spoilt(ag(), "matmul", change))
    assert (error.code, error.message) == ("TL602", "`rows` is read and no wait covers it")


@table("as_often", ["once or never", "as data says"])
def test_a_notify_that_data_decides(as_often: str) -> None:
    """The frontend refuses it before (TL160, TL162)."""

    def change(op: Op) -> tuple[Op, ...]:
        found = Expr("found", ("found",), positional=False)
        if not isinstance(op, Notify):
            return (op,)
        if as_often == "once or never":
            return (If(test=found, body=(op,), loc=op.loc),)
        return (Tiles(var="q", param="weight", axis=0, body=(op,), stop=found, loc=op.loc),)

    plan = form("gemm_rs pull", 2, {"M": 12, "K": 4, "N": 6}, 2)
    error = refused(spoilt(plan, "matmul", change))
    assert (error.code, error.message) == ("TL603", "`out` is stored on a path without a notify")


def test_a_notify_that_data_decides_and_that_is_given_anyway() -> None:
    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Notify):
            test = Expr("found > 0", ("found",), positional=False)
            return (If(test=test, body=(op,), orelse=(op,), loc=op.loc),)
        return (op,)

    assert_right(spoilt(ag(), "matmul", change))


def without(kind: type[Op]) -> Any:
    return lambda op: () if isinstance(op, kind) else (op,)


@table(
    "path, kind, code",
    [("gather", Wait, "TL602"), ("matmul", Wait, "TL602"), ("gather", Notify, "TL603")],
)
def test_a_statement_that_is_taken_out(path: str, kind: Any, code: str) -> None:
    """Copy programs are right by construction; they are looked at all the same."""
    assert refused(spoilt(ag(), path, without(kind))).code == code


def test_a_wait_for_an_argument_of_other_ranks_that_is_taken_out() -> None:
    """Written as a push, the copy program has a load, which is one of other ranks' memory when it pulls."""
    op = operator("M K -> M/R K", name="scattered")(lambda x: reduce(scatter(x)))
    plan = plan_of(op, 2, SIZES, scatter=sms(2, M=16, push=False), reduce=sms(M=16, N=16))
    assert_right(plan)
    assert refused(spoilt(plan, "scatter", without(Wait))).code == "TL602"


def test_a_wait_in_a_loop_that_is_taken_out() -> None:
    plan = plan_of(gemm_rs, 2, SIZES, scatter=sms(2, M=16), reduce=sms(M=16, N=16), matmul=TILE)

    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Tiles):
            return (replace(op, body=tuple(o for o in op.body if not isinstance(o, Wait))),)
        return (op,)

    assert refused(spoilt(plan, "reduce", change)).code == "TL602"


def test_a_store_that_nobody_needs_to_hear_of() -> None:
    """What a result gets is not waited for."""
    assert_right(spoilt(ag(), "matmul", without(Notify)))


def test_a_store_under_data_is_refused_where_nothing_is_declared() -> None:
    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Store):
            return (replace(op, mask=Expr("hit", ("hit",), vector=True, positional=False)),)
        return (op,)

    error = refused(spoilt(ag(), "matmul", change))
    assert error.code == "TL614"
    assert error.message.startswith("whether all of `out` is written is for data to say")
