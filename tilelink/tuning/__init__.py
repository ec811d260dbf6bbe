"""Times: contenders measured side by side by all ranks together; the search for a good schedule, and tables of them.

Takes: what can be run, plans. Gives: milliseconds by name, schedules that were measured to be good.
Knows: worlds, what can go wrong when a kernel is compiled and started, what a step does and where it may run.
Never knows: emitted text, how a candidate does its work.
"""

from tilelink.tuning.comparing import TOLERANCE, apart, relative_error, results, tolerance
from tilelink.tuning.measuring import Runs, Times, attempt, interleaved
from tilelink.tuning.search import Report, Search
from tilelink.tuning.space import FUNCTIONS, SLOTS, Space, space_of
from tilelink.tuning.tables import FAR, DiskCache, Entry, Problem, merge, nearest, read, shipped

__all__ = [
    "FAR",
    "FUNCTIONS",
    "SLOTS",
    "TOLERANCE",
    "DiskCache",
    "Entry",
    "Problem",
    "Report",
    "Runs",
    "Search",
    "Space",
    "Times",
    "apart",
    "attempt",
    "interleaved",
    "merge",
    "nearest",
    "read",
    "relative_error",
    "results",
    "shipped",
    "space_of",
    "tolerance",
]
