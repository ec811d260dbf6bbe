"""Which steps touch other ranks' local tensors, and what they may do where a network lies between: puts from memory, with
their signals."""

from __future__ import annotations

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.plan import StepPlan
from tilelink.ir.program import Store, walk
from tilelink.ir.topology import Topology
from tilelink.ir.wiring import TensorDecl, Wiring


def reads_remote(s: StepPlan, param: str, tensor: TensorDecl) -> bool:
    """Whether the step reads instances of other ranks: only a pulling copy program does."""
    copy_program = s.step.program.copy_program
    if copy_program is None or s.push or copy_program.source != param:
        return False
    view = s.step.binding(param).view
    # A program that sees one part or slice alone sees its own.
    split = any(v.axis is not None and tensor.axes[v.axis].over == s.axis and not v.local for v in view)
    return split or any(v.axis is None for v in view)


def crosses(s: StepPlan, param: str) -> bool:
    """Whether the step writes instances of other ranks."""
    copy_program = s.step.program.copy_program
    if copy_program is not None:
        return bool(s.push) and param == copy_program.destination
    return any(isinstance(op, Store) and op.to == "holders" and op.param == param for op in walk(s.step.program.body))


def check_network(wiring: Wiring, steps: tuple[StepPlan, ...], topology: Topology) -> None:
    """Raises:
    TilelinkError: TL330, a step that reads from other ranks, or stores to them what is in registers.
    """
    for s in steps:
        axis = topology.axis(s.axis)
        if axis.reach != "network" or axis.size == 1:
            continue
        copy_program = s.step.program.copy_program
        if copy_program is not None and reads_remote(
            s, copy_program.source, wiring.tensor(s.step.binding(copy_program.source).tensor)
        ):
            raise _refused(
                s.step.loc,
                f"`{s.path}` pulls from ranks that are reached over a network only",
                "let it push (push=True)",
            )
        if copy_program is not None and s.into is not None and crosses(s, copy_program.destination):
            raise _refused(
                s.step.loc,
                f"`{s.path}` pushes tiles of `{s.into}` out of registers to ranks that are reached over a network only",
                "give it workers of its own, which put what lies in memory: sms(2, push=True)",
            )
        for op in walk(s.step.program.body) if copy_program is None else ():
            if isinstance(op, Store) and crosses(s, op.param):
                raise _refused(
                    op.loc,
                    f"`{s.path}` stores to ranks that are reached over a network only",
                    "store the tile, and let a copy program of its own push it",
                )


def _refused(loc: Loc, message: str, hint: str) -> TilelinkError:
    why = "a network takes puts: contiguous memory of this rank, copied to another"
    return TilelinkError("TL330", message, loc=loc, why=why, hint=hint)
