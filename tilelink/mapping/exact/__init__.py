"""A plan played through on one small world: every event of every agent, and which of them are ordered.

Takes: `ir.Plan`. Gives: what goes wrong when it runs, or nothing; a counterexample; which signals are redundant.
Knows: the plan's formulas, what copy engines do, networkx.
Never knows: the structural proof, which is tested against it.
"""

from tilelink.mapping.exact.findings import Exact, Finding, Moment, circle_of, examine
from tilelink.mapping.exact.implied import implied
from tilelink.mapping.exact.redundant import Redundant, equivalent, redundant
from tilelink.mapping.exact.reuse import reused
from tilelink.mapping.exact.story import counterexample
from tilelink.mapping.exact.tiles import NotExact, Outside
from tilelink.mapping.exact.worlds import described, shrunk, small_worlds

__all__ = [
    "Exact",
    "Finding",
    "Moment",
    "NotExact",
    "Outside",
    "Redundant",
    "circle_of",
    "counterexample",
    "described",
    "equivalent",
    "examine",
    "implied",
    "redundant",
    "reused",
    "shrunk",
    "small_worlds",
]
