"""A picture of what goes wrong: the steps of an interleaving on a lane per rank, and the edge that is missing."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from tilelink.explore.views.page import picture
from tilelink.ir.verdict import Counterexample, Instant
from tilelink.tracing.markup import FAINT, LINE, Markup, tag, words

WRONG = "#c2362b"
WIDE, LINE_HIGH, CHARACTERS = 205, 14, 30
"""Pixels of a step's box and of a line in it, and characters of a line."""
APART, LEFT = 250, 90


def counterexample_svg(found: Counterexample) -> Markup:
    """Time from left to right, a lane per rank. Arrows lead from what comes first; a dashed one from what should come first and
    need not; red are those of a cycle."""
    lanes = sorted({i.rank for i in found.steps})
    calls = len({i.call for i in found.steps}) > 1
    said = [_lines(i, calls) for i in found.steps]
    high = max(map(len, said), default=1) * LINE_HIGH + 14
    each = high + 44
    head = wrap(f"{found.text} ({found.sizes})", 130)
    top = 26 + 16 * len(head)
    width, height = LEFT + APART * len(said) + 10, top + each * len(lanes) + 8
    at = [(LEFT + APART * k, top + each * lanes.index(i.rank) + 22) for k, i in enumerate(found.steps)]
    late = found.missing or ()
    parts = [tag("defs", _head("tl-faint", FAINT), _head("tl-wrong", WRONG))]
    parts += [words(10, 20 + 16 * k, line, weight="600") for k, line in enumerate(head)]
    for k, rank in enumerate(lanes):
        middle = top + each * k + 22 + high / 2
        parts.append(tag("line", x1=LEFT - 20, x2=width - 10, y1=middle, y2=middle, stroke=LINE, stroke_width=14))
        parts.append(words(10, middle + 4, f"rank {rank}", weight="600"))
    solid = WRONG if found.kind == "deadlock" else FAINT
    parts += [_arrow(at[a], at[b], high, solid, None) for a, b in found.edges]
    if found.missing is not None:
        parts.append(_arrow(at[found.missing[0]], at[found.missing[1]], high, WRONG, "6 4"))
    for k, (x, y) in enumerate(at):
        parts.append(
            tag("rect", x=x, y=y, width=WIDE, height=high, rx=6, fill="white", stroke=WRONG if k in late else FAINT)
        )
        parts += [
            words(x + 10, y + 18 + LINE_HIGH * n, line, weight="600" if n == 0 else None)
            for n, line in enumerate(said[k])
        ]
    return picture("interleaving", width, height, *parts, size=11.5)


def _head(name: str, colour: str) -> Markup:
    """Of an arrow."""
    path = tag("path", d="M0 0 10 5 0 10z", fill=colour)
    return tag(
        "marker", path, id=name, viewBox="0 0 10 10", refX=9, refY=5, markerWidth=9, markerHeight=9, orient="auto"
    )


def _arrow(first: tuple[int, int], then: tuple[int, int], high: int, colour: str, dash: str | None) -> Markup:
    """Between the edges of two boxes that face one another; to one before, in a bow over all between them."""
    (x, y), (u, v) = first, then
    if u > x:
        path = f"M{x + WIDE} {y + high / 2}C{x + WIDE + 22} {y + high / 2} {u - 22} {v + high / 2} {u} {v + high / 2}"
    else:
        path = f"M{x + WIDE / 2} {y}C{x + WIDE / 2} {min(y, v) - 36} {u + WIDE / 2} {min(y, v) - 36} {u + WIDE / 2} {v}"
    head = "url(#tl-wrong)" if colour == WRONG else "url(#tl-faint)"
    return tag("path", d=path, fill="none", stroke=colour, stroke_width=1.7, stroke_dasharray=dash, marker_end=head)


def _lines(instant: Instant, calls: bool) -> list[str]:
    call = f"call {instant.call}: " if calls else ""
    tile = f" {instant.tile}" if instant.tile else ""
    line = [f"{Path(instant.loc.file).name}:{instant.loc.line}"] if instant.loc is not None else []
    return [f"{call}{instant.path}{tile}", *wrap(instant.does, CHARACTERS), *line]
