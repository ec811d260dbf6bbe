# pyright: reportArgumentType=false
"""Programs with raw pointers: they run, races in them are found, and nobody says that they are proven."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilelink
from tests.mapping.plans import plan_of
from tests.operators import raw
from tests.operators.problems import Problem, assert_solves, each
from tilelink import TilelinkError, sms
from tilelink.explore.views import html_of
from tilelink.ops.programs import gather
from tilelink.runtime.simulated import RaceDetector
from tilelink.runtime.simulated.races import RaceError

GATHER = raw.gather_with(raw.exchange)
WITHOUT_WAIT = raw.gather_with(raw.without_wait)


def shard(rank: int, call: int) -> torch.Tensor:
    return torch.full((5, 27), 10.0 * call + rank) + torch.arange(27) / 100


@pytest.mark.each_triton
@pytest.mark.parametrize(("ranks", "seed"), [(1, 0), (2, 1), (4, 2)])
def test_an_all_gather_by_hand(ranks: int, seed: int) -> None:
    """Five calls: each slot, and the flags in it, are used again, while one rank is late."""
    whole = [torch.stack([shard(rank, call) for rank in range(ranks)]) for call in range(5)]
    problems = [Problem(each(list(x)), [(x,)] * ranks) for x in whole]
    assert_solves(GATHER, problems, seed=seed, straggler=ranks - 1)


def test_a_race_in_it_is_found() -> None:
    with pytest.raises(RaceError) as caught:
        tilelink.launch(lambda: WITHOUT_WAIT(shard(tilelink.rank(), 0)), 2)
    assert caught.value.code == "TL507"
    places = [loc.source_line().strip() for loc in (caught.value.loc, caught.value.notes[0].loc) if loc is not None]
    assert {line.split("(")[1] for line in places} == {"far + me * n + at, tl.load", "result + s * n + at, tl.load"}


def test_a_detector_of_ones_own_keeps_what_it_finds() -> None:
    """The run goes on to its end: each rank reads what the other writes, unordered, and all of it is kept."""
    detector = RaceDetector(collect=True)
    results = tilelink.launch(lambda: WITHOUT_WAIT(shard(tilelink.rank(), 0)).shape, 2, races=detector)
    assert results == [(2, 5, 27)] * 2
    assert {race.later.what.split("[")[0] for race in detector.races} == {"inbox"}


def test_it_is_not_verified() -> None:
    verdict = GATHER.verify(shard(0, 0), ranks=2)
    assert (verdict.ok, bool(verdict), verdict.error, verdict.proofs) == (False, False, None, ())
    assert verdict.assumed == ("nothing is proven: `exchange` uses raw pointers, which no proof sees through",)
    assert '<p class="verdict not">not verified</p>' in html_of(verdict)


def test_its_memory_is_everyones_and_its_credits_are_taken() -> None:
    plan = GATHER.plan(shard(0, 0), ranks=2)
    assert plan.unverified == ("exchange",)
    spaces = {b.name: (b.space, b.slots) for b in plan.buffers}
    assert spaces["inbox"] == spaces["flags"] == ("symmetric", 2)
    assert (spaces["x"][0], spaces["out"][0]) == ("argument", "result")
    assert plan.takes_credits


def test_beside_it_no_credit_is_left_out() -> None:
    """Nothing is proven of such a plan, nor is that all who used a slot have left it."""

    @tilelink.operator("M K, T/R K -> R M K, T K", name="both")
    def both(x: Any, rows: Any) -> Any:
        return raw.exchange(x, tilelink.symmetric("R i64"), tilelink.symmetric("R M K")), gather(rows)

    alone = tilelink.operator("T/R K -> T K", name="alone")(lambda rows: gather(rows))
    pulled = sms(2, M=2, push=False)
    assert plan_of(alone, 2, {"T": 8, "K": 4}, gather=pulled).credits_implied_by == "rows"
    assert plan_of(both, 2, {"M": 4, "T": 8, "K": 4}, gather=pulled).takes_credits


def test_other_programs_are_as_before() -> None:
    """Without a pointer, what needs one is refused, whatever another program of the operator does."""
    with pytest.raises(TilelinkError) as caught:
        _ = raw.no_pointer.captured
    assert (caught.value.code, caught.value.message) == ("TL123", "`tl.store` in a tile program")
