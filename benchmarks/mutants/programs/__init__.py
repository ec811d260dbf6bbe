"""Mutants of tile programs: every single change of a store, push, pull, loop, mask or index, and who notices it.

Takes: the operators of `tilelink.ops`, in every placement that `mutants.mappings` finds. Gives: rows (operator, schedule,
step, change, verdict) and their sum by kind.
Knows: the programs' Python, plans, the verifier, the simulated backend.
Never knows: a particular operator: a new one joins by existing.

Mutants of signals are changes of a plan, since no text says them. These are changes of the text: each is a program that
somebody could have written, and everything that is done with a program is done with it.
"""
