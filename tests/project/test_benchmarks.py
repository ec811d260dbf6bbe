"""The benchmark that needs no GPU runs, keeps its limits, and is what the documentation shows; who fails on GPUs says so."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import compile_time, judging, render


def test_the_compiler_keeps_its_limits() -> None:
    rows = compile_time.measured(rounds=2)
    assert [row for row in rows if not row.ok] == []
    simulated = {"simulate", "simulate, first call", "simulate and look for races"}
    assert {row.stage for row in rows} == {"plan and verify", "emit", *simulated}


def test_a_row_over_its_limit_is_not_ok() -> None:
    assert not compile_time.Row("emit", "x", seconds=0.2, limit=0.1).ok


def test_the_page_is_what_the_results_render_to() -> None:
    assert render.page() == render.PAGE.read_text()


@pytest.mark.parametrize(("good", "status"), [([True, True], 0), ([True, False], 1)])
def test_a_check_on_gpus_fails_with_a_bad_row(
    good: list[bool], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(judging, "Machine", lambda: SimpleNamespace(rank=0, ranks=2))
    world = SimpleNamespace(topology=SimpleNamespace(world="peer"))
    monkeypatch.setattr(judging, "require", lambda: SimpleNamespace(world=world))
    monkeypatch.setattr(judging.tilelink, "launch", lambda body: body())
    monkeypatch.setattr(judging.dist, "destroy_process_group", lambda: ended.append(True))

    def check(sheet: judging.Sheet) -> None:
        for k, ok in enumerate(good):
            sheet.add({"case": k, "ok": ok}, f"case {k}")

    out = tmp_path / "rows.json"
    assert judging.judged(check, out) == status
    assert ended == [True]
    assert [row["ok"] for row in json.loads(out.read_text())["rows"]] == good
    bad = [f"BAD {{'case': {k}, 'ok': False}}" for k, ok in enumerate(good) if not ok]
    assert capsys.readouterr().out.splitlines() == ["case 0", "case 1", f"2 rows, {len(bad)} bad", *bad]
