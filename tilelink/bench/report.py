"""Rows as a table of a terminal, and as a file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from tilelink.bench.contest import OURS
from tilelink.bench.rows import Row, geometric
from tilelink.bench.subjects import SUBJECTS
from tilelink.explore.report_tables import Sheet
from tilelink.explore.tables import tables

MATMUL = (
    "case", "T_ours", "quartiles", "T_gemm", "triton", "T_comm", "T_unfused", "async-tp", "E", "quartiles", "ratio",
    "host µs",
)  # fmt: skip
CONTENDERS = ("case", "contender", "ms", "quartiles", "in a graph", "ours is … times as fast", "host µs", "error")
SUMMARY = ("operator", "case", "ours", "baseline", "times", "graph: ours", "baseline", "times", "error", "against")


def report(operator: str, rows: Sequence[Row]) -> Group:
    """Milliseconds of all cases, what is missing and what ran below; E where a matmul hides communication."""
    where = rows[0]
    title = f"{operator} on {where.ranks}×{where.gpu}, torch {where.torch}, Triton {where.triton}, {where.commit}"
    if where.ms_gemm_triton is not None:
        sheets = [Sheet(title, MATMUL, tuple(_matmul(r) for r in rows))]
        lines = tuple(_contender(r, name, o) for r in rows for name, o in r.others.items())
        sheets += [Sheet("Further contenders", CONTENDERS, lines)] if lines else []
    else:
        lines = tuple(_contender(r, name, o) for r in rows for name, o in r.contenders.items())
        sheets = [Sheet(title, CONTENDERS, lines)]
    missing: dict[tuple[str, str], list[str]] = {}
    for r in rows:
        for found in r.missing.items():
            missing.setdefault(found, []).append(r.case)
    if missing:
        lines = tuple((name, why, ", ".join(cases)) for (name, why), cases in missing.items())
        sheets.append(Sheet("Missing", ("contender", "why", "cases"), lines))
    late = tuple((r.case, n, f"{c['late']} of {r.rounds}") for r in rows for n, c in r.contenders.items() if c["late"])
    if late:
        sheets.append(Sheet("The device waited for the host", ("case", "contender", "rounds"), late))
    sheets.append(Sheet("What ran", ("case", "schedule"), tuple((r.case, r.schedule) for r in rows)))
    return Group(tables(sheets), Text(_footnote(where)))


def summary(rows: Sequence[Row]) -> Sheet:
    """A line for each case, and for each operator with several the geometric means."""
    lines: list[tuple[str, ...]] = []
    for operator in dict.fromkeys(r.operator for r in rows):
        mine = [r for r in rows if r.operator == operator]
        lines += [_line(r) for r in mine]
        if len(mine) > 1:
            eager = geometric([r.speedup for r in mine if r.speedup])
            graph = geometric([r.speedup_graph for r in mine if r.speedup_graph])
            lines.append((operator, "geometric mean", "", "", _number(eager), "", "", _number(graph), "", ""))
    return Sheet("Summary: ms, and baseline / ours", SUMMARY, tuple(lines))


def subjects_sheet(ranks: int) -> Sheet:
    """What can be measured on so many ranks."""
    lines = (
        (s.name, s.against, ", ".join(c.name for c in s.cases(ranks)), ",".join(s.small)) for s in SUBJECTS.values()
    )
    return Sheet("Benchmarks", ("operator", "against", "cases", "sizes"), tuple(lines))


def file_name(what: str, gpu: str, ranks: int) -> str:
    """Of results: what was measured, on which GPU and on how many ranks, as `bench-ag_gemm-h200-4.json`."""
    model = re.search(r"\w*\d\w*", gpu)
    return f"{what}-{(model[0] if model else gpu).lower()}-{ranks}.json"


def save(path: Path, rows: Sequence[Row]) -> Path:
    """The rows as a JSON file, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rows": [r.record() for r in rows]}, indent=1) + "\n")
    return path


def _line(r: Row) -> tuple[str, ...]:
    eager = (_ms(r.ms_ours), _ms(r.ms_baseline), _number(r.speedup))
    graph = (_ms(r.ms_graph), _ms(r.ms_baseline_graph), _number(r.speedup_graph))
    return r.operator, r.case, *eager, *graph, _error(r.error), r.baseline or "–"


def _contender(r: Row, name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    spread = f"{found['ms_low']:.4f}–{found['ms_high']:.4f}" if found["ms"] is not None else ""
    faster = found["ms"] / r.ms_ours if found["ms"] is not None and r.ms_ours and name != OURS else None
    host = f"{found['host_us']:.0f}" if found["host_us"] is not None else "–"
    times = _ms(found["ms"]), spread, _ms(found["ms_graph"])
    return r.case, name, *times, _number(faster), host, _error(found["error"])


def _matmul(r: Row) -> tuple[str, ...]:
    spread = f"{r.ms_ours_low:.3f}–{r.ms_ours_high:.3f}" if r.ms_ours_low is not None else ""
    hidden = f"{r.efficiency_low:.2f}–{r.efficiency_high:.2f}" if r.efficiency_low is not None else ""
    return (
        r.case,
        _ms(r.ms_ours),
        spread,
        _ms(r.ms_gemm),
        _ms(r.ms_gemm_triton),
        _ms(r.ms_comm),
        _ms(r.ms_unfused),
        _ms(r.ms_async_tp),
        _number(r.efficiency),
        hidden,
        _number(r.ratio),
        f"{r.host_us:.0f}" if r.host_us is not None else "–",
    )


def _ms(value: float | None) -> str:
    """Microseconds in the decimals where there are few."""
    return "–" if value is None else f"{value:.4f}" if value < 0.1 else f"{value:.3f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _error(value: float | None) -> str:
    return "–" if value is None else f"{value:.0e}"


def _footnote(r: Row) -> str:
    times = f"ms, median of {r.rounds} rounds of the slowest rank, all contenders interleaved"
    if r.backend == "simulated":
        times = "simulated ms, which show who waits for whom and not how fast a GPU is; libraries have none"
    graphs = f"; in a graph: of {r.graph_calls} calls, for each" if r.graph_calls else ""
    hidden = "; E = (unfused − ours) / (unfused − gemm); ratio = ours / max(gemm, comm)"
    return f"{times}{graphs}{hidden if r.ms_gemm_triton is not None else ''}; error: of results, against ours"
