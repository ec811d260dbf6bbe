"""Turns the records of a finished trace into an `ir.Wiring`: names are given last, when all tensors are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilelink.errors import Loc
from tilelink.frontend.binding import Slot
from tilelink.frontend.symbolic import LogicalAxis, Record
from tilelink.ir.formula import symbols
from tilelink.ir.program import TileProgram
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
) -> Wiring:
    """The frozen form of a trace. Declared tensors that nobody uses are left out."""
    kept = [r for r in records if r.origin != "declared" or r.uses]
    names = _names(kept, set(sizes))
    decls = tuple(_decl(r, names) for r in kept)
    used = {s for d in decls for a in d.axes for s in symbols(a.size)}
    return Wiring(
        name=name,
        signature=signature,
        sizes=tuple(s for s in sizes if s in used),
        tensors=decls,
        steps=tuple(_step(s, names) for s in steps),
        arguments=tuple(names[r] for r in arguments),
        results=tuple(names[r] for r in results),
        loc=loc,
    )


def _names(records: Sequence[Record], taken: set[str]) -> dict[Record, str]:
    """The name that each record wishes for, where nobody else does; else the longer one, numbered if need be."""
    wishes: dict[str, int] = {}
    for record in records:
        wishes[record.wish] = wishes.get(record.wish, 0) + 1
    names: dict[Record, str] = {}
    used = set(taken)
    for record in sorted(records, key=lambda r: r.origin != "argument"):
        alone = wishes[record.wish] == 1 or record.origin == "argument"
        wish = record.wish if alone and record.wish not in used else record.long
        name, count = wish, 1
        while name in used:
            count += 1
            name = f"{wish}_{count}"
        used.add(name)
        names[record] = name
    return names


def _decl(record: Record, names: Mapping[Record, str]) -> TensorDecl:
    axes = tuple(TensorAxis(a.name, a.size, _split(a.split, names), a.unit) for a in record.axes)
    return TensorDecl(
        name=names[record],
        axes=axes,
        dtype=record.dtype,
        origin=record.origin,
        contract=record.contract,
        owner_map=record.owner_map,
        loc=record.loc,
    )


def _split(split: str | Record | None, names: Mapping[Record, str]) -> str | None:
    return names[split] if isinstance(split, Record) else split


def _step(step: PendingStep, names: Mapping[Record, str]) -> Step:
    bindings = tuple(Binding(v.param, names[v.record], tuple(_view(v, s, names) for s in v.slots)) for v in step.views)
    return Step(step.path, step.program, bindings, step.constants, step.loc, step.shipped)


def _view(view: PendingView, slot: Slot, names: Mapping[Record, str]) -> ViewAxis:
    declared = slot.declared
    if slot.at is None:
        return ViewAxis(slot.dim, None, False, True, RANK_AXIS)
    axis = view.record.axes[slot.at]
    word = None if declared is None else declared.split
    split = names[view.tables[word]] if word is not None and word in view.tables else word
    # What `...` stands for is left whole, whatever an operator's signature calls it.
    unit = declared is not None and (declared.unit or axis.unit)
    return ViewAxis(slot.dim, slot.at, view.is_local(declared, axis), unit, split)
