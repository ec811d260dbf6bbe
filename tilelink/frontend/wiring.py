"""Turns the records of a finished trace into an `ir.Wiring`: names are given last, when all tensors are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilelink.errors import Loc
from tilelink.frontend.binding import Slot
from tilelink.frontend.symbolic import LogicalAxis, Record
from tilelink.frontend.wording import numbered
from tilelink.ir.formula import Sym, substitute, symbols
from tilelink.ir.program import (
    At,
    Holder,
    Load,
    Move,
    Notify,
    Op,
    Store,
    TileProgram,
    Wait,
    rewritten,
)
from tilelink.ir.ring import around, distance
from tilelink.ir.schedule import Placement
from tilelink.ir.shape import RANK_AXIS, Axis, Signature
from tilelink.ir.wiring import Binding, Step, TensorAxis, TensorDecl, ViewAxis, Wiring


@dataclass(frozen=True, slots=True)
class PendingView:
    """A parameter of a step over a record; `tables`: the records of the step's other parameters, by name."""

    param: str
    record: Record
    slots: tuple[Slot, ...]
    tables: Mapping[str, Record]
    is_local: Callable[[Axis | None, LogicalAxis], bool]


@dataclass(frozen=True, slots=True)
class PendingStep:
    path: str
    program: TileProgram
    views: tuple[PendingView, ...]
    constants: tuple[tuple[str, bool | int | float | str], ...]
    loc: Loc
    shipped: Placement | None
    axis: str | None
    """None: it speaks of no ranks, and goes with those around it."""


def assemble(
    *,
    name: str,
    signature: Signature,
    sizes: Sequence[str],
    records: Sequence[Record],
    steps: Sequence[PendingStep],
    arguments: Sequence[Record],
    results: Sequence[Record],
    loc: Loc,
    axes: Mapping[str, int],
) -> Wiring:
    """The frozen form of a trace. Declared tensors that nobody uses or returns are left out. `axes`: how many ranks there are
    along each."""
    kept = [r for r in records if r.origin != "declared" or r.uses or r in results]
    names = _names(kept, set(sizes))
    decls = tuple(_decl(r, names) for r in kept)
    used = {s for d in decls for a in d.axes for s in symbols(a.size)}
    return Wiring(
        name=name,
        signature=signature,
        sizes=tuple(s for s in sizes if s in used),
        tensors=decls,
        steps=tuple(_step(s, names, a, axes[a]) for s, a in zip(steps, _axes_of(steps, tuple(axes)), strict=True)),
        arguments=tuple(names[r] for r in arguments),
        results=tuple(names[r] for r in results),
        loc=loc,
        axes=tuple(axes),
    )


def _axes_of(steps: Sequence[PendingStep], axes: Sequence[str]) -> list[str]:
    """The axis of ranks of each step. One that speaks of none goes with who takes what it makes, for they share its tiles;
    else with who makes what it takes, of its first tensor if they differ."""
    found: list[str | None] = [s.axis for s in steps]

    def around(k: int, mine: str, theirs: str) -> Iterator[str]:
        for record in _records(steps[k], mine):
            for other, axis in zip(steps, found, strict=True):
                if axis is not None and record in _records(other, theirs):
                    yield axis

    while None in found:
        left = [k for k, axis in enumerate(found) if axis is None]
        for mine, theirs, order in (("out", "in", reversed(left)), ("in", "out", iter(left))):
            for k in order:
                found[k] = found[k] or next(around(k, mine, theirs), None)
        if [k for k, axis in enumerate(found) if axis is None] == left:
            found = [axis or axes[0] for axis in found]
    return [axis for axis in found if axis is not None]


def _records(step: PendingStep, role: str) -> list[Record]:
    """The tensors that a step takes, or makes, in order."""
    return [v.record for v in step.views if step.program.param(v.param).role == role]


def _names(records: Sequence[Record], taken: set[str]) -> dict[Record, str]:
    """The name that each record wishes for, where nobody else does; else the longer one, numbered if need be."""
    wishes = Counter(r.wish for r in records)
    names: dict[Record, str] = {}
    used = set(taken)
    for record in sorted(records, key=lambda r: r.origin != "argument"):
        alone = wishes[record.wish] == 1 or record.origin == "argument"
        wish = record.wish if alone and record.wish not in used else record.long
        name = numbered(wish, used)
        used.add(name)
        names[record] = name
    return names


def _decl(record: Record, names: Mapping[Record, str]) -> TensorDecl:
    axes = (
        TensorAxis(a.name, a.size, names[a.split] if isinstance(a.split, Record) else a.split, a.unit, a.over)
        for a in record.axes
    )
    return TensorDecl(
        name=names[record],
        axes=tuple(axes),
        dtype=record.dtype,
        origin=record.origin,
        contract=record.contract,
        owner_map=record.owner_map,
        loc=record.loc,
    )


def _step(step: PendingStep, names: Mapping[Record, str], axis: str, ranks: int) -> Step:
    bindings = tuple(Binding(v.param, names[v.record], tuple(_view(v, s, names) for s in v.slots)) for v in step.views)
    program = with_distances(step.program, {n: v for n, v in step.constants if isinstance(v, int)}, ranks)
    return Step(step.path, program, bindings, step.constants, step.loc, step.shipped, axis)


def _view(view: PendingView, slot: Slot, names: Mapping[Record, str]) -> ViewAxis:
    declared = slot.declared
    if slot.at is None:
        return ViewAxis(slot.dim, None, False, True, RANK_AXIS)
    split = None if declared is None else declared.split
    if split is not None and split in view.tables:
        split = names[view.tables[split]]
    # Whether an axis is walked singly is the program's word, whatever an operator's signature calls it.
    local = view.is_local(declared, view.record.axes[slot.at])
    return ViewAxis(slot.dim, slot.at, local, declared is not None and declared.unit, split)


def with_distances(program: TileProgram, constants: Mapping[str, int], ranks: int) -> TileProgram:
    """The program in which the coordinates of ranks are as far from this rank's as the step's constants and the number of
    ranks say."""

    def known(at: At) -> At:
        if not at.coordinate or at.expr.formula is None:
            return at
        formula = substitute(at.expr.formula, constants)
        found = distance(formula, ranks)
        return replace(at, expr=replace(at.expr, formula=formula if found is None else around(Sym(found[0]), found[1])))

    def change(op: Op) -> Op:
        if isinstance(op, (Holder, Load, Store, Move, Notify, Wait)) and op.index is not None:
            op = replace(op, index=tuple(known(e) if isinstance(e, At) else e for e in op.index))
        if isinstance(op, (Notify, Wait)) and op.peer is not None:
            op = replace(op, peer=known(op.peer))
        return op

    body = rewritten(program.body, change)
    return program if body == program.body else replace(program, body=body)
