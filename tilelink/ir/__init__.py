"""The frozen dataclasses that cross a wall between rooms.

Takes: nothing. Gives: formulas, shapes, tile programs, wirings, topologies, schedules, plans, kernel sources.
Knows: `errors.Loc` and numpy (formulas evaluate on arrays).
Never knows: Python's `ast`, Triton text, torch.
"""
