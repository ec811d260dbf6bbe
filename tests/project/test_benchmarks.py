"""The benchmark that needs no GPU runs, keeps its limits, and is what the documentation shows; who fails on GPUs says so."""

import importlib
import json
import re
from collections import Counter
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import harness, render
from benchmarks.compiler import compile_time
from tilelink.bench import file_name
from tilelink.ir.topology import Topology
from tilelink.runtime.peer import PeerBackend, reach

PROOF = " ".join((render.ROOT / "docs" / "proof.md").read_text().split())


def result(name: str) -> dict[str, Any]:
    return json.loads((render.RESULTS / name).read_text())


def test_the_page_on_the_proof_has_its_times() -> None:
    slowest: dict[int, float] = {}
    for row in result("verify-time-cpu.json")["rows"]:
        slowest[row["ranks"]] = max(slowest.get(row["ranks"], 0.0), row["ms"])
    shown = re.findall(r"\| (\d+) \| [\d,]+ \| ([\d,]+) \| [\d,]+ \|", PROOF)
    assert [(ranks, ms) for ranks, ms in shown if abs(slowest[int(ranks)] - int(ms.replace(",", ""))) > 0.5] == []
    assert len(shown) == 3


def test_the_page_on_the_proof_counts_what_was_tried() -> None:
    plans, table = result("verify-oracle-cpu.json"), result("mutants-cpu.json")
    rows, missing = table["rows"], table["about"]["missing"]
    by = Counter(row["caught_by"] for row in rows)
    same = sum(row["by"] == "what runs is the same" for row in rows)
    asked = [r["simulation_too"] for r in rows if r["caught_by"] == "refused" and r["simulation_too"] is not None]
    for sentence in (
        f"Of {plans['plans']:,} such plans ({plans['proved']:,} proved, {plans['refused']:,} refused; "
        f"{plans['not_planned']:,} more could not be planned) {len(plans['differ'])} were judged differently",
        f"Of {len(rows):,} such mutants of {len({r['operator'] for r in rows})} operators, chosen by chance among "
        f"{len(rows) + missing:,}, the proof refuses {by['refused']:,} and accepts {by['accepted']:,}: {same} run the same",
        f"Asked about {len(asked)} of those that are refused, the simulated backend with its race detector sees {sum(asked)}",
    ):
        assert sentence in PROOF
    assert not any(": proved; " in found for found in plans["differ"])
    assert set(by) == {"refused", "accepted"}


def test_the_page_on_the_proof_counts_where_two_proofs_agreed() -> None:
    for part in result("agreement-cpu.json").values():
        compared, differ = part.get("asked", part["plans"]), part["differ"]
        assert f"| {compared:,} | {compared - differ:,} | {differ} |" in PROOF
        assert all(row["explained"] for row in part["classes"].values())


def test_the_compiler_keeps_its_limits() -> None:
    """Each part at once, or in one of two more tries, on a machine as fast as the one that the committed times are of: on a
    slower one, by the median of all rows, in as much more."""
    known = {(row["stage"], row["subject"]): row["seconds"] for row in result("compile-time-cpu.json")["rows"]}
    found = [(part, list(part(1))) for part in compile_time.PARTS]
    assert {(row.stage, row.subject) for _, rows in found for row in rows} == set(known)
    slower = max(1.0, median(row.seconds / known[row.stage, row.subject] for _, rows in found for row in rows))
    for _ in range(2):
        late = [part for part, rows in found if any(row.seconds >= row.limit * slower for row in rows)]
        found = [(part, list(part(3))) for part in late]
    assert [row for _, rows in found for row in rows if row.seconds >= row.limit * slower] == []


def test_every_script_can_be_imported() -> None:
    """The scripts of `benchmarks/gpu` run where there are GPUs only; what they take from the package is asked for here."""
    missing = set[str | None]()
    for path in sorted(render.ROOT.glob("benchmarks/**/*.py")):
        try:
            importlib.import_module(".".join(path.relative_to(render.ROOT).with_suffix("").parts))
        except ModuleNotFoundError as error:
            missing.add(error.name)
    assert missing <= {"torchtitan", "torchdata"}  # of the one script that says how to install them


def test_results_name_files_from_the_root_of_the_repository(tmp_path: Path) -> None:
    for path in render.RESULTS.glob("*.json"):
        assert re.findall(r"--> /\S+", path.read_text()) == [], path.name
    harness.write(tmp_path / "rows.json", "rows", [{"said": f"  --> {__file__}:7"}], gpus=1, backend="peer")
    found = json.loads((tmp_path / "rows.json").read_text())
    assert found["rows"] == [{"said": "  --> tests/project/test_benchmarks.py:7"}]
    assert (found["about"]["gpus"], found["about"]["ranks"]) == (1, 1)
    assert render.described(found["about"]).startswith("1×None, backend `peer`")


def test_a_result_is_named_by_what_it_says_of_its_device() -> None:
    for path in harness.RESULTS.glob("*.json"):
        found = json.loads(path.read_text())
        about = found.get("about") or found.get("rows", [{}])[0]  # `tilelink bench` says it in each row
        gpu, ranks = about.get("gpu"), about.get("ranks", about.get("gpus"))
        several = file_name("", gpu, 0).replace("-0.", ".") if gpu else "-cpu.json"
        assert path.name.endswith(file_name("", gpu, ranks) if gpu and ranks else several)


def test_the_folder_says_what_each_file_is_for() -> None:
    """Every script has its line, and every result is one that a line names."""
    page = (harness.RESULTS.parent / "README.md").read_text()
    scripts = {p for p in harness.RESULTS.parent.glob("*/*.py") if p.parent.name != "mutants"}
    assert {p.stem for p in scripts if f"`{p.stem}`" not in page} == set()
    patterns = re.findall(r"`([\w*-]+\.(?:json|toml))`", page)
    assert {p.name for p in harness.RESULTS.iterdir() if not any(p.match(one) for one in patterns)} == set()
    assert [one for one in patterns if not list(harness.RESULTS.glob(one))] == []


def test_a_row_over_its_limit_is_not_ok() -> None:
    assert not compile_time.Row("emit", "x", seconds=0.2, limit=0.1).ok


def test_the_page_is_what_the_results_render_to() -> None:
    assert render.page() == render.PAGE.read_text()


@pytest.mark.parametrize(("good", "status"), [([True, True], 0), ([True, False], 1)])
def test_a_check_on_gpus_fails_with_a_bad_row(
    good: list[bool], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(harness, "Machine", lambda: SimpleNamespace(rank=0, ranks=4))
    backend = object.__new__(PeerBackend)
    backend.topology, backend.places = Topology(4, "peer"), [reach.Place("a", gpu) for gpu in "0101"]
    monkeypatch.setattr(harness, "require", lambda: SimpleNamespace(backend=backend))
    monkeypatch.setattr(harness.tilelink, "launch", lambda body: body())
    monkeypatch.setattr(harness.dist, "destroy_process_group", lambda: ended.append(True))

    def check(sheet: harness.Sheet) -> None:
        for k, ok in enumerate(good):
            sheet.add({"case": k, "ok": ok}, f"case {k}")

    out = tmp_path / "rows.json"
    assert harness.judged("rows", check, out) == status
    assert ended == [True]
    written = json.loads(out.read_text())
    assert [row["ok"] for row in written["rows"]] == good
    about = written["about"]
    assert (about["backend"], about["ranks"], about["gpus"]) == ("peer", 4, 2)
    assert render.described(about | {"gpu": "H200"}).startswith("4 ranks on 2×H200, backend `peer`")
    bad = [f"BAD {{'case': {k}, 'ok': False}}" for k, ok in enumerate(good) if not ok]
    assert capsys.readouterr().out.splitlines() == ["case 0", "case 1", f"2 rows, {len(bad)} bad", *bad]
