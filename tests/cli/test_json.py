"""Commands with `--json`: one object on stdout, with these keys, and nothing else there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import CIRCLE, alone, command
from tilelink.explore.documents import finite

__all__ = ["alone"]  # in force here, too
SMALL = ("ag_gemm", "--shape", "64x32x32", "--ranks", "2")
ASKED = {"command", "operator", "signature", "sizes", "dtype", "ranks", "axes", "schedule", "ok"}
STUDY = {
    "operator", "sizes", "dtypes", "ranks", "gpu", "on", "method", "won", "best", "ties", "sequential_us", "pareto",
    "trials", "estimated_away", "left",
}  # fmt: skip
TRIAL = {"schedule", "placements", "us", "why", "estimated", "sms", "nbytes"}


def found(*arguments: str, code: int = 0) -> dict[str, Any]:
    return json.loads(command(*arguments, "--json", code=code).stdout)


def test_plan() -> None:
    document = found("plan", *SMALL)
    assert set(document) == ASKED | {"steps", "buffers", "channels", "kernels", "notes"}
    assert (document["command"], document["sizes"], document["ranks"]) == ("plan", {"M": 64, "N": 32, "K": 32}, 2)
    steps = {step["step"]: step for step in document["steps"]}
    assert set(steps) == {"gather", "matmul"}
    assert set(steps["matmul"]) == {"step", "does", "engine", "into", "workers", "tile", "tiles", "order"}
    assert steps["matmul"]["does"] == "compute"
    assert steps["matmul"]["tiles"] == [1, 1]
    assert {b["tensor"] for b in document["buffers"]} >= {"rows"}


def test_verify() -> None:
    document = found("verify", *SMALL, "--emitted")
    assert set(document) == ASKED | {"verdict", "proofs", "assumed", "emitted", "error", "counterexample"}
    assert (document["ok"], document["verdict"], document["emitted"], document["error"]) == (True, "proved", True, None)
    assert {"rule", "text", "ms"} == set(document["proofs"][0])


def test_what_is_refused_has_its_diagnostic_and_its_counterexample() -> None:
    document = found("verify", "gemm_rs", "--shape", "64x64x64", *CIRCLE, code=1)
    assert (document["ok"], document["verdict"]) == (False, "refused")
    assert document["error"]["code"] == "TL605"
    assert document["error"]["line"] is not None
    assert set(document["error"]) == {"code", "message", "file", "line", "why", "hint", "text"}
    assert set(document["counterexample"]) == {"kind", "example", "steps"}
    assert set(document["counterexample"]["steps"][0]) == {"rank", "call", "step", "tile", "does", "line"}


def test_run() -> None:
    document = found("run", *SMALL)
    assert set(document) == ASKED | {"against", "errors", "tolerance", "seconds", "again"}
    assert len(document["errors"]) == 2
    assert max(document["errors"]) < document["tolerance"]


def test_a_wrong_run_is_not_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilelink.explore.cases.TOLERANCE", {"bf16": -1.0})
    assert found("run", *SMALL, code=1)["ok"] is False


def test_trace() -> None:
    document = found("trace", *SMALL)
    assert set(document) == ASKED | {"backend", "ms", "ms_untraced", "span_us", "totals", "picture", "perfetto"}
    assert document["ms"] > 0
    assert document["ms_untraced"] is None
    assert {"rank", "stream", "worker", "sm", "label", "us", "idle_us"} == set(document["totals"][0])
    assert Path(document["picture"]).is_file()


def test_tune_and_what_it_knows() -> None:
    small = ("tune", "gemm_rs_ring", "--shape", "8x16x16", "--ranks", "1", "--budget", "0")
    (case,) = found(*small)["cases"]
    assert set(case) >= {"case", "known", "won", "ms", "ms_unfused", "schedule", "placements", "measured", "study"}
    assert (case["known"], case["won"], case["case"]) == (False, "Triton", "8x16x16")
    assert set(case["study"]) == STUDY
    assert set(case["study"]["best"]) == TRIAL
    (again,) = found(*small)["cases"]
    assert (again["known"], again["study"], again["ms"]) == (True, None, case["ms"])


def test_tune_on_the_model_goes_on_from_a_file() -> None:
    asked = ("tune", "ag_gemm", "--shape", "1024x1024x512", "--on", "model", "--method", "random", "--study", "s.jsonl")
    (first,) = found(*asked, "--trials", "3")["cases"]
    (further,) = found(*asked, "--trials", "5")["cases"]
    assert len(further["study"]["trials"]) == 5
    said = {t["schedule"]: t for t in further["study"]["trials"]}
    assert all(said[t["schedule"]] == t for t in first["study"]["trials"])
    assert found("tune", "ag_gemm", "--shape", "8x8x8", "--method", "random", code=1)["error"]["code"] == "TL708"
    assert found("tune", "ag_gemm", "--shape", "8x8x8", "--on", "paper", code=1)["error"]["code"] == "TL468"


def test_bench() -> None:
    document = found("bench", "all_gather", "--shape", "M=32,N=32", "--ranks", "2")
    assert set(document) == {"command", "ok", "rows"}
    assert document["rows"][0]["operator"] == "all_gather"
    assert "all_gather" in found("bench", "--list")["subjects"]


def test_anomalies() -> None:
    ranges = ("--shape", "M=512:1024,N=1024,K=1024", "--ranks", "2", "--shapes", "6", "--far", "0")
    document = found("anomalies", "ag_gemm", *ranges)
    assert set(document) == {"command", "operator", "machine", "ok", "anomalies", "looked", "refused", "median_gap"}
    assert document["looked"] == 6
    worst = document["anomalies"][0]
    assert set(worst) == {"sizes", "us", "bound_us", "gap", "binds", "better"}
    assert worst["gap"] == pytest.approx(worst["us"] / worst["bound_us"] - 1)


def test_a_machine_that_is_none_is_refused() -> None:
    asked = ("anomalies", "ag_gemm", "--shape", "M=64,N=64,K=64", "--machine")
    assert found(*asked, "8xABACUS", code=1)["error"]["code"] == "TL731"
    Path("mine.toml").write_text("sms = ")
    assert found(*asked, "mine.toml", code=1)["error"]["code"] == "TL732"


def test_a_diagnostic_is_an_object_too() -> None:
    done = command("plan", "ag_gemm", "--shape", "M=5,N=6", "--json", code=1)
    document = json.loads(done.stdout)
    assert (document["command"], document["ok"], document["error"]["code"]) == ("plan", False, "TL704")
    assert "TL704" in done.stderr


def test_what_others_print_goes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilelink.explore import documents

    real = documents.plan_document

    def chatty(plan: Any) -> Any:
        print("hello")
        return real(plan)

    monkeypatch.setattr(documents, "plan_document", chatty)
    done = command("plan", *SMALL, "--json")
    assert json.loads(done.stdout)["ok"]
    assert "hello" in done.stderr


def test_numbers_that_json_does_not_have_are_null() -> None:
    assert finite({"a": [float("nan"), 1.5], "b": (float("inf"),)}) == {"a": [None, 1.5], "b": [None]}
