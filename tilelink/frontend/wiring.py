"""Turns the records of a finished trace into an `ir.Wiring`: names are given last, when all tensors are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilelink.errors import Loc
from tilelink.frontend.symbolic import Record
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
from tilelink.ir.shape import Signature, around, distance
from tilelink.ir.wiring import Binding, Step, TensorAxis, TensorDecl, ViewAxis, Wiring


def assemble(
    *,
    name: str,
    signature: Signature,
    sizes: Sequence[str],
    records: Sequence[Record],
    steps: Sequence[Step],
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
        arguments=tuple(names[r.key] for r in arguments),
        results=tuple(names[r.key] for r in results),
        loc=loc,
        axes=tuple(axes),
    )


def _axes_of(steps: Sequence[Step], axes: Sequence[str]) -> list[str]:
    """The axis of ranks of each step. One that speaks of none goes with who takes what it makes, for they share its tiles;
    else with who makes what it takes, of its first tensor if they differ."""
    found = [s.axis for s in steps]
    tensors = [{"in": s.takes, "out": s.makes} for s in steps]

    def around(k: int, mine: str, theirs: str) -> Iterator[str]:
        for tensor in tensors[k][mine]:
            yield from (a for other, a in zip(tensors, found, strict=True) if a and tensor in other[theirs])

    while "" in found:
        left = [k for k, axis in enumerate(found) if not axis]
        for mine, theirs, order in (("out", "in", reversed(left)), ("in", "out", iter(left))):
            for k in order:
                found[k] = found[k] or next(around(k, mine, theirs), "")
        if [k for k, axis in enumerate(found) if not axis] == left:
            found = [axis or axes[0] for axis in found]
    return found


def _names(records: Sequence[Record], taken: set[str]) -> dict[str, str]:
    """The name that each record wishes for, where nobody else does; else the longer one, numbered if need be."""
    wishes = Counter(r.wish for r in records)
    names: dict[str, str] = {}
    used = set(taken)
    for record in sorted(records, key=lambda r: r.origin != "argument"):
        alone = wishes[record.wish] == 1 or record.origin == "argument"
        wish = record.wish if alone and record.wish not in used else record.long
        name = numbered(wish, used)
        used.add(name)
        names[record.key] = name
    return names


def _decl(record: Record, names: Mapping[str, str]) -> TensorDecl:
    axes = (
        TensorAxis(
            a.name, a.size.formula, names[a.split.key] if isinstance(a.split, Record) else a.split, a.unit, a.over
        )
        for a in record.axes
    )
    return TensorDecl(
        name=names[record.key],
        axes=tuple(axes),
        dtype=record.dtype,
        origin=record.origin,
        contract=record.contract,
        owner_map=record.owner_map,
        loc=record.loc,
    )


def _step(step: Step, names: Mapping[str, str], axis: str, ranks: int) -> Step:
    def view(axis: ViewAxis) -> ViewAxis:
        return replace(axis, split=names[axis.split]) if axis.split is not None and axis.split in names else axis

    bindings = tuple(Binding(b.param, names[b.tensor], tuple(map(view, b.view))) for b in step.bindings)
    program = with_distances(step.program, {n: v for n, v in step.constants if isinstance(v, int)}, ranks)
    return replace(step, program=program, bindings=bindings, axis=axis)


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
        if not isinstance(op, (Holder, Load, Store, Move, Notify, Wait)):
            return op
        index = op.index and tuple(known(e) if isinstance(e, At) else e for e in op.index)
        if index != op.index:
            op = replace(op, index=index)
        if isinstance(op, (Notify, Wait)) and op.peer is not None:
            op = replace(op, peer=known(op.peer))
        return op

    body = rewritten(program.body, change)
    return program if body == program.body else replace(program, body=body)
