# pyright: reportArgumentType=false
"""Mixtures of experts, tensor-parallel: tables made on the device, gathered rows, run-time splits, all against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilelink
from tests.operators.problems import FEW, assert_close
from tests.operators.routings import EACH_ROUTING, ROUTINGS, I, K, Mixture
from tilelink import Operator, copy_engine, fused, sms
from tilelink.ir.topology import Device
from tilelink.ops import ag_moe, moe_layer, moe_rs

FIRST = {
    "gather": sms(2, M=8, order="ring"),
    "gather_choice": sms(1, M=8),
    "count": sms(T=8),
    "place": sms(T=8),
    "grouped": sms(P=16, N=16, H=16),
}
SECOND = {
    "grouped_down": sms(P=16, H=16, I=16),
    "combine": sms(T=8, H=16),
    "scatter": sms(2, M=8),
    "reduce": sms(M=8, N=16),
}
LAYER = {n: p for n, p in FIRST.items() if n != "grouped"}
LAYER |= {"grouped_glu": sms(P=16, N=16, H=16), "gather_score": sms(1, M=8)}
LAYER |= {f"moe_rs.{n}": p for n, p in SECOND.items()}

AG, RS, ALL = ag_moe.schedule(FIRST), moe_rs.schedule(SECOND), moe_layer.schedule(LAYER)
Job = Callable[[Mixture, int, int], Any]
"""What one rank calls, and what it must get, compared."""


def first(operator: Operator = AG) -> Job:
    def job(m: Mixture, rank: int, ranks: int) -> None:
        mine, columns = m.tokens_of(rank, ranks), m.columns(rank, ranks)
        up = m.up[:, :, columns].contiguous()
        hidden, start, slot = operator(m.tokens[mine], m.choice[mine], up, T=len(m.tokens), I=I)
        by_row, expert = m.rows(rank, ranks)
        assert start.tolist() == [0, *torch.bincount(expert, minlength=len(m.up)).cumsum(0).tolist()]
        want = torch.full((m.choice.numel(),), -1, dtype=torch.int32)
        want[by_row] = torch.arange(len(by_row), dtype=torch.int32)
        assert torch.equal(slot.flatten(), want)
        rows = m.tokens[by_row // K].float()
        assert_close(hidden[: len(by_row)], torch.einsum("ph,phi->pi", rows, up.float()[expert]))

    return job


def second(operator: Operator = RS) -> Job:
    def job(m: Mixture, rank: int, ranks: int) -> None:
        by_row, expert = m.rows(rank, ranks)
        slot = torch.full((m.choice.numel(),), -1, dtype=torch.int32)
        slot[by_row] = torch.arange(len(by_row), dtype=torch.int32)
        start = torch.zeros(len(m.up) + 1, dtype=torch.int32)
        start[1:] = torch.bincount(expert, minlength=len(m.up)).cumsum(0)
        hidden = torch.zeros(m.choice.numel(), I, dtype=m.tokens.dtype)
        hidden[: len(by_row)] = torch.einsum("ph,phi->pi", m.tokens[by_row // K].float(), m.up.float()[expert])
        columns = m.columns(rank, ranks)
        got = operator(
            hidden[:, columns].contiguous(),
            start,
            slot.view(m.choice.shape),
            m.down[:, columns].contiguous(),
            m.score,
            I=I,
        )
        assert_close(got, m.weighted(m.through(glu=False))[m.tokens_of(rank, ranks)])

    return job


def layer(operator: Operator = ALL) -> Job:
    def job(m: Mixture, rank: int, ranks: int) -> None:
        mine, columns = m.tokens_of(rank, ranks), m.columns(rank, ranks)
        gate, up = (w[:, :, columns].contiguous() for w in (m.gate, m.up))
        down = m.down[:, columns].contiguous()
        got = operator(m.tokens[mine], m.choice[mine], m.score[mine], gate, up, down, T=len(m.tokens), I=I)
        assert_close(got, m.weighted(m.through(glu=True))[mine])

    return job


JOBS: dict[str, Job] = {"ag_moe": first(), "moe_rs": second(), "moe_layer": layer()}
AS_THEY_COME: dict[str, Job] = {"ag_moe": first(ag_moe), "moe_rs": second(moe_rs), "moe_layer": layer(moe_layer)}


def assert_mixtures(job: Job, mixtures: list[Mixture], ranks: int, seed: int = 0, **options: Any) -> None:
    """All calls back to back, one rank slower than all others."""

    def main() -> None:
        for m in mixtures:
            job(m, tilelink.rank(), ranks)

    tilelink.launch(main, ranks, seed=seed, straggler=seed % ranks, **{"device": FEW, **options})


@pytest.mark.parametrize("ranks", [1, 5, 8])
@pytest.mark.parametrize("name", JOBS)
def test_rank_counts(name: str, ranks: int) -> None:
    """Alone, and many of which the last has no tokens; the tests below have two to four ranks."""
    assert_mixtures(JOBS[name], [Mixture.of(13), Mixture.of(9, salt=1)], ranks, seed=ranks)


@EACH_ROUTING
@pytest.mark.parametrize("name", JOBS)
def test_routings(name: str, routing: str) -> None:
    assert_mixtures(JOBS[name], [Mixture.of(13, routing)], 3, seed=1)


@pytest.mark.parametrize("name", JOBS)
def test_another_routing_each_call(name: str) -> None:
    """Other tables at the same sizes, then other sizes, on one workspace: nothing of a call's routing is in the plan."""
    mixtures = [Mixture.of(13, routing, torch.bfloat16, salt) for salt, routing in enumerate(ROUTINGS)]
    assert_mixtures(
        JOBS[name], [*mixtures, Mixture.of(1, dtype=torch.bfloat16), Mixture.of(16, dtype=torch.bfloat16)], 2, seed=1
    )


@pytest.mark.parametrize("name", JOBS)
def test_one_token_and_ranks_without_any(name: str) -> None:
    """At last no rank has any."""
    assert_mixtures(JOBS[name], [Mixture.of(2), Mixture.of(1), Mixture.of(0)], 4, seed=3)


@pytest.mark.each_triton
@pytest.mark.parametrize("name", AS_THEY_COME)
def test_as_they_come(name: str) -> None:
    """With the placements that they ship, for which a device has SMs enough."""
    assert_mixtures(AS_THEY_COME[name], [Mixture.of(13), Mixture.of(13, "experts without tokens")], 2, device=Device())


SCHEDULES: dict[str, Job] = {
    "pushed rows": first(AG.schedule(gather=sms(2, M=8, push=True), gather_choice=sms(1, M=4, push=True))),
    "copy engine": first(AG.schedule(gather=copy_engine(M=8, push=True), gather_choice=copy_engine(push=True))),
    "other tiles": first(
        AG.schedule(gather=sms(2, M=4), count=sms(T=16), place=sms(T=4), grouped=sms(P=32, N=32, H=32))
    ),
    "a column of all experts at a time": second(
        RS.schedule(
            grouped_down=sms(P=16, H=16, I=16, order="column"),
            combine=sms(2, T=8, H=16, order=("column", "ring+1")),
            scatter=fused("combine"),
        )
    ),
    "sums pushed by a copy engine": second(RS.schedule(scatter=copy_engine(M=8))),
    "sums pushed by who makes them": second(RS.schedule(scatter=fused("combine"))),
    "a layer on copy engines": layer(
        ALL.schedule(
            {
                "gather": copy_engine(push=True),
                "gather_choice": copy_engine(push=True),
                "gather_score": copy_engine(push=True),
                "moe_rs.scatter": copy_engine(M=8),
            }
        )
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    assert_mixtures(SCHEDULES[schedule], [Mixture.of(13), Mixture.of(13, "experts without tokens")], 3, seed=2)
