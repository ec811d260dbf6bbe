"""A verdict on what is wrong: the diagnostic, and an interleaving of few ranks that goes wrong."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.mapping.plans import form, plan_of, with_channel, with_signal
from tests.mapping.test_programs import spoilt
from tilelink import fused, sms
from tilelink.explore.views import counterexample_svg
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan
from tilelink.ir.program import Op, Wait
from tilelink.ir.verdict import Counterexample
from tilelink.mapping.judge import judge
from tilelink.ops import gemm_rs

LARGE = {"M": 64 * 256, "K": 512, "N": 2048}


def shown(plan: Plan, code: str) -> Counterexample:
    verdict = judge(plan)
    assert not verdict
    assert verdict.error is not None
    assert verdict.error.code == code
    assert verdict.counterexample is not None
    return verdict.counterexample


def told(found: Counterexample) -> list[tuple[int, int, str, str, str]]:
    return [(i.call, i.rank, i.path, i.tile, i.does) for i in found.steps]


def test_what_is_printed_of_a_plan_and_a_proof() -> None:
    """A line for each step, and for each rule, in their order: not the fields, which fill pages."""
    plan = form("gemm_rs fused, reduced in the epilogue", 4, {"M": 64, "K": 16, "N": 32})
    head, *lines = str(plan).splitlines()
    assert head.startswith(f"gemm_rs: {plan.wiring.signature}")
    assert [line.split()[0] for line in lines] == [*(s.path for s in plan.steps), *("note:" for _ in plan.notes)]
    right = judge(plan)
    width = max(len(p.rule) for p in right.proofs)
    assert [line.strip() for line in str(right).splitlines()] == [
        "proved",
        *(f"{p.rule.ljust(width)}  {p.text}".strip() for p in right.proofs),
    ]
    wrong = judge(with_channel(form("ag_gemm push", 4, {"M": 64, "K": 16, "N": 32}), "rows", scope="gpu"))
    assert wrong.error is not None
    assert wrong.counterexample is not None
    printed = str(wrong)
    assert printed.startswith("refused")
    assert printed.index(str(wrong.error)) < printed.index(wrong.counterexample.text)
    assert printed.endswith(str(wrong.counterexample.steps[-1]))


def test_what_is_right_has_no_counterexample() -> None:
    verdict = judge(form("ag_gemm pull", 4, {"M": 64, "K": 16, "N": 32}))
    assert (verdict.ok, verdict.error, verdict.counterexample, verdict.assumed) == (True, None, None, ())


def test_a_circle() -> None:
    tile = sms(M=128, N=128, K=64, order="ring")
    found = shown(plan_of(gemm_rs, 64, LARGE, scatter=fused("matmul"), reduce=fused("matmul"), matmul=tile), "TL605")
    assert (found.kind, found.sizes) == ("deadlock", "64 ranks and M=16384, K=512, N=2048")
    assert told(found) == [
        (0, 0, "reduce", "(0, 0)", "waits for flag 32 of `dst`"),
        (0, 1, "scatter", "(0, 0)", "would notify flag 32 of `dst` on rank 0"),
        (0, 1, "reduce", "(2, 0)", "waits for flag 0 of `dst`"),
        (0, 0, "scatter", "(2, 0)", "would notify flag 0 of `dst` on rank 1"),
    ]
    assert found.edges == ((0, 1), (1, 2), (2, 3), (3, 0))
    assert {i.loc.line for i in found.steps if i.loc is not None} == {58, 16}


def test_a_wait_that_was_left_out() -> None:
    """The read may come before the write."""
    plan = with_signal(
        form("ag_gemm pull", 64, LARGE, 128), "matmul", "rows", "await", action="elided", channel=None, reason="stream"
    )
    found = shown(plan, "TL609")
    assert told(found) == [
        (0, 0, "matmul", "(0, 0)", "reads `rows` of rank 0"),
        (0, 0, "gather", "(0, 0)", "writes `rows` of rank 0 only now"),
    ]
    assert found.missing == (1, 0)


def test_a_signal_that_does_not_reach_far_enough() -> None:
    found = shown(with_channel(form("ag_gemm push", 4, {"M": 64, "K": 16, "N": 32}), "rows", scope="gpu"), "TL612")
    assert told(found) == [
        (0, 0, "gather", "(0, 0)", "notifies flag 0 of `rows`"),
        (0, 0, "matmul", "(0, 0)", "waits for flag 0 of `rows`"),
    ]


def test_a_count() -> None:
    found = shown(with_channel(form("gemm_rs push", 4, {"M": 64, "K": 16, "N": 32}), "dst", target=F.of(2)), "TL607")
    assert (found.kind, found.text) == ("count", "flag 0 of `dst` on rank 0 is signalled 1 times, and expects 2")
    assert [s[2] for s in told(found)] == ["scatter", "reduce"]


def test_a_program_that_is_wrong() -> None:
    """The diagnostic is on the program's line, and the case of few ranks shows why."""

    def without(op: Op) -> tuple[Op, ...]:
        return () if isinstance(op, Wait) else (op,)

    plan = spoilt(form("ag_gemm pull", 2, {"M": 8, "K": 4, "N": 4}, 2), "matmul", without)
    found = shown(plan, "TL602")
    assert (found.kind, [s[2] for s in told(found)]) == ("race", ["matmul", "gather"])


def test_a_picture() -> None:
    """A box for each step, and an arrow for each edge, the missing one among them."""
    found = shown(with_channel(form("ag_gemm push", 4, {"M": 8, "K": 4, "N": 4}, 2), "rows", scope="gpu"), "TL612")
    drawn = ElementTree.fromstring(counterexample_svg(found))
    arrows = [p for p in drawn.findall("{*}path") if p.get("marker-end")]
    assert len(drawn.findall("{*}rect")) == 1 + len(found.steps)
    assert len(arrows) == len(found.edges) + (found.missing is not None)
    said = "".join(drawn.itertext())
    assert all(i.path in said for i in found.steps)
