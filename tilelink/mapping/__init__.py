"""Tiles to ranks, workers and channels; and the proof that it works.

Takes: `ir.Wiring`, `ir.Topology`, `ir.Schedule`, sizes. Gives: `ir.Plan`, `ir.Verdict`.
Knows: tiles, ranks, channels, orders, numpy, networkx.
Never knows: source text, pointers, torch, triton.
"""

from tilelink.mapping.planning import make_plan
from tilelink.mapping.transfers import expand
from tilelink.mapping.verify import verify

__all__ = ["expand", "make_plan", "verify"]
