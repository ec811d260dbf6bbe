"""How a program's indices lie over tensors."""

from __future__ import annotations

from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.partition import here
from tilelink.ir.program import Notify, Store, TileProgram, Wait, tile_names, walk
from tilelink.ir.wiring import Step, TensorDecl, ViewAxis, Wiring, entries


def tensor_of(wiring: Wiring, step: Step, param: str) -> TensorDecl:
    return wiring.tensor(step.binding(param).tensor)


def extent(tensor: TensorDecl, axis: ViewAxis) -> Formula:
    """Positions that a program sees on a view axis, in its own coordinates."""
    if axis.axis is None:
        return F.Sym("RANKS")
    size = tensor.axes[axis.axis].size
    return here(size) if axis.local else size


def stores(program: TileProgram) -> tuple[Store, ...]:
    return tuple(op for op in walk(program.body) if isinstance(op, Store))


def signal_ops(program: TileProgram) -> tuple[Wait | Notify, ...]:
    return tuple(op for op in walk(program.body) if isinstance(op, (Wait, Notify)))


__all__ = ["entries", "extent", "signal_ops", "stores", "tensor_of", "tile_names", "walk"]
