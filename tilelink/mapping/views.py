"""How a program's indices lie over tensors."""

from __future__ import annotations

from tilelink.ir.formula import Formula
from tilelink.ir.partition import here
from tilelink.ir.program import Notify, Store, TileProgram, Wait, tile_names, walk
from tilelink.ir.shape import ranks_along
from tilelink.ir.wiring import Step, TensorDecl, ViewAxis, Wiring, entries


def tensor_of(wiring: Wiring, step: Step, param: str) -> TensorDecl:
    return wiring.tensor(step.binding(param).tensor)


def extent(tensor: TensorDecl, axis: ViewAxis, along: str) -> Formula:
    """Positions that a program sees on a view axis, in its own coordinates; `along`: its axis of ranks."""
    if axis.axis is None:
        return ranks_along(along)
    of = tensor.axes[axis.axis]
    return here(of.size, over=of.over) if axis.local else of.size


def stores(program: TileProgram) -> tuple[Store, ...]:
    return tuple(op for op in walk(program.body) if isinstance(op, Store))


def signal_ops(program: TileProgram) -> tuple[Wait | Notify, ...]:
    return tuple(op for op in walk(program.body) if isinstance(op, (Wait, Notify)))


__all__ = ["entries", "extent", "signal_ops", "stores", "tensor_of", "tile_names", "walk"]
