"""`tilelink bench` without a GPU, and what the page makes of its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from benchmarks import render
from tilelink.bench import SUBJECTS, sweep
from tilelink.cli import app


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILELINK_WORLD", "simulated")


def command(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


SMALL = {"ag_gemm": "70x64x64", "gemm_rs": "70x64x64", "gemm_rs_ring": "3x64x64", "mlp": "M=70,H=64,I=64"}


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_runs_simulated(name: str) -> None:
    out = Path("rows.json")
    printed = command(name, "--shape", SMALL[name], "--world", "2", "--out", str(out)).output
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["operator"], row["world"], row["gpu"], row["backend"]) == (name, 2, "simulated", "simulated")
    assert all(row[f] > 0 for f in ("ms_ours", "ms_gemm", "ms_comm", "ms_sequential"))
    assert row["error"] < 1e-2
    assert set(row["missing"]) == {"cublas gemm", "nccl", "async-tp"}
    assert "matmul: " in row["schedule"]
    assert "simulated ms" in printed


def test_further_schedules_are_compared_and_refused_ones_named() -> None:
    good = "fused: scatter=fused('matmul')"
    bad = "nonsense: scatter=fused('nothing')"
    command("gemm_rs", "--shape", SMALL["gemm_rs"], "--world", "2", "--also", good, "--also", bad, "--out", "rows.json")
    (row,) = json.loads(Path("rows.json").read_text())["rows"]
    assert list(row["others"]) == ["fused"]
    assert "fused into matmul" in row["others"]["fused"]["schedule"]
    assert row["missing"]["nonsense"].startswith("rank 0: TL3")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "`nothing` has no benchmark"),
        (("ag_gemm", "--shape", "M=8,N=8"), "`ag_gemm` is benchmarked at K, M, N, and M, N are given"),
        (("mlp", "--schedule", "gather=sms(2)"), "a schedule for what is made of several operators"),
    ],
)
def test_refusals(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = command(*arguments, code=1)
    assert said in printed.output + printed.stderr + capsys.readouterr().err


def test_the_sizes_of_the_evaluation() -> None:
    first = SUBJECTS["ag_gemm"].cases(4)[0]
    assert (first.name, first.sizes) == ("MLP-1", {"M": 8192, "N": 5504, "K": 4096})
    assert SUBJECTS["gemm_rs"].cases(4)[0].sizes == {"M": 8192, "N": 4096, "K": 11008}
    assert [c.name for c in SUBJECTS["mlp"].cases(4, (1, 64))][:3] == ["MLP-1 M=1", "MLP-1 M=64", "MLP-2 M=1"]
    assert sweep(4)[0] == 1
    assert sweep(4)[-1] == 16384
    assert 3988 in sweep(4)


def test_the_page_shows_a_file_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command("ag_gemm", "--shape", SMALL["ag_gemm"], "--world", "2", "--out", "bench-ag_gemm-2.json")
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    monkeypatch.setattr(render, "PAGE", tmp_path / "performance.md")
    text = render.page()
    pictures = [(tmp_path / "bench-ag_gemm-2.svg").read_bytes()]
    assert "## ag_gemm on 2×simulated" in text
    assert "| M=70 N=64 K=64 |" in text
    assert render.page() == text
    pictures.append((tmp_path / "bench-ag_gemm-2.svg").read_bytes())
    assert pictures[0] == pictures[1]
    assert pictures[0].startswith(b"<?xml")
