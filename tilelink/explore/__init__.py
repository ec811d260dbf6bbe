"""Looking at operators: cases to run them on, tables of plans, pictures of runs.

Takes: operators, plans, verdicts, traces of simulated runs. Gives: tables, pictures, trace files, measured errors.
Knows: every room below; rich.
Never knows: how to rewrite a program or a plan.
"""
