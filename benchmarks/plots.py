"""Pictures of benchmark rows and of loss curves, as SVG that is the same for the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.harness import Row

CONTENDERS = {
    "ms_ours": ("tilelink", "#2b6ca3"),
    "ms_async_tp": ("async-TP", "#e8833a"),
    "ms_gemm": ("work alone, the limit", "#c3cad3"),
}
INK, FAINT = "#1f2933", "#6b7785"


def picture(rows: Sequence[Row], path: Path, title: str) -> Path:
    """Speed relative to the baseline, as cuBLAS and NCCL one after the other: bars up and down from it by case, or lines over
    a sweep's rows."""
    figure, axes = _empty()
    shapes = list(dict.fromkeys(r["case"].split(" M=")[0] for r in rows))
    if len(shapes) < len(rows):
        _lines(axes, rows, shapes)
    else:
        _bars(axes, rows)
    axes.axhline(1.0, color=FAINT, linewidth=0.8)
    axes.set_ylabel("speed, baseline = 1", color=FAINT)
    return _saved(figure, axes, path, title)


def curves(losses: Mapping[str, Sequence[float]], path: Path, title: str) -> Path:
    """Losses by step, a line for each model."""
    figure, axes = _empty()
    styles = (("#c3cad3", "-"), ("#2b6ca3", "--"), ("#8a939f", ":"), ("#b5562b", ":"))
    for (name, curve), (colour, style) in zip(losses.items(), styles, strict=False):
        axes.plot(curve, color=colour, linestyle=style, label=name)
    axes.set_xlabel("step", color=FAINT)
    axes.set_ylabel("loss", color=FAINT)
    return _saved(figure, axes, path, title)


def _empty() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _saved(figure: Figure, axes: Axes, path: Path, title: str) -> Path:
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=FAINT)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper right", bbox_to_anchor=(1.0, 1.14))
    with mpl.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def _speed(row: Row, field: str) -> float | None:
    baseline = row.get("ms_baseline") or row["ms_unfused"]
    return baseline / row[field] if row[field] and baseline else None


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    found = {f: [_speed(r, f) or 0.0 for r in rows] for f in CONTENDERS}
    shown = {f: speeds for f, speeds in found.items() if any(speeds)}
    width = 0.8 / max(len(shown), 2)
    for k, (field, speeds) in enumerate(shown.items()):
        label, colour = CONTENDERS[field]
        places = [i + (k - (len(shown) - 1) / 2) * width for i in range(len(rows))]
        axes.bar(places, [s - 1 if s else 0 for s in speeds], width, bottom=1.0, label=label, color=colour)
    axes.set_xticks(range(len(rows)), [r["case"] for r in rows])
    heights = [s for speeds in shown.values() for s in speeds if s] or [1.0]
    low, high = min(*heights, 1.0), max(*heights, 1.0)
    room = 0.1 * (high - low) + 0.01
    axes.set_ylim(low - room, high + room)


def _lines(axes: Axes, rows: Sequence[Row], shapes: Sequence[str]) -> None:
    for field, (label, colour) in CONTENDERS.items():
        for shape in shapes:
            mine = sorted((r for r in rows if r["case"].split(" M=")[0] == shape), key=lambda r: r["sizes"]["M"])
            points = [(r["sizes"]["M"], s) for r in mine if (s := _speed(r, field)) is not None]
            if not points:
                continue
            axes.plot(
                [m for m, _ in points],
                [s for _, s in points],
                color=colour,
                alpha=0.7,
                linewidth=1.2,
                label=label if shape == shapes[0] else None,
            )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("M", color=FAINT)
