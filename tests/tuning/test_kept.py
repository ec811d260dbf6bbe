"""Schedules that `tune` has kept on disk: who may have written them, what they may say, and that they are compared first."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tilelink
from tests.operators.test_written_arguments import written_first
from tilelink import Operator, TilelinkError, library, ops, sms
from tilelink.ir.schedule import Library, Placement, Schedule
from tilelink.pipeline.prepared import Prepared
from tilelink.pipeline.tuning import Tuning
from tilelink.runtime import cache
from tilelink.runtime.session import require
from tilelink.tuning import tables
from tilelink.tuning.comparison import apart, tolerance
from tilelink.tuning.records import record_of, schedule_of
from tilelink.tuning.tables import DiskCache, Entry, Problem

RANKS = 2
OWN = sms(M=16, N=16, K=16)
OTHER = sms(M=16, N=16, K=16, num_warps=2)
OP = ops.ag_gemm.schedule(gather=sms(2, M=16), matmul=OWN)
HERE = __name__


def product(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
    torch.mm(x, weight, out=out)


def poison(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
    out.fill_(float("nan"))


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(tilelink.rank())
    return [torch.randn(16, 16).to(torch.bfloat16), torch.randn(16, 16).to(torch.bfloat16)]


def keep(matmul: Placement, operator: Operator = OP, **more: Any) -> Path:
    """As an earlier `tune` would have."""

    def body() -> Path | None:
        tuning = operator.tuning(*inputs())
        schedule = replace(operator.schedules.merged({"matmul": matmul}), **more)
        entry = Entry(tuning.problem, schedule, 1.0, None, "on a day")
        return tuning.cache.save(entry) if tilelink.rank() == 0 else None

    path = tilelink.launch(body, RANKS)[0]
    assert path is not None
    return path


def tuned(operator: Operator = OP, **more: Any) -> Placement | None:
    """How the product is computed behind `tune`, which measures nothing here but the operator by default; it is right."""

    def body() -> Placement | None:
        found = operator.tune(*inputs(), budget=0, **more)
        x, weight = inputs()
        rows = torch.cat(require().backend.agree(x))
        assert apart([found(x, weight)], [(rows.float() @ weight.float()).to(x.dtype)]) < 2e-2
        return found.schedules.get("matmul")

    first, second = tilelink.launch(body, RANKS)
    assert first == second
    return first


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "TL" in r.getMessage()]


def test_what_was_kept_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    keep(OTHER)
    assert tuned() == OTHER
    assert said(caplog) == []


def test_a_function_that_nobody_has_named_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "foreign_module.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\ndef f(*_, **__): 0 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = keep(Library("foreign_module.f"))
    assert tuned() == OWN
    assert not (tmp_path / "imported").exists()
    assert said(caplog) == [
        f"TL509: the tuned schedule of `ag_gemm` in {path} is not taken\n"
        "  why: it names the function `foreign_module.f`, which neither the library nor the operator's author names\n"
        "  do:  nothing has to be done: it is measured again, and then replaced"
    ]
    assert tuned() == OWN
    assert len(said(caplog)) == 1


def test_what_stands_for_a_function_is_looked_at_too(caplog: pytest.LogCaptureFixture) -> None:
    keep(Library("torch.mm", fallback=Library("os.system")))
    assert tuned() == OWN
    assert "names the function `os.system`" in said(caplog)[0]


def test_functions_that_people_have_named_may_be_kept(caplog: pytest.LogCaptureFixture) -> None:
    """By the search itself, by who has written the schedule, or by who calls `tune`."""
    named = library(f"{HERE}.product", M="M/R")
    space: dict[str, tuple[Placement, ...]] = {"matmul": (named,)}
    for kept, operator, more in (
        (library("torch.mm", M="M/R"), OP, {}),
        (replace(named, streams=2), OP.schedule(matmul=named), {}),
        (named, OP, {"space": space}),
    ):
        keep(kept, operator)
        assert tuned(operator, **more) == kept
    assert said(caplog) == []


def test_a_schedule_with_another_result_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    wrong = library(f"{HERE}.poison")
    path = keep(wrong)
    assert tuned(space={"matmul": (wrong,)}) == OWN
    assert said(caplog) == [
        f"TL509: the tuned schedule of `ag_gemm` in {path} is not taken\n"
        "  why: it does not run here, or not right: rank 0: TL463: a wrong result\n"
        "  do:  nothing has to be done: it is measured again, and then replaced"
    ]


@pytest.mark.parametrize(
    ("placement", "more", "why"),
    [
        (sms(M=16, N=16, K=24), {}, "rank 0: TL314"),
        (Library("torch.mm", runs=True), {}, "it takes `torch.mm` for a function by panels"),
        (OWN, {"unfused": True}, "it is the unfused form, which such calls do not have"),
    ],
)
def test_a_schedule_that_does_not_run_is_not_taken(
    placement: Placement, more: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    keep(placement, **more)
    assert tuned() == OWN
    assert len(said(caplog)) == 1
    assert said(caplog)[0].startswith("TL509")
    assert why in said(caplog)[0]


@pytest.mark.parametrize(("factor", "unfused", "right"), [(1, False, True), (2, False, False), (2, True, True)])
def test_where_there_is_a_plain_form_it_says_what_is_right(
    factor: int, unfused: bool, right: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And may be what was kept. A unfused form that gives something else than a schedule makes the schedule wrong."""

    def plain(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None) -> torch.Tensor:
        return factor * (torch.cat(group.agree(x)).float() @ weight.float()).to(x.dtype)

    def body() -> bool:
        session = require()
        session.backend.group = session.backend
        tuning = operator.tuning(*inputs())
        schedule = replace(operator.schedules.merged({"matmul": OTHER}), unfused=unfused)
        kept = Entry(tuning.problem, schedule, 1.0, None, "on a day")
        if tilelink.rank() == 0:
            tuning.cache.save(kept)
        session.backend.barrier()
        return tuning.known() == kept

    operator = replace(OP, reference_fn=plain)
    assert tilelink.launch(body, RANKS) == [right] * RANKS
    assert [text[:5] for text in said(caplog)] == ["TL509"] * (not right)


def test_it_is_compared_once_and_only_rank_0_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(OTHER)
    compared: list[Schedule] = []
    read: list[int] = []
    wrong, load = Tuning.wrong, DiskCache.load

    def noted(self: Tuning, schedule: Schedule) -> str:
        compared.append(schedule)
        return wrong(self, schedule)

    def loaded(self: DiskCache, problem: Problem) -> Entry | None:
        read.append(tilelink.rank())
        return load(self, problem)

    monkeypatch.setattr(Tuning, "wrong", noted)
    monkeypatch.setattr(DiskCache, "load", loaded)

    def body() -> list[Placement | None]:
        return [OP.tune(*inputs(), budget=0).schedules.get("matmul") for _ in range(3)]

    assert tilelink.launch(body, RANKS) == [[OTHER] * 3] * RANKS
    assert [s.get("matmul") for s in compared if s.get("matmul") == OTHER] == [OTHER] * RANKS
    assert len(compared) == 2 * RANKS  # and the operator by default
    assert read == [0, 0, 0]


def test_arguments_that_programs_write_to_are_compared_and_stay_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    placed = sms(M=4, N=4)
    operator = written_first.schedule(add_one=placed, double=placed)
    start = torch.arange(32.0).view(8, 4)

    def body() -> tuple[torch.Tensor, list[Placement | None]]:
        x = start.clone()
        found: list[Placement | None] = []
        for number in (4, 2):
            tuning = operator.tuning(x)
            other = replace(placed, warps=number)
            schedule = operator.schedules.merged({"double": other, "add_one": other})
            if tilelink.rank() == 0:
                tuning.cache.save(Entry(tuning.problem, schedule, 1.0, None, "on a day"))
            tuning.session.backend.barrier()
            found.append(operator.tune(x, budget=0).schedules.get("double"))
        operator.tune(x, budget=0, fresh=True)
        return x, found

    for x, found in tilelink.launch(body, RANKS):
        assert torch.equal(x, start)
        assert found == [placed, replace(placed, warps=2)]
    assert said(caplog) == []


def test_an_argument_that_a_schedule_leaves_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only what a call gives counts."""
    placed = sms(M=4, N=4)
    operator = written_first.schedule(add_one=placed, double=placed)
    other = operator.schedules.merged({"double": replace(placed, warps=2)})

    def body() -> list[str]:
        x = torch.arange(32.0).view(8, 4)
        tuning = operator.tuning(x)
        tuning.expect()
        right = tuning.wrong(operator.schedules)
        run = Prepared.run

        def spoilt(*call: Any) -> Any:
            values = run(*call)
            x[0, 0] += 100
            return values

        monkeypatch.setattr(Prepared, "run", spoilt)
        return [right, tuning.wrong(other)]

    assert tilelink.launch(body, 1) == [["", "rank 0: TL463: a wrong result"]]


# ------------------------------------------------------------------------------------------------------------- the file
def spoilt_text(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoil(path: Path) -> None:
        kept = json.loads(path.read_text())
        change(kept["entry"])
        kept["digest"] = tables._digest(kept["entry"])  # by somebody who knows how
        path.write_text(json.dumps(kept))

    return spoil


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def placed(**values: Any) -> Callable[[Path], object]:
    return spoilt_text(lambda e: e["schedule"]["placements"]["matmul"].update(values))


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "a directory that others can write": (lambda p: p.parent.chmod(0o777), "TL402.* can be written by other users"),
    "a file that others can write": (lambda p: p.chmod(0o666), "TL407.* can be written by other users"),
    "a link": (linked, "TL407.* is a link"),
    "a pipe": (lambda p: (p.unlink(), os.mkfifo(p)), "TL407.* is not a file of this user"),
    "too long": (lambda p: p.write_text(" " * (tables.MOST + 1)), "TL407.* has 65537 bytes"),
    "cut short": (lambda p: p.write_text(p.read_text()[:-9]), "TL509.*not taken"),
    "no text": (lambda p: p.write_bytes(b"\xff\xfe\x00"), "TL509.*not taken"),
    "nested": (lambda p: p.write_text("[" * 60_000), "TL509"),
    "changed by hand": (lambda p: p.write_text(p.read_text().replace('"ms": 1.0', '"ms": 2.0')), "TL509.*\n.*digest"),
    "another field": (placed(function="os.system"), "TL509.*\n.*Sms has no field 'function'"),
    "another type": (placed(warps="8"), "TL509.*\n.*`Sms.warps` is '8'"),
    "a tile of nothing": (placed(tile={"M": 0}), "TL509.*\n.*`Sms.tile` is 0"),
    "many slots": (spoilt_text(lambda e: e["schedule"].update(slots=10**9)), "TL509.*\n.*`Schedule.slots` is 1000000000"),
    "no placement": (spoilt_text(lambda e: e["schedule"].pop("placements")), "TL509.*\n.*Schedule has no field"),
    "something else": (spoilt_text(lambda e: e["problem"].update(ranks=3)), "TL509.*\n.*measured for something else"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_file_is_refused(how: str) -> None:
    disk = DiskCache("1")
    kept = Entry(Problem("op", "M -> M", "GPU", "peer", 2, ("bf16",), (("M", 64),)), Schedule().merged({"matmul": OTHER}),
                 1.0, None, "on a day")  # fmt: skip
    path = disk.save(kept)
    assert path is not None
    assert disk.load(kept.problem) == kept
    spoil, message = SPOILT[how]
    spoil(path)
    with pytest.raises(TilelinkError, match=message):
        disk.load(kept.problem)


@pytest.mark.parametrize("how", ["a directory that others can write", "a link", "cut short"])
def test_a_spoilt_file_is_told_and_stops_nobody(how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = keep(OTHER)
    spoil, message = SPOILT[how]
    spoil(path)
    assert tuned() == OWN
    assert said(caplog)[0][:5] == message[:5]
    assert how.startswith("a directory") or cache.read(path)  # written anew


def test_a_cache_in_somebody_elses_directory_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    if (user := os.getuid()) == 0:
        os.chown(root, 4711, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(TilelinkError, match=r"TL402.* is another user's"):
        cache.directory("tuned")


numbers = st.integers(-3, 3) | st.sampled_from([64, 2**31, 10**30]) | st.floats()
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=8), of, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["on", "sms", "tile", "order", "push", "count", "part", "joins", "function", "fallback", "x"])
records = st.dictionaries(names, anything | st.sampled_from(["sms", "library", "fused", "copy_engine"]), max_size=5)
FIELDS = st.sampled_from(["placements", "entries", "slots", "channels", "unfused", "ll"])


@given(anything | st.dictionaries(FIELDS, anything | st.dictionaries(st.text("ab", max_size=2), records | anything)))
def test_any_record_is_a_schedule_or_a_value_error(record: Any) -> None:
    try:
        made = schedule_of(record)
    except ValueError:
        return
    assert schedule_of(record_of(made)) == made


# ----------------------------------------------------------------------------------------------------------- comparing
def test_results_are_compared_by_their_dtype() -> None:
    one = torch.ones(8)
    assert apart([one * 1.01], [one]) == pytest.approx(0.01)
    assert tolerance([torch.float32]) < 0.01 < tolerance([torch.float32, torch.bfloat16]) == tolerance([torch.bfloat16])
    assert tolerance([torch.float8_e4m3fn]) > tolerance([torch.bfloat16, torch.int32])
    assert tolerance([torch.int64]) == 0
    assert apart([torch.tensor([1, 2])], [torch.tensor([1, 3])]) == float("inf")
    assert apart([one], [one, one]) == apart([one[:4]], [one]) == float("inf")


def test_what_is_not_finite_is_so_in_both() -> None:
    nan, one = torch.tensor([1.0, float("nan")]), torch.ones(2)
    assert apart([nan], [nan]) == 0
    assert apart([nan], [one]) == apart([one], [nan]) == apart([nan / 0], [nan / 0]) == float("inf")
    assert apart([one[:0]], [one[:0]]) == 0
