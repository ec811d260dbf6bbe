"""A timeline as SVG: ranks over workers, streams and links, computing, communicating and waiting, over time.

Without scripts it is a picture whose bars say what they are when the pointer rests on them; `explore.views` adds zoom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from tilelink.tracing.markup import FAINT, FONT, LINE, Markup, number, tag, text, words
from tilelink.tracing.spans import KINDS, Kind, Lane, Span

COLOURS: dict[Kind, str] = {
    "compute": "#2b6ca3",
    "compute + communicate": "#8a5fa8",
    "communicate": "#e8833a",
    "wait": "#d5dae1",
    "set up": "#8a94a3",
}
HEIGHTS: dict[Kind, float] = {"communicate": 0.6, "wait": 0.35, "set up": 0.6}
"""Of a bar, as a part of its row: what tells kinds apart that differ little without colours."""
WIDTH, LABELS, MARGIN = 1100, 190, 12
"""Pixels of the picture, of the names at its left, and around it."""
GAP = 1.6
"""Rows of nothing between two ranks."""
MOST = 4000
"""Bars of a picture, about: if there are more, those of a lane that touch and are of one kind become one, and the shortest are
left out."""


def timeline_svg(lanes: Sequence[Lane], title: str, note: str = "", *, axis: str = "µs", end: float = 0.0) -> Markup:
    """The picture.

    Args:
        lanes: of a run, by rank.
        title, note: what ran; the second in small print.
        axis: what time it is.
        end: microseconds that the axis has at the least, to compare it with another one.
    """
    lanes = _few(together(lanes))
    rows = _rows(lanes)
    count = rows[-1] + 1 if rows else 1.0
    each = min(14.0, max(3.0, 480 / count))
    end = end or max((s.end for lane in lanes for s in lane.spans), default=0.0) or 1.0
    top, height, wide = 56.0, count * each, WIDTH - LABELS - MARGIN
    backs, bars, names = list[Markup](), list[Markup](), list[Markup]()
    for rank, group in groupby(zip(lanes, rows, strict=True), key=lambda pair: pair[0].rank):
        mine = list(group)
        first, last = mine[0][1], mine[-1][1] + 1
        backs.append(tag("rect", x=0, y=first, width=end, height=last - first, fill="#f8f9fb"))
        names.append(words(MARGIN, top + (first + last) / 2 * each + 4, f"rank {rank}", weight="600"))
        names += _labels(mine, top, each)
        bars += [bar for lane, row in mine for bar in _lane(lane, row)]
    plot = tag(
        "svg", *backs, *bars, class_="plot", x=LABELS, y=top, width=wide, height=height,
        viewBox=f"0 0 {number(end)} {number(count)}", preserveAspectRatio="none",
    )  # fmt: skip
    below = top + height + 14
    parts = [
        tag("rect", width=WIDTH, height=below + (40 if note else 26), fill="white"),
        words(MARGIN, 22, title, size=15, weight="600"),
        _legend({s.kind for lane in lanes for s in lane.spans}),
        ticks(end, top, height, wide),
        plot,
        *names,
        words(LABELS, below + 16, f"{axis}{'  ·  ' + note if note else ''}", fill=FAINT),
    ]
    return tag(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", class_="timeline", viewBox=f"0 0 {WIDTH} {number(below + 30)}",
        font_family=FONT, font_size=11, data_end=end, data_left=LABELS, data_wide=wide, data_top=top, data_high=height,
    )  # fmt: skip


def together(lanes: Sequence[Lane]) -> list[Lane]:
    """Lanes of a rank in which the same steps ran beside one another, in the order in which such lanes first come: one
    kernel takes the SMs of another that has ended."""
    first: dict[tuple[int, str], int] = {}
    for k, lane in enumerate(lanes):
        first.setdefault((lane.rank, lane.label), k)
    return sorted(lanes, key=lambda lane: (lane.rank, first[lane.rank, lane.label]))


def ticks(end: float, top: float, height: float, wide: float) -> Markup:
    """Some five round numbers along the axis, and a line for each."""
    step = 10 ** math.floor(math.log10(end / 4))
    step *= next(k for k in (1, 2, 5, 10) if end / (k * step) <= 8)
    marks = list[Markup]()
    for k in range(int(end / step + 1e-9) + 1):
        x = LABELS + k * step / end * wide
        marks.append(tag("line", x1=x, x2=x, y1=top, y2=top + height, stroke=LINE))
        marks.append(words(x, top + height + 14, f"{k * step:g}", fill=FAINT, anchor="middle"))
    return tag("g", *marks, class_="ticks")


def _few(lanes: list[Lane]) -> list[Lane]:
    """The same with so few bars that a browser draws them at once: of those that are left the longest."""
    if sum(len(lane.spans) for lane in lanes) <= MOST:
        return lanes
    joined = [replace(lane, spans=tuple(_joined(lane.spans))) for lane in lanes]
    lengths = sorted((s.end - s.begin for lane in joined for s in lane.spans), reverse=True)
    least = lengths[min(MOST, len(lengths)) - 1]
    return [replace(lane, spans=tuple(s for s in lane.spans if s.end - s.begin >= least)) for lane in joined]


def _joined(spans: Sequence[Span]) -> list[Span]:
    found: list[Span] = []
    numbers: list[int] = []
    for s in spans:
        last = found[-1] if found else None
        if last is not None and (last.kind, last.name) == (s.kind, s.name) and s.begin - last.end < 1e-3:
            numbers[-1] += 1
            found[-1] = Span(last.begin, s.end, s.kind, s.name, s.line, f"{numbers[-1]} of them, one after the other")
        else:
            found.append(s)
            numbers.append(1)
    return found


def _rows(lanes: Sequence[Lane]) -> list[float]:
    """The row of each lane: ranks apart from one another."""
    rows: list[float] = []
    for k, lane in enumerate(lanes):
        apart = GAP if k and lane.rank != lanes[k - 1].rank else 0.0
        rows.append(rows[-1] + 1 + apart if rows else 0.0)
    return rows


def _lane(lane: Lane, row: float) -> list[Markup]:
    """Its bars, kind by kind."""
    where = f"rank {lane.rank}, {lane.place}"
    out: list[Markup] = []
    for kind in KINDS:
        high = HEIGHTS.get(kind, 0.8)
        bars = [_bar(s, row + (1 - high) / 2, high, where) for s in lane.spans if s.kind == kind]
        if bars:
            out.append(tag("g", *bars, fill=COLOURS[kind]))
    return out


def _bar(s: Span, top: float, high: float, where: str) -> Markup:
    detail = f" {s.detail}" if s.detail else ""
    what = "waits" if s.kind == "wait" else s.kind
    said = f"{s.name}{detail}\n{what}, {s.begin:.2f} to {s.end:.2f} µs ({s.end - s.begin:.2f})\n{where}"
    return tag("rect", tag("title", said), x=s.begin, y=top, width=s.end - s.begin, height=high)


def _labels(lanes: list[tuple[Lane, float]], top: float, each: float) -> list[Markup]:
    """Beside each run of like lanes what runs there, where there is room."""
    out: list[Markup] = []
    free = 0.0
    for label, group in groupby(lanes, key=lambda pair: pair[0].label):
        run = [row for _, row in group]
        first, last = top + run[0] * each + 1, top + (run[-1] + 1) * each - 1
        out.append(tag("line", x1=LABELS - 5, x2=LABELS - 5, y1=first, y2=last, stroke="#b7c0cb", stroke_width=1.4))
        middle = max((first + last) / 2 + 3.5, free)
        free = middle + 11
        said = f"{label} ×{len(run)}" if len(run) > 1 else label
        out.append(words(LABELS - 10, middle, said, size=10, fill=FAINT, anchor="end"))
    return out


def _legend(kinds: set[Kind]) -> Markup:
    out: list[Markup] = []
    x = float(LABELS)
    for kind in KINDS:
        if kind in kinds:
            out.append(tag("rect", x=x, y=36, width=12, height=10, fill=COLOURS[kind]))
            out.append(words(x + 17, 45, kind, fill=FAINT))
            x += 34 + 6.2 * len(kind)
    return text(*out)
