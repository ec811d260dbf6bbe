"""A picture of what goes wrong: the steps of an interleaving on a lane per rank, and the edge that is missing."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from tilelink.ir.verdict import Counterexample, Instant

INK, FAINT, WRONG = "#1f2933", "#6b7785", "#c2362b"


def counterexample_picture(found: Counterexample, path: Path) -> Path:
    """Write it as PNG or SVG, by the path's suffix: time from left to right, a lane per rank. Arrows lead from what comes
    first; a dashed one from what should come first and need not; red are those of a circle."""
    lanes = sorted({i.rank for i in found.steps})
    size = 1.6 + 2.3 * max(1, len(found.steps)), 1.3 + 1.2 * max(1, len(lanes))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Axes = figure.subplots()
    for rank in lanes:
        axes.axhline(-lanes.index(rank), color="#e4e8ed", linewidth=14, zorder=0)
        axes.text(-0.75, -lanes.index(rank), f"rank {rank}", ha="right", va="center", fontweight="bold", color=INK)
    calls = len({i.call for i in found.steps}) > 1
    boxes: list[Text] = []
    for k, instant in enumerate(found.steps):
        late = found.missing is not None and k in found.missing
        frame = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": WRONG if late else FAINT}
        at = float(k), -float(lanes.index(instant.rank))
        boxes.append(
            axes.text(*at, _label(instant, calls), ha="center", va="center", fontsize=8, color=INK, bbox=frame)
        )
    for first, then in found.edges:
        _arrow(axes, boxes[first], boxes[then], WRONG if found.kind == "deadlock" else FAINT, "solid")
    if found.missing is not None:
        _arrow(axes, boxes[found.missing[0]], boxes[found.missing[1]], WRONG, "dashed")
    axes.set_xlim(-1.3, len(found.steps) - 0.3)
    axes.set_ylim(-len(lanes) + 0.3, 0.7)
    axes.set_axis_off()
    figure.suptitle(fill(f"{found.text} ({found.sizes})", 90), fontsize=10, color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _arrow(axes: Axes, first: Text, then: Text, color: str, style: str) -> None:
    axes.annotate(
        "",
        xy=then.get_position(),
        xytext=first.get_position(),
        arrowprops={
            "arrowstyle": "-|>", "color": color, "linestyle": style, "linewidth": 1.6,
            "patchA": first.get_bbox_patch(), "patchB": then.get_bbox_patch(), "connectionstyle": "arc3,rad=0.3",
        },
    )  # fmt: skip


def _label(instant: Instant, calls: bool) -> str:
    tile = f" {instant.tile}" if instant.tile else ""
    line = f"\n{Path(instant.loc.file).name}:{instant.loc.line}" if instant.loc is not None else ""
    call = f"call {instant.call}: " if calls else ""
    return f"{call}{instant.path}{tile}\n{fill(instant.does, 24)}{line}"
