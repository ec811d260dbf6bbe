"""Times: contenders measured side by side by all ranks together; the search for a good schedule, and tables of them.

Takes: what can be run, plans. Gives: milliseconds by name, schedules that were measured to be good.
Knows: worlds, what can go wrong when a kernel is compiled and started, what a step does and where it may run.
Never knows: emitted text, how a candidate does its work.
"""

from tilelink.tuning.estimate import estimate
from tilelink.tuning.estimate import sequential as estimate_sequential
from tilelink.tuning.measuring import Runs, Times, attempt, interleaved
from tilelink.tuning.search import Report, Search
from tilelink.tuning.space import Space, space_of
from tilelink.tuning.tables import DiskCache, Entry, Problem, merge, nearest, read, shipped

__all__ = [
    "DiskCache",
    "Entry",
    "Problem",
    "Report",
    "Runs",
    "Search",
    "Space",
    "Times",
    "attempt",
    "estimate",
    "estimate_sequential",
    "interleaved",
    "merge",
    "nearest",
    "read",
    "shipped",
    "space_of",
]
