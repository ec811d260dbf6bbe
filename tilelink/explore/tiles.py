"""A picture of a plan: when each rank takes which tile, and where one channel ends and the next begins."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis, part
from tilelink.ir.plan import Plan, StepPlan

INK, FAINT = "#1f2933", "#6b7785"
MOST_RANKS = 8


def mapping_picture(plan: Plan, path: Path) -> Path:
    """Write one panel per step and rank, as PNG or by the path's suffix: its tiles, the earlier taken the darker; lines at the
    ranks' borders. What is not shown is said below: ranks beyond eight, fused steps, and what tables split."""
    steps = [s for s in plan.steps if _fixed(s)]
    ranks = range(min(plan.topology.ranks, MOST_RANKS))
    figure = Figure(figsize=(1.4 + 1.9 * len(ranks), 1.4 + 2.2 * len(steps)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(max(1, len(steps)), len(ranks), squeeze=False)
    for i, step in enumerate(steps):
        for rank in ranks:
            _panel(panels[i][rank], plan, step, rank)
            if i == 0:
                panels[i][rank].set_title(f"rank {rank}", fontsize=10, fontweight="bold", color=INK)
    sizes = " ".join(f"{n}={v}" for n, v in plan.sizes)
    figure.suptitle(f"{plan.wiring.name}: tiles in the order in which they are taken ({sizes})", fontsize=11, color=INK)
    figure.supxlabel(fill(caption(plan), 36 * max(2, len(ranks))), fontsize=8.5, color=FAINT)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def caption(plan: Plan) -> str:
    """What the panels show, and what they do not."""
    said = ["Shade and number say when a tile is taken: the darkest, 0, first"]
    if any(borders(plan, s, 0) for s in plan.steps if _fixed(s)):
        said.append("orange lines: where the rows of one rank end and those of the next begin")
    if plan.topology.ranks > MOST_RANKS:
        said.append(f"{MOST_RANKS} of {plan.topology.ranks} ranks")
    for s in plan.steps:
        if s.into is not None:
            said.append(f"{s.path} is not shown, it runs with the tiles of {s.into}")
        elif not _fixed(s):
            said.append(f"{s.path} is not shown, its tiles are known at run time only")
    return "; ".join(said) + "."


def tile_order(plan: Plan, step: StepPlan, rank: int) -> np.ndarray[Any, Any]:
    """The step's positions laid out over its last two tiled axes; -1 where this rank has no tile."""
    env = step.turns(plan.env(rank))
    total = len(env["t"])
    axes = [a for a, g in enumerate(step.grid) if not g.own]
    counts = [int(F.evaluate(step.grid[a].count, env)) for a in axes]
    # Axes before the last two, such as one of ranks, are stacked.
    columns = counts[-1] if len(axes) > 1 else 1
    flat = np.zeros(total, dtype=np.int64)
    for a, count in zip(axes, counts, strict=True):
        flat = flat * count + np.broadcast_to(np.asarray(env[f"i{a}"]), (total,))
    out = np.full(int(np.prod(counts)) if counts else 1, -1)
    out[flat] = np.arange(total)
    return out.reshape(-1, columns) if columns else out.reshape(0, 1)


def _fixed(step: StepPlan) -> bool:
    """Not fused, and not split at run time."""
    return step.into is None and all(g.table is None for g in step.grid)


def _panel(axes: Axes, plan: Plan, step: StepPlan, rank: int) -> None:
    order = tile_order(plan, step, rank)
    shown = np.ma.masked_less(order, 0)
    if order.size:
        axes.imshow(shown, cmap="Blues_r", vmin=0, vmax=max(1.0, 1.35 * order.max()), aspect="auto")
    if order.shape[0] <= 10 and order.shape[1] <= 8:
        for (i, j), t in np.ndenumerate(order):
            axes.text(j, i, "" if t < 0 else str(t), ha="center", va="center", fontsize=6.5,
                      color="white" if t < 0.5 * order.max() else INK)  # fmt: skip
    for border in borders(plan, step, rank) if order.size else []:
        axes.axhline(border - 0.5, color="#e8833a", linewidth=1.6)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#d5dae1")
    if rank == 0:
        down, right = _axes_of(step)
        # Turned by a quarter, the arrow points downwards.
        axes.set_ylabel(f"{step.path}\n← {down}", fontsize=9, color=INK)
        axes.set_xlabel(f"{right} →" if right else "", fontsize=9, color=INK)


def _axes_of(step: StepPlan) -> tuple[str, str]:
    """The axes that go down, and the one that goes to the right."""
    names = ["…" if g.dim.startswith("_") else g.dim for g in step.grid if not g.own]
    return (" ".join(names[:-1]), names[-1]) if len(names) > 1 else (" ".join(names), "")


def borders(plan: Plan, step: StepPlan, rank: int) -> list[float]:
    """Where, counted in tiles, parts of other ranks begin among those of this one's panel."""
    walked = [g for g in step.grid if not g.own]
    if not walked or len(walked) > 2:
        return []
    first: GridAxis = walked[0]
    if first.ring is None:
        return []
    env = plan.env(rank)
    length = int(F.evaluate(part(first.size) if first.ring is None else first.ring, env))
    count, size = int(F.evaluate(first.count, env)), int(F.evaluate(first.size, env))
    if not count:
        return []
    each = {**env, "i": np.arange(count)}
    begins, ends = (np.broadcast_to(F.evaluate(at(F.Sym("i")), each), (count,)) for at in (first.begin, first.end))
    inside = [b for b in range(length, size, length) if begins[0] < b < ends[-1]]
    return [float(np.interp(b, [*begins, ends[-1]], np.arange(count + 1))) for b in inside]
