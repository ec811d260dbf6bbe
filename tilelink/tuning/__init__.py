"""Searches for schedules: what may be tried, in which order, what was found; times that all ranks measure together, and tables.

Takes: plans, what tries a schedule. Gives: studies, milliseconds by name, schedules that were measured to be good.
Knows: backends, the cost model, what can go wrong when a kernel is compiled and started, what a step does and where it may run.
Never knows: emitted text, how a candidate does its work.
"""
