"""How a program's indices lie over tensors."""

from __future__ import annotations

from tilelink.ir.formula import Formula
from tilelink.ir.partition import here, part
from tilelink.ir.program import Notify, TileProgram, Wait, walk
from tilelink.ir.shape import ranks_along
from tilelink.ir.wiring import Step, TensorDecl, ViewAxis, Wiring


def tensor_of(wiring: Wiring, step: Step, param: str) -> TensorDecl:
    return wiring.tensor(step.binding(param).tensor)


def extent(tensor: TensorDecl, axis: ViewAxis, along: str) -> Formula:
    """Positions that a program sees on a view axis, in its own coordinates; `along`: its axis of ranks."""
    if axis.axis is None:
        return ranks_along(along)
    of = tensor.axes[axis.axis]
    return here(of.size, over=of.over) if axis.local else of.size


def ring_of(wiring: Wiring, step: Step, dim: str) -> Formula | None:
    """The part length along a dimension of a step, if some movement of this operator splits a tensor there over the ranks."""
    for b in step.bindings:
        for w in b.view:
            if w.dim != dim or w.axis is None:
                continue
            for other in (s for s in wiring.steps if s.axis == step.axis):
                dims = other.program.signature.global_dims()
                for c in other.bindings:
                    if c.tensor == b.tensor and any(x.axis == w.axis and x.dim in dims for x in c.view):
                        return part(wiring.tensor(b.tensor).axes[w.axis].size, step.axis)
    return None


def signal_ops(program: TileProgram) -> tuple[Wait | Notify, ...]:
    return tuple(op for op in walk(program.body) if isinstance(op, (Wait, Notify)))
