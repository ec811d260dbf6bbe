"""Every rule of the proof is needed: for each there is a plan, wrong in one place, that it refuses and no other rule does.

What is wrong with a lowered plan the checker of certificates finds, too, but for workers that are too many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilelink
import tilelink.language as tl
from benchmarks.mutants.lowered import KINDS
from tests.mapping.corrupt import CORRUPTIONS
from tests.mapping.oracle import asked, reasons
from tests.mapping.plans import form, plan_of
from tests.selection import table
from tilelink import operator, sms
from tilelink.errors import TilelinkError
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan
from tilelink.mapping.judge import RULES
from tilelink.mapping.lower import lower
from tilelink.ops import gemm_rs_ring
from tilelink.proof.check import QUESTIONS, check
from tilelink.proof.table import Table

SIZES = {"M": 12, "K": 4, "N": 6}
PLANS = {
    "order in a tile": ("ag_gemm copy engine push", "late_signal", 1),
    "emitted text": ("ag_gemm library", "smaller_buffer", 1),
    "residency": ("ag_gemm copy engine pull", "more_workers", 3),
}
"""A form, how it is spoilt, and on how many ranks."""
LOWERED = {
    "bounds": "box shifted",
    "coverage": "write dropped",
    "orders": "total",
    "counts": "signal doubled",
    "waits": "await dropped",
    "frame of a call": "after dropped",
    "calls": "slots",
}
"""How the lowered plan of a form is changed."""


def refusing(plan: Plan) -> set[str]:
    """The rules that refuse a plan, each asked by itself."""
    return {rule for rule, ask in RULES if _refuses(ask, plan)} | asking(lower(plan))


def asking(lowered: Lowered) -> set[str]:
    table = Table.of(lowered)
    return {q.rule for q in QUESTIONS if next(q.ask(table), None) is not None}


def _refuses(ask: Callable[[Plan], str], plan: Plan) -> bool:
    try:
        ask(plan)
    except TilelinkError:
        return True
    return False


@table("rule", PLANS)
def test_only_this_rule_refuses_the_plan(rule: str) -> None:
    """The first that is spoilt in this way and that this rule alone refuses."""
    name, how, ranks = PLANS[rule]
    plan = form(name, ranks, SIZES, 2)
    assert refusing(plan) == set()
    only = next(p for p in CORRUPTIONS[how](plan) if refusing(p) == {rule})
    assert asked(only).error is not None


@table("rule", LOWERED)
def test_only_this_question_refuses_the_lowered_plan(rule: str) -> None:
    lowered = lower(form("ag_gemm pull", 3, SIZES, 2))
    only = next(m for _, m in KINDS[LOWERED[rule]](lowered) if m != lowered and asking(m) == {rule})
    assert not check(only).ok
    assert reasons(only)


def test_only_the_deadlock_rule_refuses_it() -> None:
    plan = plan_of(
        gemm_rs_ring, 4, SIZES, ring=sms(4, M=2, N=8, order="ring"), matmul=sms(M=2, N=8, K=4, order="ring+1")
    )
    assert refusing(plan) == {"deadlock"}
    assert asked(plan).error is not None


@tilelink.program("M N -> M N partial")
def some(x: Any, out: Any) -> None:
    m, n = tl.tile_id(out)
    value = tl.tile_load(x, (m, n))
    tl.tile_store(out, (m, n), value, mask=value > 0)


def test_only_the_signature_rule_refuses_it() -> None:
    for signature, refused in (("M N -> M N partial", set[str]()), ("M N -> M N", {"signature"})):
        plan = plan_of(operator(signature, name="op")(lambda x: some(x)), 2, {"M": 4, "N": 4}, some=sms(M=2, N=2))
        assert refusing(plan) == refused
        assert (asked(plan).error is None) == (not refused)


def test_no_rule_is_left_out() -> None:
    shown = {*PLANS, *LOWERED, "deadlock", "signature"}
    assert {*(rule for rule, _ in RULES), *(q.rule for q in QUESTIONS)} == shown
