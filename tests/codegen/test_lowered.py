"""What is emitted is what the lowered plan says: who is told, which flag, from where, and under which test."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.mapping.plans import emitted, plan_of
from tilelink import operator, sms
from tilelink.codegen import emit
from tilelink.ir import formula as F
from tilelink.ir.lowered import Await, Copy, If, Lowered, Op, Part, Read, Signal, walk
from tilelink.mapping.lower import lower
from tilelink.ops import ag_gemm
from tilelink.ops.programs import gather, keep

PLAN = plan_of(
    ag_gemm, 3, {"M": 48, "K": 32, "N": 64}, gather=sms(2, M=16, order="ring", push=False), matmul=sms(M=16, N=16)
)


@operator("M/R pe -> M pe")
def gathered(x: Any) -> Any:
    return keep(gather(x))


def text_with(path: str, change: Callable[[Part], Part]) -> str:
    """The text where one step's part is changed."""
    lowered: Lowered = lower(PLAN)
    parts = tuple(change(p) if p.path == path else p for p in lowered.parts)
    assert parts != lowered.parts
    return emit(PLAN, replace(lowered, parts=parts)).text


def everywhere(part: Part, change: Callable[[Op], Op]) -> Part:
    said = tuple((statement, tuple(map(change, body))) for statement, body in part.said)
    return replace(part, body=tuple(map(change, part.body)), said=said)


def test_the_flag_that_is_awaited() -> None:
    def other(op: Op) -> Op:
        found = next((o for o in walk((op,)) if isinstance(o, Await)), None)
        return op if found is None else replace(found, index=F.of(7))

    text = text_with("matmul", lambda p: everywhere(p, other))
    assert "shmem.local_wait_until(rows_flags + 7, " in text


def test_the_flag_that_is_raised() -> None:
    text = text_with(
        "gather", lambda p: everywhere(p, lambda o: replace(o, index=F.of(7)) if isinstance(o, Signal) else o)
    )
    assert "shmem.local_add(rows_flags + 7, 1)" in text


def test_the_rank_that_is_copied_from() -> None:
    def other(op: Op) -> Op:
        return replace(op, source=replace(op.source, rank=F.of(2))) if isinstance(op, Copy) else op

    assert (
        ", 2, ctx)" in text_with("gather", lambda p: everywhere(p, other)).split("getmem_nbi_block")[1].split("\n")[0]
    )


def test_a_test_around_a_tile() -> None:
    test = F.binary("<", F.Sym("0.begin"), 5)
    assert "if M_begin < 5:" in text_with("gather", lambda p: replace(p, tests=(test,)))
    assert "if M_begin < 5:" in text_with("gather", lambda p: replace(p, body=(If(test, p.body),)))


def test_where_a_load_begins() -> None:
    def moved(op: Op) -> Op:
        n = F.Sym("n.begin")
        return (
            replace(op, box=tuple((n + 3 if at == n else at, to) for at, to in op.box)) if isinstance(op, Read) else op
        )

    assert "n_begin + 3" in text_with("matmul", lambda p: everywhere(p, moved))


def test_a_size_that_is_called_as_the_ranks_of_a_push_are() -> None:
    plan = plan_of(gathered, 3, {"M": 48, "pe": 40}, gather=sms(2, M=16, push=True), keep=sms(M=16))
    assert not re.search(r"\* pe_\d*\b", emitted(plan).text)
