"""The benchmark that needs no GPU runs, keeps its limits, and is what the documentation shows."""

from benchmarks import compile_time, render


def test_the_compiler_keeps_its_limits() -> None:
    rows = compile_time.measured(rounds=2)
    assert [row for row in rows if not row.ok] == []
    simulated = {"simulate", "simulate, first call", "simulate and look for races"}
    assert {row.stage for row in rows} == {"plan and verify", "emit", *simulated}


def test_a_row_over_its_limit_is_not_ok() -> None:
    assert not compile_time.Row("emit", "x", seconds=0.2, limit=0.1).ok


def test_the_page_is_what_the_results_render_to() -> None:
    assert render.page() == render.PAGE.read_text()
