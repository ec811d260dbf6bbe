"""Rows as a table of a terminal, and as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group
from rich.text import Text

from tilelink.bench.rows import Row
from tilelink.explore.sheets import Sheet
from tilelink.explore.tables import tables

COLUMNS = (
    "case", "T_ours", "quartiles", "T_gemm", "triton", "T_comm", "T_sequential", "async-tp", "E", "quartiles", "ratio",
    "host µs",
)  # fmt: skip


def report(operator: str, rows: Sequence[Row]) -> Group:
    """Milliseconds and E of all cases; further schedules, what is missing and what ran below."""
    where = rows[0]
    title = f"{operator} on {where.world}×{where.gpu}, torch {where.torch}, Triton {where.triton}, {where.commit}"
    sheets = [Sheet(title, COLUMNS, tuple(_line(r) for r in rows))]
    others = [(r.case, name, o) for r in rows for name, o in r.others.items()]
    if others:
        lines = tuple(
            (
                case,
                name,
                _ms(o["ms"]),
                f"{o['ms_low']:.3f}–{o['ms_high']:.3f}",
                _number(o["efficiency"]),
                f"{o['host_us']:.0f}",
            )
            for case, name, o in others
        )
        sheets.append(Sheet("Further schedules", ("case", "schedule", "ms", "quartiles", "E", "host µs"), lines))
    missing: dict[tuple[str, str], list[str]] = {}
    for r in rows:
        for found in r.missing.items():
            missing.setdefault(found, []).append(r.case)
    if missing:
        lines = tuple((name, why, ", ".join(cases)) for (name, why), cases in missing.items())
        sheets.append(Sheet("Missing", ("contender", "why", "cases"), lines))
    sheets.append(Sheet("What ran", ("case", "schedule"), tuple((r.case, r.schedule) for r in rows)))
    return Group(tables(sheets), Text(_footnote(where)))


def save(path: Path, rows: Sequence[Row]) -> Path:
    """The rows as a JSON file, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rows": [r.record() for r in rows]}, indent=1) + "\n")
    return path


def _line(r: Row) -> tuple[str, ...]:
    spread = f"{r.ms_ours_low:.3f}–{r.ms_ours_high:.3f}" if r.ms_ours_low is not None else ""
    hidden = f"{r.efficiency_low:.2f}–{r.efficiency_high:.2f}" if r.efficiency_low is not None else ""
    return (
        r.case,
        _ms(r.ms_ours),
        spread,
        _ms(r.ms_gemm),
        _ms(r.ms_gemm_triton),
        _ms(r.ms_comm),
        _ms(r.ms_sequential),
        _ms(r.ms_async_tp),
        _number(r.efficiency),
        hidden,
        _number(r.ratio),
        f"{r.host_us:.0f}" if r.host_us is not None else "–",
    )


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _footnote(r: Row) -> str:
    times = f"ms, median of {r.rounds} rounds of the slowest rank, all contenders interleaved"
    if r.backend == "simulated":
        times = "simulated ms, which show who waits for whom and not how fast a GPU is; T_gemm is the emitted matmul"
    return f"{times}; E = (sequential − ours) / (sequential − gemm); ratio = ours / max(gemm, comm)"
