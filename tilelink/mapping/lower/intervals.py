"""Positions along one axis of a tensor, as a program counts them."""

from __future__ import annotations

from dataclasses import dataclass

from tilelink.ir.formula import Formula
from tilelink.ir.lowered import Data
from tilelink.ir.partition import GridAxis


@dataclass(frozen=True, slots=True)
class Interval:
    """Positions along one axis, as the program counts them. `grid`: of the partition whose tile it is, if it is one; `whole`: the
    index leaves the axis whole."""

    begin: Formula
    end: Formula
    by_data: Data | None = None
    grid: GridAxis | None = None
    whole: bool = False
    subtiles: int = 1

    @property
    def block(self) -> Formula:
        """How many elements a block of it has, those past its end included."""
        return self.end - self.begin if self.grid is None else self.grid.step // self.subtiles
