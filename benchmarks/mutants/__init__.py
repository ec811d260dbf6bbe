"""Mutants: every single change of a plan's signals, and who notices it.

Takes: the operators of `tilelink.ops`. Gives: rows (operator, schedule, mutation, caught by) and their sum.
Knows: plans, the verifier, the emitted text, the simulated backend.
Never knows: a particular operator: a new one joins by existing.

It lies beside the package and not inside it: it rewrites plans, emitted text and memory orders, which none of the rooms
of `tilelink` may do (`explore` least of all), and nothing of it belongs into a wheel.
"""
