"""How a program's indices lie over tensors."""

from __future__ import annotations

from tilelink.ir.formula import Formula
from tilelink.ir.partition import extent as extent
from tilelink.ir.partition import part
from tilelink.ir.program import Notify, TileProgram, Wait, walk
from tilelink.ir.wiring import Step, TensorDecl, Wiring


def tensor_of(wiring: Wiring, step: Step, param: str) -> TensorDecl:
    return wiring.tensor(step.binding(param).tensor)


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
