"""Who did what when: lanes of spans, from traced kernels and from simulated runs.

Takes: events of traced calls, records of simulated runs, plans. Gives: lanes, totals, pictures, files for Perfetto.
Knows: how a call's events lie in memory, SVG.
Never knows: how a kernel comes to write them, tile programs.
"""

from tilelink.tracing.chrome import trace_events, write_trace
from tilelink.tracing.events import lanes_of_events
from tilelink.tracing.spans import Lane, Span, lanes_of
from tilelink.tracing.trace import Total, Trace, together

__all__ = [
    "Lane",
    "Span",
    "Total",
    "Trace",
    "lanes_of",
    "lanes_of_events",
    "together",
    "trace_events",
    "write_trace",
]
