"""Predictions to look at: timelines of one schedule, of two with the first tile where they part, and beside a trace; flags over
time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tilelink.cost import H200, Machine
from tilelink.cost.rows import Array
from tilelink.explore.model import Bound, Prediction, bound, predict
from tilelink.explore.views.page import View, folded, picture
from tilelink.ir.plan import Plan
from tilelink.tracing import Trace
from tilelink.tracing.markup import FAINT, LINE, Markup, tag, text, words
from tilelink.tracing.spans import Kind, Lane, Span, kind_of
from tilelink.tracing.timeline import WIDTH, timeline_svg

KEYS = "by the cost model; wheel: zoom, drag: move, double click: all of it"
RANKS = ("#2b6ca3", "#e8833a", "#3a9a6a", "#8a5fa8", "#c2362b", "#6b7785", "#b59a2a", "#2aa0b5")
"""Colours of ranks."""
CLOSE = 0.01
"""Of the whole time: what differs by less does not part."""


def predicted(plan: Plan, machine: Machine = H200, rank: int = 0) -> View:
    """How long a plan takes on a machine, how far that is from the bound, and what a rank does until then.

    Args:
        plan: made for `machine.device()`, so that it uses as many SMs.
        rank: whose timeline is drawn.
    """
    return View(prediction_parts(plan, bound(plan, machine), rank))


def compared(plan: Plan, other: Plan, machine: Machine = H200, rank: int = 0) -> View:
    """The same of two schedules of one call, on one axis, and the first tile where they part.

    Args:
        plan, other: of one operator for the same sizes.
        rank: whose timelines are drawn.
    """
    return View(prediction_parts(plan, bound(plan, machine), rank, (other, bound(other, machine))))


def measured(plan: Plan, trace: Trace, machine: Machine = H200, rank: int = 0) -> View:
    """What a rank was predicted to do, and on the same axis what it did."""
    return View(beside_measured(plan, predict(plan, machine), trace, rank))


def prediction_parts(plan: Plan, found: Bound, rank: int, other: tuple[Plan, Bound] | None = None) -> Markup:
    """What is said of a prediction, and of another one that it is compared with."""
    us, end = found.prediction.us, found.prediction.us
    parts = [tag("p", tag("b", f"{us:.1f} µs predicted"), str(found), class_="figure")]
    if other is not None:
        end = max(us, other[1].prediction.us)
        said = f"The other schedule takes {other[1].prediction.us:.1f} µs, this one {us / other[1].prediction.us - 1:+.1%}. "
        said += parting(found.prediction, other[1].prediction)
        parts.append(tag("p", said, class_="parting"))
    parts.append(_timeline(plan, found, rank, "", end))
    if other is not None:
        parts.append(_timeline(*other, rank, "the other schedule: ", end))
    parts.append(folded("Flags over time", flags_svg(found.prediction.flags, end)))
    return text(*parts)


def _timeline(plan: Plan, found: Bound, rank: int, which: str, end: float) -> Markup:
    return timeline_svg(
        predicted_lanes(plan, found.prediction, [rank]), f"{which}rank {rank}, predicted", KEYS, end=end
    )


# ------------------------------------------------------------------------------------------------------------------ drawn
def predicted_lanes(plan: Plan, prediction: Prediction, ranks: Iterable[int]) -> tuple[Lane, ...]:
    """What each SM, stream and link of some ranks is predicted to do: links first, then streams."""
    out: list[Lane] = []
    kinds: dict[str, Kind] = {s.path: kind_of(plan, s.path) for s in plan.steps}
    for rank in ranks:
        found: dict[str, list[Span]] = {}
        for i in prediction.on(rank):
            moves = i.kind in ("copy", "transfer") and i.name in kinds
            kind: Kind = "wait" if i.kind == "wait" else "communicate" if moves else kinds.get(i.name) or "set up"
            detail = f"{i.nbytes / 2**10:.4g} KiB" if i.kind == "transfer" else ", ".join(map(str, i.tile))
            name = i.label if i.kind == "transfer" else i.name
            found.setdefault(i.resource, []).append(Span(i.start_us, i.end_us, kind, name, 0, detail))
        lanes = [_lane(rank, resource, tuple(spans)) for resource, spans in found.items()]
        out += sorted(
            lanes, key=lambda lane: (lane.worker is not None, not lane.title.startswith("link"), lane.worker or 0)
        )
    return tuple(out)


def _lane(rank: int, resource: str, spans: tuple[Span, ...]) -> Lane:
    name, _, number = resource.rpartition(" ")
    if name == "SM":
        return Lane(rank, 0, int(number), spans, sm=int(number))
    return Lane(rank, 0, None, spans, title=resource)


def beside_measured(plan: Plan, prediction: Prediction, trace: Trace, rank: int = 0) -> Markup:
    """What a rank was predicted to do, and below it on the same axis what it did."""
    measured = [lane for lane in trace.lanes if lane.rank == rank]
    end = max(prediction.us, max((s.end for lane in measured for s in lane.spans), default=0.0))
    return text(
        timeline_svg(predicted_lanes(plan, prediction, [rank]), f"rank {rank}, predicted", end=end),
        timeline_svg(measured, f"rank {rank}, measured", trace.backend, end=end),
    )


def flags_svg(flags: Mapping[str, Array], end: float) -> Markup:
    """Of each kind of flags a curve per rank: how many of them are complete by when.

    Args:
        flags: by name, (rank, flag), the microsecond when each is complete, if it is.
        end: of the time axis.
    """
    wide, high, apart, left = 300, 90, 56, 34
    columns = max(1, (WIDTH - left) // (wide + apart))
    rows = -(-len(flags) // columns)
    parts: list[Markup] = []
    for k, (name, times) in enumerate(flags.items()):
        x, y = left + k % columns * (wide + apart), 30 + k // columns * (high + apart)
        count = max(1, times.shape[1])
        parts.append(words(x, y - 8, f"{name}: {times.shape[1]} a rank", weight="600"))
        parts.append(tag("rect", x=x, y=y, width=wide, height=high, fill="#f8f9fb", stroke=LINE))
        parts.append(words(x, y + high + 14, "0", fill=FAINT))
        parts.append(words(x + wide, y + high + 14, f"{end:.4g} µs", fill=FAINT, anchor="end"))
        parts.append(words(x - 6, y + 8, str(times.shape[1]), fill=FAINT, anchor="end"))
        for rank, mine in enumerate(times[: len(RANKS)]):
            there = np.sort(mine[np.isfinite(mine)])
            steps = [f"M{x} {y + high}"]
            each = max(1, len(there) // 200)
            for n, at in enumerate(there[::each], 1):
                up = y + high - min(n * each, len(there)) / count * high
                steps.append(f"H{x + min(1.0, float(at) / end) * wide:.1f}V{up:.1f}")
            curve = "".join([*steps, f"H{x + wide}"])
            said = (
                f"{name} of rank {rank}: {len(there)} of {count}, the last at {there[-1]:.2f} µs" if len(there) else ""
            )
            parts.append(
                tag("path", tag("title", said), d=curve, fill="none", stroke=RANKS[rank], stroke_width=1.6, opacity=0.8)
            )
    for rank in range(min(len(RANKS), max((len(t) for t in flags.values()), default=0))):
        parts.append(
            words(left + 60 * rank, rows * (high + apart) + 14, f"rank {rank}", fill=RANKS[rank], weight="600")
        )
    return picture("flags", WIDTH, rows * (high + apart) + 22, *parts)


# ---------------------------------------------------------------------------------------------------------- two of them
def parting(first: Prediction, second: Prediction) -> str:
    """Which is the first tile that two schedules of one call end at another time, and what it waited for in each."""
    mine, others = _ends(first), _ends(second)
    common = [name for name in mine if name in others and mine[name].shape == others[name].shape]
    if not common:
        return "No tile is in both: their tiles have other sizes."
    parted: list[tuple[float, str, tuple[int, ...]]] = []
    for name in common:
        a, b = mine[name], others[name]
        earlier = np.where(np.abs(a - b) > CLOSE * max(first.us, second.us), np.minimum(a, b), np.inf)
        at = np.unravel_index(int(earlier.argmin()), earlier.shape) if earlier.size else ()
        if at and np.isfinite(earlier[at]):
            parted.append((float(earlier[at]), name, tuple(map(int, at))))
    if not parted:
        return "They part nowhere."
    _, name, (rank, *tile) = min(parted)
    here, there = (_said(p, rank, name, tuple(tile)) for p in (first, second))
    which = f"{name} ({', '.join(map(str, tile))})" if tile else name
    return f"The first tile where they part is {which} of rank {rank}: here {here}; there {there}."


def _ends(prediction: Prediction) -> dict[str, Array]:
    """By step, (rank, index of the tile, …), when each tile has ended; not a number where there is none."""
    found: dict[str, Array] = {}
    for played in prediction.loops:
        at = np.asarray(played.work.at)
        ends = np.pad(np.asarray(played.ends, dtype=float), ((0, 0), (0, 1)), constant_values=np.nan)
        found[played.work.loop.path] = ends[np.arange(len(at)).reshape(-1, *(1,) * (at.ndim - 1)), at]
    return found


def _said(prediction: Prediction, rank: int, name: str, tile: tuple[int, ...]) -> str:
    """When a tile is made, and how long it waited."""
    mine = [i for i in prediction.on(rank) if i.name == name and i.tile == tile]
    waited = sum(i.end_us - i.start_us for i in mine if i.kind == "wait")
    said = f", having waited {waited:.1f} µs" if waited else ", without a wait"
    made = next((i for i in mine if i.kind in ("work", "copy")), None)
    return (
        "it takes no time"
        if made is None
        else f"{made.resource} makes it from {made.start_us:.1f} to {made.end_us:.1f} µs{said}"
    )
