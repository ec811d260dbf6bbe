"""Predictions to look at: of one schedule, of two, and beside a trace."""

from __future__ import annotations

from tilelink.cost import H200, Machine
from tilelink.explore.model import Bound, bound, predict
from tilelink.explore.views.page import View, folded
from tilelink.explore.views.predicted import beside_measured, flags_svg, parting, predicted_lanes
from tilelink.ir.plan import Plan
from tilelink.tracing import Trace
from tilelink.tracing.markup import Markup, tag, text
from tilelink.tracing.timeline import timeline_svg

KEYS = "by the cost model; wheel: zoom, drag: move, double click: all of it"


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
