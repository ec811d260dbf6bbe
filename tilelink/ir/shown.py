"""What shows itself in a notebook."""

from __future__ import annotations

from importlib import import_module


class Shown:
    """Has a view in `tilelink.explore.views`, which is above all that it draws, and so is asked by its name."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return import_module("tilelink.explore.views").html_of(self)
