"""The halves of the library's operators alone: the emitted matmul without communication, and the copy programs without work."""

from __future__ import annotations

from typing import Any

import tilelink
from tilelink.ir.schedule import Sms
from tilelink.ops import programs
from tilelink.pipeline.operator import Operator


@tilelink.operator("M K, K N -> M N")
def gemm(x: Any, weight: Any) -> Any:
    """`x @ weight`, each rank its own."""
    return programs.matmul(x, weight)


@tilelink.operator("M/R K -> M K")
def all_gather(x: Any) -> Any:
    """Everyone's rows, one after the other."""
    return programs.gather(x)


@tilelink.operator("R/R M N -> M/R N")
def reduce_scatter(partial: Any) -> Any:
    """This rank's rows of the sum of everyone's `partial`."""
    return programs.reduce(programs.scatter(partial))


def gemm_like(operator: Operator) -> Operator:
    """The emitted matmul with the tile that `operator` gives it, else by its sizes, in an order that knows of no ring."""
    placed = operator.schedules.get("matmul")
    if not isinstance(placed, Sms) or not placed.tile:
        return gemm
    return gemm.schedule(matmul=Sms(tile=placed.tile, order=("group 8",), warps=placed.warps, stages=placed.stages))
