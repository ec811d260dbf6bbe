"""Times: contenders measured side by side by all ranks together; the search for a good schedule, and tables of them.

Takes: what can be run, plans. Gives: milliseconds by name, schedules that were measured to be good.
Knows: backends, what can go wrong when a kernel is compiled and started, what a step does and where it may run.
Never knows: emitted text, how a candidate does its work.
"""
