"""A picture of a plan: when each rank takes which tile, and where one channel ends and the next begins."""

from __future__ import annotations

import base64
import struct
import zlib
from textwrap import wrap
from typing import Any

import numpy as np

from tilelink.explore.views.page import picture
from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Plan, StepPlan
from tilelink.tracing.markup import FAINT, INK, Markup, tag, words

MOST_RANKS = 8
PANEL, APART, LEFT, TOP = 112, 18, 96, 58
"""Pixels of a panel, between two, and of what stands at the left and above."""
DARK, LIGHT = np.array([8, 48, 107]), np.array([222, 235, 247])
NOTHING = np.array([243, 244, 246])
"""Colours of the first tile and the last one, and of where there is none."""


def tiles_svg(plan: Plan) -> Markup:
    """One panel per step and rank: its tiles, the earlier taken the darker; lines at the ranks' borders. What is not shown is
    said below: ranks beyond eight, fused steps, and what tables split."""
    steps = [s for s in plan.steps if _fixed(s)]
    ranks = range(min(plan.topology.ranks, MOST_RANKS))
    sizes = " ".join(f"{n}={v}" for n, v in plan.sizes)
    title = f"{plan.wiring.name}: tiles in the order in which they are taken ({sizes})"
    width = max(LEFT + (PANEL + APART) * len(ranks), 9 * len(title))
    said = wrap(caption(plan), width // 6)
    height = TOP + (PANEL + APART) * len(steps) + 16 * len(said) + 4
    parts = [
        words(10, 22, title, size=14, weight="600"),
        *(
            words(LEFT + (PANEL + APART) * r + PANEL / 2, TOP - 10, f"rank {r}", weight="600", anchor="middle")
            for r in ranks
        ),
    ]
    for k, step in enumerate(steps):
        y = TOP + (PANEL + APART) * k
        down, right = _axes_of(step)
        parts.append(words(10, y + PANEL / 2 - 8, step.path, weight="600"))
        parts.append(words(10, y + PANEL / 2 + 8, f"{down} ↓" + (f"  {right} →" if right else ""), fill=FAINT))
        for rank in ranks:
            parts += _panel(plan, step, rank, LEFT + (PANEL + APART) * rank, y)
    below = TOP + (PANEL + APART) * len(steps)
    parts += [words(10, below + 10 + 16 * k, line, fill=FAINT) for k, line in enumerate(said)]
    return picture("tiles", width, height, *parts)


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
    axes = [a for a, g in enumerate(step.grid) if not g.coordinate]
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


def _panel(plan: Plan, step: StepPlan, rank: int, x: int, y: int) -> list[Markup]:
    order = tile_order(plan, step, rank)
    if not order.size:
        return [words(x + PANEL / 2, y + PANEL / 2, "no tile", fill=FAINT, anchor="middle")]
    rows, columns = order.shape
    last = max(1, int(order.max()))
    shade = np.clip(order, 0, None)[..., None] / last
    colours = np.where(order[..., None] < 0, NOTHING, DARK + (LIGHT - DARK) * shade).astype(np.uint8)
    frame = {"x": x, "y": y, "width": PANEL, "height": PANEL}
    parts = [
        tag("image", href=_png(colours), preserveAspectRatio="none", style="image-rendering:pixelated", **frame),
        tag("rect", fill="none", stroke="#d5dae1", **frame),
    ]
    if rows <= 10 and columns <= 8:
        for (i, j), t in np.ndenumerate(order):
            at = x + (j + 0.5) * PANEL / columns, y + (i + 0.5) * PANEL / rows + 3
            fill = "white" if t < 0.5 * last else INK
            parts += [words(*at, str(t), size=8.5, fill=fill, anchor="middle")] if t >= 0 else []
    for border in borders(plan, step, rank):
        at = y + border / rows * PANEL
        parts.append(tag("line", x1=x, x2=x + PANEL, y1=at, y2=at, stroke="#e8833a", stroke_width=1.6))
    return parts


def _png(pixels: np.ndarray[Any, Any]) -> str:
    """A picture of one pixel per tile, as an address that has it inside."""
    high, wide, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    found = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(found).decode()}"


def _axes_of(step: StepPlan) -> tuple[str, str]:
    """The axes that go down, and the one that goes to the right."""
    names = ["…" if g.dim.startswith("_") else g.dim for g in step.grid if not g.coordinate]
    return (" ".join(names[:-1]), names[-1]) if len(names) > 1 else (" ".join(names), "")


def borders(plan: Plan, step: StepPlan, rank: int) -> list[float]:
    """Where, counted in tiles, parts of other ranks begin among those of this one's panel."""
    walked = [g for g in step.grid if not g.coordinate]
    if not walked or len(walked) > 2:
        return []
    first: GridAxis = walked[0]
    if not first.shared:
        return []
    env = plan.env(rank)
    length = int(F.evaluate(first.part, env))
    count, size = int(F.evaluate(first.count, env)), int(F.evaluate(first.size, env))
    if not count:
        return []
    each = {**env, "i": np.arange(count)}
    begins, ends = (np.broadcast_to(F.evaluate(at(F.Sym("i")), each), (count,)) for at in (first.begin, first.end))
    inside = [b for b in range(length, size, length) if begins[0] < b < ends[-1]]
    return [float(np.interp(b, [*begins, ends[-1]], np.arange(count + 1))) for b in inside]
