"""Capture, plan, verify, emit, load, run: the one room that knows all others.

Takes: what users write. Gives: `Operator`, the object they hold.
Knows: every room below. Never knows: how any of them does its work.
"""

from tilelink.pipeline.operator import Operator, operator

__all__ = ["Operator", "operator"]
