"""The frozen dataclasses that cross a wall between rooms.

Takes: nothing. Gives: formulas, shapes, tile programs, wirings, topologies, schedules, plans, kernel sources.
Knows: `errors.Loc` and numpy (formulas evaluate on arrays).
Never knows: Python's `ast`, Triton text, torch.
"""

from importlib import import_module


class Shown:
    """Shows itself in a notebook: has a view in `tilelink.explore.views`, which is above all that it draws, and so is asked by
    its name."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return import_module("tilelink.explore.views").html_of(self)
