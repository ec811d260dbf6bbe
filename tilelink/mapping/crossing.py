"""Which steps touch instances of other ranks."""

from __future__ import annotations

from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Store, walk
from tilelink.ir.wiring import TensorDecl


def reads_remote(s: StepPlan, param: str, tensor: TensorDecl) -> bool:
    """Whether the step reads instances of other ranks: only a pulling movement does."""
    movement = s.step.program.movement
    if movement is None or s.push or movement.source != param:
        return False
    view = s.step.binding(param).view
    # A program that sees one part or slice alone sees its own.
    split = any(v.axis is not None and tensor.axes[v.axis].over == s.axis and not v.local for v in view)
    return split or any(v.axis is None for v in view)


def crosses(s: StepPlan, param: str) -> bool:
    """Whether the step writes instances of other ranks."""
    movement = s.step.program.movement
    if movement is not None:
        return bool(s.push) and param == movement.destination
    return any(isinstance(op, Store) and op.to == "holders" and op.param == param for op in walk(s.step.program.body))
