"""Where each tensor's local tensor lives on a rank: argument, result, workspace, or registers only."""

from __future__ import annotations

from collections.abc import Mapping

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.formula import Formula
from tilelink.ir.partition import here, part
from tilelink.ir.plan import Buffer, Layout, StepPlan
from tilelink.ir.program import Load, pointed, walk
from tilelink.ir.wiring import TensorDecl, Wiring
from tilelink.mapping.remote import crosses, reads_remote


def buffers_of(
    wiring: Wiring, steps: tuple[StepPlan, ...], layouts: Mapping[str, Layout], slots: int
) -> tuple[Buffer, ...]:
    """The memory of all tensors that have some.

    Raises:
        TilelinkError: TL305 a result that other ranks write, TL307 an argument whose layout a copy program cannot take.
    """
    found = tuple(b for t in wiring.tensors if (b := _buffer(wiring, t, steps, layouts, slots)) is not None)
    _check_moved(wiring, steps, layouts, frozenset(b.tensor for b in found if b.staged))
    return found


def _buffer(
    wiring: Wiring, tensor: TensorDecl, steps: tuple[StepPlan, ...], layouts: Mapping[str, Layout], slots: int
) -> Buffer | None:
    """Where the tensor's own instance lives, from who touches it; None: it lives in registers only."""
    touching = [(s, b.param) for s in steps for b in s.step.bindings if b.tensor == tensor.name]
    remote = any(reads_remote(s, p, tensor) for s, p in touching) or any(crosses(s, p) for s, p in touching)
    if tensor.origin == "argument":
        stage = _extents(tensor, exact=False) if remote and not layouts[tensor.name].symmetric else None
        return Buffer(tensor.name, _extents(tensor, exact=True), tensor.dtype, "argument", slots, stage, remote)
    if tensor.name in wiring.results:
        if remote:
            raise TilelinkError(
                "TL305",
                f"the result `{tensor.name}` would be written by other ranks",
                loc=wiring.loc,
                why="results are fresh tensors, which peers cannot reach",
                hint="schedule its last copy program as a pull (push=False)",
            )
        return Buffer(tensor.name, _extents(tensor, exact=True), tensor.dtype, "result")
    splits = any(a.split == tensor.name for t in wiring.tensors for a in t.axes)
    # Nobody knows what a program does with a pointer.
    raw = any(p in pointed(s.step.program) for s, p in touching)
    remote = remote or raw
    if not splits and not raw and not any(_in_memory(s, p) for s, p in touching):
        return None
    space = "symmetric" if remote else "device"
    return Buffer(tensor.name, _extents(tensor, exact=False), tensor.dtype, space, slots if remote else 1)


def _in_memory(s: StepPlan, param: str) -> bool:
    """Whether the step needs the tensor in memory, rather than in the registers of the worker that makes it."""
    binding = s.step.binding(param)
    copy_program = s.step.program.copy_program
    if s.library is not None:
        return True  # a function takes tensors, and fills one
    if copy_program is not None:
        return s.into is None or (bool(s.push) and param == copy_program.destination)
    loads = any(isinstance(op, Load) and op.param == param for op in walk(s.step.program.body))
    forwarded = binding.tensor in s.forwarded and all(v.axis is None or not v.unit for v in binding.view)
    return loads and not forwarded


def _extents(tensor: TensorDecl, exact: bool) -> tuple[Formula, ...]:
    """Elements per stored axis on a rank; a symmetric or workspace instance has whole parts, so that peers agree."""
    return tuple(
        (here(a.size, over=a.over) if exact else part(a.size, a.over)) if a.over is not None else F.of(a.size)
        for a in tensor.axes
        if not a.own_slice
    )


def _check_moved(
    wiring: Wiring, steps: tuple[StepPlan, ...], layouts: Mapping[str, Layout], staged: frozenset[str]
) -> None:
    """An argument that a copy program takes where it lies is one contiguous run; a staged one has contiguous rows."""
    for s in steps:
        name = s.step.moved_from
        if name is None:
            continue
        tensor = wiring.tensor(name)
        if tensor.origin != "argument":
            continue
        last = len([a for a in tensor.axes if not a.own_slice]) - 1
        layout = layouts[name]
        if layout.contiguous if name not in staged else layout.unit_axis == last:
            continue
        raise TilelinkError(
            "TL307",
            f"`{s.path}` moves the argument `{name}`, whose elements do not lie one after the other",
            loc=s.step.loc,
            why="it is moved from where it lies, in runs of memory from first to last element"
            if name not in staged
            else "peers read a copy of it, which is made of rows whose elements lie side by side in memory",
            hint=f"pass {name}.contiguous()",
        )
