"""What a search finds, whichever way it looks: `Operator.explore`, its study, and the file that it goes on from."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import tilelink
from tilelink import TilelinkError, copy_engine, ops, sms
from tilelink.cost import H200
from tilelink.explore.views import html_of
from tilelink.ir.lowered import Lowered
from tilelink.ir.plan import Plan
from tilelink.ir.schedule import Placement, Schedule
from tilelink.ir.topology import Topology
from tilelink.ir.verdict import Verdict
from tilelink.mapping.judge import judged
from tilelink.pipeline.tuning import modelled
from tilelink.tuning.methods import Method
from tilelink.tuning.search import Limits, Search
from tilelink.tuning.study import Study, Trial
from tilelink.tuning.tables import Problem

RANKS = 2
LARGE = [
    [torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")] * RANKS,
    [torch.empty(4096, 1024, dtype=torch.bfloat16, device="meta")] * RANKS,
]
SPACE: dict[str, tuple[Placement, ...]] = {
    "gather": (copy_engine(push=True), copy_engine(M=512, push=True), sms(8, M=128, order="ring"), sms(16, M=128)),
    "matmul": tuple(
        sms(M=m, N=n, K=64, num_warps=8, order=("ring", group))
        for m, n in ((128, 256), (128, 128), (64, 256), (64, 64))
        for group in ("group 8", "row")
    ),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "cache"))


def explored(method: Method, **more: Any) -> Study:
    return ops.ag_gemm.explore(*LARGE, method=method, space=SPACE, **more)


@pytest.fixture(scope="module")
def everything() -> Study:
    return explored("exhaustive")


def test_all_schedules_of_a_space_are_tried_and_the_best_is_the_best(everything: Study) -> None:
    assert len(everything.trials) == 1 + 4 * 8  # and the operator by default
    assert everything.left == 0
    assert everything.best.us == min(t.us for t in everything.trials if t.us is not None)
    for trial in everything.trials[:3]:
        operator = ops.ag_gemm.with_schedule(trial.schedule)
        topology = Topology(RANKS, "peer", device=H200.device())
        _, bound = ops.ag_gemm.calls.planned_for(LARGE, None, topology, {})
        assert modelled(operator, bound) == trial


@pytest.mark.parametrize("method", [m for m in get_args(Method) if m != "exhaustive"])
def test_every_method_comes_near_the_best_and_keeps_its_number_of_trials(method: Method, everything: Study) -> None:
    study = explored(method, trials=20, seed=3)
    assert len(study.trials) <= 20
    assert study.method == method
    known = {t.schedule: t.us for t in everything.trials}
    assert all(known.get(t.schedule, t.us) == t.us for t in study.trials)
    assert study.best.us is not None
    assert everything.best.us is not None
    assert study.best.us <= 1.05 * everything.best.us


@pytest.mark.parametrize("method", ["random", "annealing", "optuna"])
def test_a_seed_says_what_is_drawn(method: Method) -> None:
    first, again, other = (explored(method, trials=8, seed=seed).trials for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_without_optuna_the_method_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(TilelinkError) as caught:
        explored("optuna", trials=2)
    assert str(caught.value).splitlines() == [
        "TL467: this method needs `optuna`, which is not installed",
        "  do:  pip install 'tilelink-triton[search]'",
    ]


def test_there_is_no_other_method() -> None:
    with pytest.raises(TilelinkError, match="TL468: `luck` is no method"):
        explored("luck")  # pyright: ignore[reportArgumentType]


def test_what_cannot_run_is_there_with_the_reason() -> None:
    space: dict[str, tuple[Placement, ...]] = {"matmul": (sms(M=24, N=32, K=32), SPACE["matmul"][0])}
    study = ops.ag_gemm.explore(*LARGE, method="exhaustive", space=space)
    (failed,) = study.failed
    assert failed.why.startswith("TL314")
    assert failed not in study.ranked
    assert len(study.ranked) == 2


def test_what_the_proof_refuses_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = SPACE["gather"][1]

    def strict(plan: Plan) -> tuple[Verdict, Lowered | None]:
        verdict, lowered = judged(plan)
        wrong = (
            TilelinkError("TL601", "a tile is read before it is there")
            if plan.schedule.get("gather") == refused
            else None
        )
        return replace(verdict, error=wrong), lowered

    monkeypatch.setattr("tilelink.pipeline.compiled.judged", strict)
    some = {path: options[:2] for path, options in SPACE.items()}
    study = ops.ag_gemm.explore(*LARGE, method="exhaustive", space=some)
    assert {t.why for t in study.failed} == {"TL601: a tile is read before it is there"}
    assert {t.schedule.get("gather") for t in study.failed} == {refused}
    assert len(study.failed) == len(some["matmul"])


def test_pareto_keeps_what_nothing_beats(everything: Study) -> None:
    def better(a: Trial, b: Trial) -> bool:
        mine, other = (a.us or 0, a.sms, a.nbytes), (b.us or 0, b.sms, b.nbytes)
        return mine != other and all(x <= y for x, y in zip(mine, other, strict=True))

    front = everything.pareto
    assert everything.best.us == front[0].us
    assert len({t.sms for t in everything.trials}) == 3  # a copy engine, 8 and 16
    for trial in everything.ranked:
        assert (trial in front) or any(better(t, trial) or _same(t, trial) for t in front)
    assert not any(better(a, b) for a in front for b in front)


def _same(a: Trial, b: Trial) -> bool:
    return (a.us, a.sms, a.nbytes) == (b.us, b.sms, b.nbytes)


def trial(us: float | None, slots: int) -> Trial:
    return Trial(Schedule(slots=slots), us)


def study_of(*trials: Trial) -> Study:
    problem = Problem("op", "M -> M", "GPU", "peer", 2, ("bf16",), (("M", 64),))
    return Study(problem, "model", "random", {}, {t.schedule: t for t in trials})


def test_times_within_a_hundredth_tie() -> None:
    found = study_of(trial(100.9, 1), trial(100, 2), trial(101.1, 3), trial(None, 4))
    assert [t.us for t in found.ties] == [100, 100.9]


def test_a_study_of_failures_has_no_best() -> None:
    with pytest.raises(TilelinkError, match="TL462"):
        study_of(trial(None, 1)).best  # noqa: B018


# ------------------------------------------------------------------------------------------------------------- limits
def test_a_search_ends_when_its_time_is_over() -> None:
    study = ops.ag_gemm.explore(*LARGE, method="exhaustive", budget=0)
    assert len(study.trials) == 1


def test_time_may_run_out_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tilelink.tuning.search.time.monotonic", lambda: now[0])

    def evaluate(schedules: Sequence[Schedule], late: Callable[[], bool]) -> list[Trial]:
        found: list[Trial] = []
        for schedule in schedules:
            if not late():
                now[0] += 1
                found.append(Trial(schedule, 1.0))
        return found

    study = study_of()
    study.space, study.method = SPACE, "exhaustive"
    Search(study, Limits(budget=9.5), Schedule(), (), evaluate, lambda s: 1.0, batch=8).run()
    assert len(study.trials) == 10  # the one to begin with, a batch of eight, and one of the next eight
    assert study.left == 32 - 8


def test_progress_is_told_of_every_trial() -> None:
    seen: list[int] = []
    explored("random", trials=5, progress=lambda study: seen.append(len(study.trials)))
    assert seen == [1, 2, 3, 4, 5]


# --------------------------------------------------------------------------------------------------------------- the file
def test_a_search_goes_on_where_the_last_one_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deep" / "study.jsonl"
    first = explored("random", trials=6, file=file)
    with file.open("a") as more:
        more.write('{"schedule": {"pla')  # it was killed while it wrote
    asked: list[Schedule] = []

    def noted(operator: Any, *rest: Any) -> Trial:
        asked.append(operator.schedules)
        return modelled(operator, *rest)

    monkeypatch.setattr("tilelink.pipeline.tuning.modelled", noted)
    further = explored("random", trials=10, file=file)
    assert further.trials[:6] == first.trials
    assert [t.schedule for t in further.trials[6:]] == asked
    assert explored("random", trials=10, file=file).trials == further.trials
    assert len(asked) == 4
    assert further.trials == explored("random", trials=10).trials


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.jsonl"
    explored("random", trials=2, file=file)
    with pytest.raises(TilelinkError, match=r"TL466(.|\n)*its `sizes` is") as caught:
        ops.ag_gemm.explore(*LARGE[:1], [t[:, :512] for t in LARGE[1]], space=SPACE, file=file)
    assert caught.value.code == "TL466"
    for spoilt in ("nonsense\n", '{"a": 1}\n', file.read_text() + '{"schedule": 3}\n'):
        other = tmp_path / "other.jsonl"
        other.write_text(spoilt)
        with pytest.raises(TilelinkError, match="TL466"):
            explored("random", trials=2, file=other)


# ------------------------------------------------------------------------------------------------------------ to look at
def test_a_table_has_a_row_per_trial(everything: Study) -> None:
    table = everything.table()
    assert len(table) == len(everything.trials)
    assert list(table.us) == sorted(table.us)
    assert table.iloc[0].matmul == repr(everything.best.schedule.get("matmul"))
    assert set(table[table.pareto].us) == {t.us for t in everything.pareto}


def test_without_pandas_the_table_says_what_is_missing(everything: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TilelinkError, match=r"TL467: a table of trials needs `pandas`"):
        everything.table()


def test_a_plot_shows_every_schedule_that_runs(everything: Study, tmp_path: Path) -> None:
    drawn = everything.plot(tmp_path / "study.svg").read_text(encoding="utf-8")
    assert drawn.count("<circle ") == drawn.count("<title>") == len(everything.ranked)
    assert drawn.count("<polyline ") == 1
    shown = html_of(everything)
    assert shown.count("<circle ") == len(everything.ranked)
    assert str(everything.best.schedule) in unescape(shown)


def test_its_record_is_json(everything: Study) -> None:
    record = json.loads(json.dumps(everything.record()))
    assert record["best"]["schedule"] == str(everything.best.schedule)
    assert record["trials"][0] == record["best"]
    assert (record["operator"], record["ranks"], record["on"]) == ("ag_gemm", RANKS, "model")


# --------------------------------------------------------------------------------------------------------- on other ranks
def test_lists_are_explored_on_simulated_ranks() -> None:
    inputs = [[torch.randn(32, 64).bfloat16() for _ in range(RANKS)] for _ in range(2)]
    inputs[1] = [torch.randn(64, 32).bfloat16() for _ in range(RANKS)]
    space: dict[str, tuple[Placement, ...]] = {
        "matmul": (sms(2, M=16, N=16, K=16, order="ring"), sms(M=16, N=16, K=16, order="ring"))
    }
    study = ops.ag_gemm.explore(*inputs, on="simulated", space=space)
    assert study.on == "simulated"
    assert study.failed == ()
    slow, fast = ([t.us for t in study.trials if t.schedule.get("matmul") == p] for p in space["matmul"])
    assert slow[0] is not None
    assert fast[0] is not None
    assert slow[0] > fast[0]
    assert all(t.estimated is not None and not math.isnan(t.estimated) for t in study.trials[1:])


def test_gpus_are_searched_on_gpus() -> None:
    def body() -> None:
        ops.ag_gemm.explore(torch.zeros(64, 64), torch.zeros(64, 64), on="gpu")

    with pytest.raises(TilelinkError, match="TL469: there is no search on `gpu` here"):
        tilelink.launch(body, RANKS)


def test_the_best_schedule_is_one_to_call_with(everything: Study) -> None:
    tuned = ops.ag_gemm.with_schedule(everything.best.schedule)
    assert tuned.plan(*LARGE).schedule == everything.best.schedule
