"""The search, on simulated ranks: all of them decide the same, and what fails on one fails on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tilelink
from tilelink import Operator, TilelinkError, copy_engine, fused, library, ops, sms
from tilelink.explore.cases import Case
from tilelink.explore.report_tables import tuned_sheet
from tilelink.explore.running import tune_case
from tilelink.ir.schedule import Library, Placement, Schedule
from tilelink.pipeline.tuning import RankCandidate, Tuning
from tilelink.runtime.session import require
from tilelink.tuning.measuring import Times
from tilelink.tuning.records import form_of
from tilelink.tuning.search import Limits
from tilelink.tuning.space import space_of

RANKS = 2
MATMUL = sms(M=32, N=32, K=32, order="ring")
SLOW = sms(2, M=32, N=32, K=32, order="ring")
SPACE: dict[str, tuple[Placement, ...]] = {
    "gather": (copy_engine(push=True), sms(2, M=32)),
    "matmul": (SLOW, MATMUL, sms(M=24, N=32, K=32)),  # the last is refused: no power of two
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path))


def tensors(seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed + tilelink.rank())
    return [torch.randn(64, 64).to(torch.bfloat16), torch.randn(64, 64).to(torch.bfloat16)]


def tuning(operator: Operator) -> Tuning:
    return operator.tuning(*tensors())


def test_all_ranks_find_the_same_and_the_slow_one_loses() -> None:
    def body() -> Any:
        found = tuning(ops.ag_gemm).search(Limits(), SPACE)
        return found.best, found.trials, found.failed

    results = tilelink.launch(body, RANKS)
    assert results[0] == results[1]
    best, trials, failed = results[0]
    assert best.us == min(t.us for t in trials if t.us is not None)
    assert best.schedule.get("matmul") != SLOW
    slow = [t.us for t in trials if t.schedule.get("matmul") == SLOW]
    assert slow
    assert min(slow) > best.us
    (refused,) = {t.schedule.get("matmul") for t in failed}
    assert isinstance(refused, type(MATMUL))
    assert dict(refused.tile)["M"] == 24
    assert all(t.why.startswith("rank 0: TL314") for t in failed)


class Picky(RankCandidate):
    """A candidate that does not compile on the last rank."""

    def compile(self) -> None:
        placed = self.operator.schedules.get("matmul")
        if placed == MATMUL and tilelink.rank() == RANKS - 1:
            raise TilelinkError("TL405", "too many workers")
        super().compile()


class Hopeless(RankCandidate):
    """No candidate compiles."""

    def compile(self) -> None:
        raise TilelinkError("TL405", "too many workers")


def test_it_begins_with_a_schedule_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilelink.pipeline.tuning.RankCandidate", Hopeless)
    with pytest.raises(TilelinkError) as caught:
        tilelink.launch(lambda: tuning(ops.ag_gemm).search(Limits(), SPACE), RANKS)
    assert str(caught.value).splitlines() == [
        "TL462: the schedule to begin with does not run: rank 0: TL405: too many workers",
        "  do:  begin with one that runs: op.schedule(…).tune(…)",
    ]


class Wrong(RankCandidate):
    """A candidate whose result is wrong on the first rank."""

    def run(self, outs: Sequence[torch.Tensor] = ()) -> Any:
        found = super().run(outs)
        return found * 2 if self.operator.schedules.get("matmul") == MATMUL and tilelink.rank() == 0 else found


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Picky, "rank 1: TL405: too many workers"), (Wrong, "rank 0: TL463: a wrong result")],
)
def test_what_fails_on_one_rank_fails_on_all(
    kind: type[RankCandidate], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilelink.pipeline.tuning.RankCandidate", kind)

    def body() -> Any:
        found = tuning(ops.ag_gemm).search(Limits(), {"matmul": (MATMUL, sms(M=64, N=32, K=32, order="ring"))})
        return found.ranked, found.failed

    results = tilelink.launch(body, RANKS)
    assert results[0] == results[1]
    ranked, failed = results[0]
    assert [(t.schedule.get("matmul"), t.why) for t in failed] == [(MATMUL, why)]
    assert len(ranked) == 2  # as it comes, and the other one


@pytest.mark.parametrize("what", ["zeros", "maker"])
def test_a_candidate_whose_allocation_fails_on_one_rank_gives_memory_back(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the workspace beside symmetric memory, or, when all of the workspace is there, that of a result."""

    class Short(RankCandidate):
        def allocate(self) -> Any:
            def short(*_: object) -> Any:
                raise RuntimeError("out of memory")

            with pytest.MonkeyPatch.context() as patch:
                if self.operator.schedules.get("matmul") == MATMUL and tilelink.rank() == 1:
                    patch.setattr(self.of.backend, what, short)
                return super().allocate()

    def body() -> tuple[list[str], int, int]:
        failed = tuning(ops.ag_gemm).search(Limits(), {"matmul": (MATMUL,)}).failed
        why = [t.why.rpartition(": ")[2] for t in failed]
        return why, len(require().workspaces), len(vars(require().backend.arenas)["_arenas"])

    monkeypatch.setattr("tilelink.pipeline.tuning.RankCandidate", Short)
    assert tilelink.launch(body, RANKS) == [(["out of memory"], 0, 0)] * RANKS


def test_a_candidate_that_does_not_fit_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tilelink.pipeline.tuning.nbytes_of", lambda plan: 1 << 50 if plan.schedule.get("matmul") == MATMUL else 0
    )

    def body() -> list[str]:
        return [t.why for t in tuning(ops.ag_gemm).search(Limits(), {"matmul": (MATMUL,)}).failed]

    assert tilelink.launch(body, RANKS) == [["not enough memory"]] * RANKS


def test_a_library_slots_and_the_plain_form_are_among_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the result says which form won."""
    by_library = library("torch.mm", M="M/R")
    space: dict[str, tuple[Placement, ...]] = {"gather": (copy_engine(push=True),), "matmul": (by_library, SLOW)}
    monkeypatch.setattr("tilelink.pipeline.tuning.space_of", lambda plan: space)

    def body() -> Any:
        tuned = tuning(ops.ag_gemm)
        study = tuned.search(Limits())
        assert study.failed == ()
        tried = (
            {type(t.schedule.get("matmul")).__name__ for t in study.trials},
            {t.schedule.slots for t in study.trials},
        )
        kept = tuned.kept(study)
        record = kept.record()
        assert record is not None
        zero, nearly = Times((0.0,), (0.0,)), Times((1e-9,), (0.0,))
        plain = replace(study, final={Schedule(unfused=True): zero})
        library_first = next(s for s in study.tried if isinstance(s.get("matmul"), Library))
        best = replace(study, final={library_first: nearly})
        sheet, known = tuned_sheet("op", kept, study), tuned_sheet("op", kept, None)
        assert sheet.rows[0][1] == str(study.best.schedule) == known.rows[0][1]
        assert replace(plain, plain_may_win=False).won == form_of(study.best.schedule)
        form = form_of(study.best.schedule)
        return tried, study.won == kept.won == record["won"] == form, plain.won, best.won, sheet.title

    tried, said, plain, best, title = tilelink.launch(body, RANKS)[0]
    assert tried == ({"Library", "Sms"}, {1, 2, 3})
    assert (said, plain, best) == (True, "unfused", "library")
    assert " won, " in title


def test_without_time_the_operator_stays_as_it_comes() -> None:
    def body() -> int:
        return len(tuning(ops.ag_gemm).search(Limits(budget=0), SPACE).trials)

    assert tilelink.launch(body, RANKS) == [1] * RANKS


def test_a_tuned_operator_is_right_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> tuple[torch.Tensor, Schedule]:
        tuned = ops.ag_gemm.tune(*tensors(), budget=60, space=SPACE)
        return tuned(*tensors(1)), tuned.schedules

    first = tilelink.launch(body, RANKS)
    assert first[0][1] == first[1][1]
    monkeypatch.setattr(Tuning, "search", lambda *_: pytest.fail("measured again"))
    again = tilelink.launch(body, RANKS)
    assert again[0][1] == first[0][1]
    torch.testing.assert_close(again[0][0], first[0][0])

    def elsewhere() -> None:
        x, w = tensors()
        ops.ag_gemm.tune(torch.cat([x, x]), w, budget=60, space=SPACE)

    with pytest.raises(BaseException, match="measured again"):
        tilelink.launch(elsewhere, RANKS)


OTHERS = {
    "combine": (ops.moe_rs, {"T": 16, "H": 32, "k": 2, "e": 2, "I": 32}),
    "flash": (ops.ag_attention, {"S": 32, "h": 1, "g": 1, "D": 16, "causal": 0}),
    "dispatch": (ops.ep_dispatch, {"T": 8, "H": 16, "k": 1, "experts": 2, "capacity": 32}),
    "all_reduce_one_shot.exchange": (ops.all_reduce, {"M": 4, "N": 64}),
}


@pytest.mark.parametrize("step", OTHERS)
def test_other_operators_can_be_tuned_too(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their results are those of the operator by default, also where it leaves memory unwritten."""
    operator, sizes = OTHERS[step]
    monkeypatch.setattr("tilelink.pipeline.tuning.space_of", lambda plan: {step: space_of(plan)[step][:2]})
    monkeypatch.setattr("tilelink.pipeline.tuning.SLOTS", ())
    entry, study = tune_case(Case(operator, tuple(sizes.items()), RANKS), budget=60, fresh=True)
    assert study is not None
    assert study.failed == ()
    assert len({t.schedule.get(step) for t in study.trials}) == len(study.trials) == 2
    assert 1e3 * entry.ms == pytest.approx(study.ranked[0].us)
    assert study.plain_may_win is (operator in (ops.ag_attention, ops.all_reduce))


def test_a_schedule_to_begin_with_that_is_refused_says_so() -> None:
    def body() -> None:
        ops.gemm_rs.schedule(scatter=fused("nothing")).tune(*tensors(), budget=1)

    with pytest.raises(TilelinkError, match=r"TL31[12]"):
        tilelink.launch(body, RANKS)
