"""`tilelink bench` without a GPU, and what the page makes of its rows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from benchmarks import render
from tests.cli import commands
from tests.cli.commands import alone
from tests.selection import table
from tilelink.bench import SUBJECTS, sweep

__all__ = ["alone"]  # in force here, too
command = partial(commands.command, "bench")

SMALL = {"ag_gemm": "70x64x64", "gemm_rs": "70x64x64", "gemm_rs_ring": "3x64x64", "mlp": "M=70,H=64,I=64"}
"""Where our own halves stand in for cuBLAS and NCCL."""
LIBRARIES = {
    "ag_moe": {"unfused", "unfused with routing"},
    "moe_rs": {"unfused", "unfused, sum in one kernel"},
    "ag_attention": {"unfused", "sdpa after nccl"},
    "flash_decode": {"one rank", "sdpa on one rank"},
    "ep": {"nccl all-to-all, splits by the host"},
    "gemm_ar": {"unfused", "ours, one_shot", "ours, two_shot"},
    "all_reduce": {"nccl", "ours, one_shot", "ours, two_shot", "ours, ring"},
    "all_gather": {"nccl"},
    "reduce_scatter": {"nccl"},
    "all_to_all": {"nccl"},
}
"""Contenders whose results are compared with ours, of the others."""


def test_every_subject_has_a_test() -> None:
    assert {*SMALL, *LIBRARIES} == set(SUBJECTS)
    assert all(subject.name == name for name, subject in SUBJECTS.items())


@pytest.mark.parametrize("name", SMALL)
def test_matmuls_run_simulated(name: str) -> None:
    out = Path("rows.json")
    printed = command(name, "--shape", SMALL[name], "--ranks", "2", "--out", str(out)).output
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["operator"], row["ranks"], row["gpu"], row["backend"]) == (name, 2, "simulated", "simulated")
    assert all(row[f] > 0 for f in ("ms_ours", "ms_gemm", "ms_comm", "ms_unfused"))
    assert (row["baseline"], row["ms_baseline"]) == ("unfused", row["ms_unfused"])
    assert row["error"] < 1e-2
    assert set(row["missing"]) == {"cublas gemm", "nccl", "async-tp"}
    assert "matmul: " in row["schedule"]
    assert "simulated ms" in printed


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_libraries_compute_is_compared_without_a_gpu_too(name: str) -> None:
    """Rivals have the results of ours, by another way; times they have none where ranks are simulated."""
    command(name, "--ranks", "2", "--out", "rows.json")
    (row,) = json.loads(Path("rows.json").read_text())["rows"]
    compared = {n: c["error"] for n, c in row["contenders"].items() if c["error"] is not None}
    assert set(compared) == {"ours", *LIBRARIES[name]}
    assert all(error < 1e-2 for error in compared.values())
    assert row["error"] == max(compared.values())
    assert row["ms_ours"] > 0
    assert row["schedule"]
    untimed = {n for n, c in row["contenders"].items() if c["ms"] is None}
    assert untimed <= set(row["missing"])
    assert row["ms_graph"] is None
    assert row["missing"].get("graphs", "simulated: there is no GPU") == "simulated: there is no GPU"


def test_several_operators_have_a_file_each_and_one_table() -> None:
    printed = command("all_gather", "all_to_all", "--ranks", "2", "--out", "rows").output
    assert sorted(p.name for p in Path("rows").iterdir()) == [
        "bench-all_gather-simulated-2.json",
        "bench-all_to_all-simulated-2.json",
    ]
    summary = printed[printed.index("Summary") :].splitlines()[3:]
    assert [line.split()[0] for line in summary if line.strip()] == ["all_gather", "all_to_all"]


def test_the_list_names_every_subject_and_its_cases() -> None:
    lines = command("--list", "--ranks", "2").output.splitlines()
    assert [line.split()[0] for line in lines[3:] if line.strip() and not line.startswith(" ")] == list(SUBJECTS)
    assert "64 MiB" in lines[-2]
    command(code=2)


def test_further_schedules_are_compared_and_refused_ones_named() -> None:
    good = "fused: scatter=fused('matmul')"
    bad = "nonsense: scatter=fused('nothing')"
    command("gemm_rs", "--shape", SMALL["gemm_rs"], "--ranks", "2", "--also", good, "--also", bad, "--out", "rows.json")
    (row,) = json.loads(Path("rows.json").read_text())["rows"]
    assert list(row["others"]) == ["fused"]
    assert "fused into matmul" in row["others"]["fused"]["schedule"]
    assert row["missing"]["nonsense"].startswith("rank 0: TL3")


REFUSED = {
    ("bench", "nothing"): f"""
        TL708: `nothing` has no benchmark
          why: those that have: {", ".join(SUBJECTS)}
          do:  name some of them, or all
        """,
    ("bench", "ag_gemm", "--shape", "M=8,N=8"): """
        TL704: `ag_gemm` is benchmarked at K, M, N, and M, N are given
          do:  give sizes by name: --shape M=…,N=…,K=…
        """,
    ("bench", "mlp", "--schedule", "gather=sms(2)"): """
        TL708: a schedule for what is made of several operators
          do:  leave --schedule and --also out
        """,
    ("bench", "mlp", "ag_gemm", "--shape", "M=8"): """
        TL708: a shape or a schedule for several operators
          do:  measure one operator
        """,
    ("bench", "mlp", "ag_gemm", "--out", "rows.json"): """
        TL708: rows of several operators for the one file `rows.json`
          do:  name a folder
        """,
    ("tune", "ulysses"): """
        TL708: `ulysses` has no cases of its own
          do:  give --shape
        """,
    ("tune", "all_to_all", "--tokens", "64"): """
        TL708: the cases of `all_to_all` have no number of tokens
          do:  leave --tokens out
        """,
    ("tune", "flash_decode", "--case", "nope"): f"""
        TL708: `flash_decode` has no case `nope`
          why: it has {", ".join(c.name for c in SUBJECTS["flash_decode"].cases(4))}
          do:  give the beginning of a name
        """,
}


@table("arguments", REFUSED, ids=" ".join)
def test_refusals(arguments: tuple[str, ...]) -> None:
    assert commands.command(*arguments, code=1).output == dedent(REFUSED[arguments]).lstrip("\n")


def test_the_sizes_of_the_evaluation() -> None:
    first = SUBJECTS["ag_gemm"].cases(4)[0]
    assert (first.name, first.sizes) == ("MLP-1", {"M": 8192, "N": 5504, "K": 4096})
    assert SUBJECTS["gemm_rs"].cases(4)[0].sizes == {"M": 8192, "N": 4096, "K": 11008}
    assert [c.name for c in SUBJECTS["mlp"].cases(4, (1, 64))][:3] == ["MLP-1 M=1", "MLP-1 M=64", "MLP-2 M=1"]
    assert SUBJECTS["ag_moe"].cases(2)[1].sizes == {"T": 8192, "H": 2048, "I": 3072, "k": 2, "e": 32}
    assert SUBJECTS["moe_rs"].cases(2)[5].sizes == {"T": 8192, "H": 4096, "I": 2048, "k": 5, "e": 32}
    assert SUBJECTS["ep"].cases(2)[0].sizes == {"T": 256, "H": 7168, "k": 8, "experts": 256, "capacity": 128}
    assert sweep(4)[0] == 1
    assert sweep(4)[-1] == 16384
    assert 3988 in sweep(4)


@pytest.mark.parametrize(("name", "bytes_of"), [("all_reduce", {"8 KiB": 8 << 10, "64 MiB": 64 << 20})])
def test_the_sizes_of_collectives_are_what_their_names_say(name: str, bytes_of: dict[str, int]) -> None:
    found = {c.name: 2 * c.sizes["M"] * c.sizes["N"] for c in SUBJECTS[name].cases(4)}
    assert bytes_of.items() <= found.items()


def shown(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The page with one file of rows; made twice, and the same."""
    command(name, *arguments, "--ranks", "2", "--out", f"bench-{name}-simulated-2.json")
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    monkeypatch.setattr(render, "PAGE", tmp_path / "performance.md")
    text = render.page()
    picture = (tmp_path / f"bench-{name}-simulated-2.svg").read_bytes()
    assert picture.startswith(b"<?xml")
    assert render.page() == text
    assert (tmp_path / f"bench-{name}-simulated-2.svg").read_bytes() == picture
    return text


def test_the_page_shows_a_file_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown("ag_gemm", tmp_path, monkeypatch, "--shape", SMALL["ag_gemm"])
    assert "## ag_gemm on 2×simulated" in text
    assert "| M=70 N=64 K=64 |" in text


def test_the_page_shows_contenders_where_no_matmul_hides_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown("all_reduce", tmp_path, monkeypatch).splitlines()
    head = next(line for line in lines if line.startswith("| case | ours | baseline |"))
    row: Any = dict(zip(cells(head), cells(lines[lines.index(head) + 2]), strict=True))
    assert (row["case"], row["baseline"]) == ("M=4 N=64", "–")
    assert float(row["ours"].split()[0]) > 0
    assert float(row["ours, two_shot"]) > float(row["ours"].split()[0])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
