"""How long a lowered plan takes on a machine, in microseconds.

Takes: `ir.Lowered`. Gives: times.
Knows: tables of a lowered plan, one description of a machine, numpy.
Never knows: partitions, copy programs, views, operators, torch.
"""

from tilelink.cost.machine import H200, Machine
from tilelink.cost.model import Call, call
from tilelink.cost.unfused import unestimated, unfused

__all__ = ["H200", "Call", "Machine", "call", "unestimated", "unfused"]
