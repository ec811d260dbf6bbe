"""Every rule of the proof is needed: for each there is a plan, wrong in one place, that it refuses and no other rule does.

The exact graph finds something in each of them that it can play through.
"""

from __future__ import annotations

import random

import pytest

from benchmarks.mutants.bodies import with_body
from tests.mapping.corrupt import CORRUPTIONS
from tests.mapping.plans import form, plan_of
from tilelink import sms
from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.program import Expr, If, Notify
from tilelink.mapping.exact import examine
from tilelink.mapping.verify import rules_of
from tilelink.ops import ag_gemm, gemm_rs_ring

SIZES = {"M": 12, "K": 4, "N": 6}
SPOILT = {
    "order in a tile": ("ag_gemm pull", "late_signal", "TL602"),
    "elided signals": ("ag_gemm copy engine push", "brought_along", "TL609"),
    "frame of a call": ("ag_gemm copy engine in whole parts", "weaker_scope", "TL612"),
    "bounds": ("ag_gemm pull", "smaller_buffer", "TL611"),
    "coverage": ("ag_gemm copy engine pull", "own_left_out", "TL604"),
    "orders": ("ag_gemm pull", "fewer_tiles", "TL604"),
    "counts": ("ag_gemm pull", "other_target", "TL607"),
    "waits": ("gemm_rs_ring", "other_peer", "TL608"),
    "epochs": ("ag_gemm copy engine push", "one_slot", "TL610"),
}


def refusing(plan: Plan) -> list[tuple[str, str]]:
    """The rules that refuse a plan, each asked by itself, and with what."""
    found: list[tuple[str, str]] = []
    for rule, check in rules_of(plan, []):
        try:
            check()
        except TilelinkError as error:
            found.append((rule, error.code))
    return found


def spoilt(name: str, how: str, rule: str) -> Plan:
    """The first plan that is spoilt in this way and that this rule refuses."""
    plan = form(name, 3, SIZES, 2)
    assert refusing(plan) == []
    made = (CORRUPTIONS[how](random.Random(seed), plan) for seed in range(20))
    return next(p for p in made if p is not None and [r for r, _ in refusing(p)] == [rule])


@pytest.mark.parametrize("rule", SPOILT)
def test_only_this_rule_refuses_it(rule: str) -> None:
    name, how, code = SPOILT[rule]
    plan = spoilt(name, how, rule)
    assert refusing(plan) == [(rule, code)]
    assert examine(plan).findings


def test_only_the_form_refuses_it() -> None:
    """A notify that data decides; of what nobody waits for, so that nothing else is wrong."""
    plan = plan_of(ag_gemm, 2, SIZES, gather=sms(2, M=2), matmul=sms(M=2, N=2, K=2))
    test = Expr("found > 0", ("found",), positional=False)
    body = plan.step("matmul").step.program.body
    guarded = tuple(If(test=test, body=(op,), loc=op.loc) if isinstance(op, Notify) else op for op in body)
    assert refusing(with_body(plan, "matmul", guarded)) == [("form", "TL601")]


def test_only_the_deadlock_rule_refuses_it() -> None:
    plan = plan_of(
        gemm_rs_ring, 4, SIZES, ring=sms(4, M=2, N=8, order="ring"), matmul=sms(M=2, N=8, K=4, order="ring+1")
    )
    assert refusing(plan) == [("deadlock", "TL605")]
    assert "deadlock" in [f.kind for f in examine(plan).findings]


def test_no_rule_is_left_out() -> None:
    rules = [rule for rule, _ in rules_of(form("ag_gemm pull", 2, SIZES, 2), [])]
    assert {*rules} == {*SPOILT, "form", "deadlock"}
