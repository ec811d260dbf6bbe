"""Tiles to ranks, workers and channels; and the proof that it works.

Takes: `ir.Wiring`, `ir.Topology`, `ir.Schedule`, sizes. Gives: `ir.Plan`, `ir.Verdict`.
Knows: tiles, ranks, channels, orders, numpy, networkx.
Never knows: source text, pointers, torch, triton.
"""

from tilelink.mapping.arrivals import raising
from tilelink.mapping.placement import placement_of
from tilelink.mapping.planning import make_plan

__all__ = [
    "make_plan",
    "placement_of",
    "raising",
]
