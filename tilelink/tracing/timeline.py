"""A picture of a run: ranks over workers, computing, communicating and waiting, over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from tilelink.tracing.spans import KINDS, Kind, Lane

COLOURS: dict[Kind, str] = {
    "compute": "#2b6ca3",
    "compute + communicate": "#8a5fa8",
    "communicate": "#e8833a",
    "wait": "#d5dae1",
    "set up": "#8a94a3",
}
HATCHES: dict[Kind, str] = {"compute + communicate": "////", "set up": "...."}
"""What tells kinds apart that differ little without colours."""
HEIGHTS: dict[Kind, float] = {"communicate": 0.6, "wait": 0.35, "set up": 0.6}
INK, FAINT = "#1f2933", "#6b7785"
GAP = 1.6
"""Rows of nothing between two ranks."""


def timeline_picture(
    lanes: Sequence[Lane], path: Path, title: str, note: str = "", *, axis: str = "simulated time, µs"
) -> Path:
    """Write the picture as PNG, its folder made if need be.

    Args:
        lanes: of a run, by rank.
        title, note: what ran; the second in small print.
        axis: what time it is.
    """
    lanes = together(lanes)
    rows = _rows(lanes)
    height = rows[-1] + 1 if rows else 1.0
    figure = Figure(figsize=(12, min(30.0, 1.6 + max(1.6, 0.105 * height))), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for lane, row in zip(lanes, rows, strict=True):
        _draw(axes, lane, row)
    end = max((s.end for lane in lanes for s in lane.spans), default=1.0)
    width = max((len(lane.label) for lane in lanes), default=0)
    for _, group in groupby(zip(lanes, rows, strict=True), key=lambda pair: pair[0].rank):
        _label_rank(axes, list(group), end, -0.055 - 0.0052 * width)
    axes.set_xlim(0, 1.005 * end)
    axes.set_ylim(height + 0.2, -0.7)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(axis="x", colors=FAINT, labelsize=9)
    axes.grid(axis="x", color="#eef1f4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"{axis}\n{note}".strip(), color=FAINT, fontsize=9)
    _head(figure, axes, title, {s.kind for lane in lanes for s in lane.spans})
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def together(lanes: Sequence[Lane]) -> list[Lane]:
    """Lanes of a rank in which the same steps ran beside one another, in the order in which such lanes first come: one
    kernel takes the SMs of another that has ended."""
    first: dict[tuple[int, str], int] = {}
    for k, lane in enumerate(lanes):
        first.setdefault((lane.rank, lane.label), k)
    return sorted(lanes, key=lambda lane: (lane.rank, first[lane.rank, lane.label]))


def _rows(lanes: Sequence[Lane]) -> list[float]:
    """The row of each lane: ranks apart from one another."""
    rows: list[float] = []
    for k, lane in enumerate(lanes):
        if k == 0:
            rows.append(0.0)
        else:
            rows.append(rows[-1] + 1 + (GAP if lane.rank != lanes[k - 1].rank else 0))
    return rows


def _draw(axes: Axes, lane: Lane, row: float) -> None:
    for kind in KINDS:
        bars = [(s.begin, s.end - s.begin) for s in lane.spans if s.kind == kind]
        thin, high = kind == "wait", HEIGHTS.get(kind, 0.8)
        axes.broken_barh(
            bars,
            (row - high / 2, high),
            facecolors=COLOURS[kind],
            edgecolors="none" if thin else "white",
            linewidth=0 if thin else 0.35,
            hatch=HATCHES.get(kind),
        )


def _label_rank(axes: Axes, lanes: list[tuple[Lane, float]], end: float, left: float) -> None:
    """The rank's name, and beside each run of like lanes what runs there."""
    top, bottom = lanes[0][1] - 0.5, lanes[-1][1] + 0.5
    sideways = axes.get_yaxis_transform()
    axes.add_patch(Rectangle((0, top), end, bottom - top, facecolor="#f8f9fb", edgecolor="none", zorder=0))
    axes.text(
        left, (top + bottom) / 2, f"rank {lanes[0][0].rank}", transform=sideways, ha="right", va="center",
        fontsize=11, fontweight="bold", color=INK,
    )  # fmt: skip
    for label, group in groupby(lanes, key=lambda pair: pair[0].label):
        run = [row for _, row in group]
        first, last = run[0] - 0.3, run[-1] + 0.3
        axes.plot([-0.006] * 2, [first, last], transform=sideways, clip_on=False, color="#b7c0cb", linewidth=1.4)
        axes.text(
            -0.012, (first + last) / 2, label + (f" ×{len(run)}" if len(run) > 1 else ""),
            transform=sideways, ha="right", va="center", fontsize=7.5, color=FAINT,
        )  # fmt: skip


def _head(figure: Figure, axes: Axes, title: str, kinds: set[Kind]) -> None:
    figure.suptitle(title, x=0.015, ha="left", fontsize=13, fontweight="bold", color=INK)
    axes.legend(
        handles=[
            Patch(facecolor=COLOURS[k], edgecolor="white", hatch=HATCHES.get(k), label=k) for k in KINDS if k in kinds
        ],
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(KINDS),
        frameon=False,
        fontsize=9,
        handlelength=1.2,
        handleheight=0.9,
        columnspacing=1.4,
    )
