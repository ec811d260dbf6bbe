"""How long a lowered plan takes on a machine, in microseconds.

Takes: `ir.Lowered`. Gives: times.
Knows: tables of a lowered plan, one description of a machine, numpy.
Never knows: partitions, copy programs, views, operators, torch.
"""

from tilelink.cost.bounds import Bound, Limit, bound
from tilelink.cost.machine import H200, MACHINES, Machine
from tilelink.cost.model import predict
from tilelink.cost.prediction import Interval, Prediction
from tilelink.cost.unfused import unestimated, unfused

__all__ = [
    "H200",
    "MACHINES",
    "Bound",
    "Interval",
    "Limit",
    "Machine",
    "Prediction",
    "bound",
    "predict",
    "unestimated",
    "unfused",
]
