"""What is taken on trust: the values of tables, as their contracts have it, and whatever data decides beyond that (G13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilelink.ir.plan import Plan
from tilelink.ir.program import Gather, Load, Store, walk
from tilelink.ir.wiring import TensorDecl
from tilelink.mapping.verify.reach import Laid


def contracts(plan: Plan, laid: Mapping[str, Laid]) -> tuple[str, ...]:
    """One sentence for each thing that the proof assumes of data, and that debug mode can check on the device."""
    said = [*_tables(plan), *_splits(plan), *(s for step in laid.values() for s in _vectors(step))]
    return tuple(dict.fromkeys(said))


def _tables(plan: Plan) -> Iterator[str]:
    """Every use of a tensor whose contract is written in a signature."""
    for tensor in plan.wiring.tensors:
        if tensor.contract is not None:
            yield f"assumed for `{tensor.name}`: {_promise(tensor)}"


def _promise(tensor: TensorDecl) -> str:
    contract = tensor.contract
    assert contract is not None
    if contract.kind == "offsets":
        return "its values begin at 0 and never fall (`offsets`)"
    if contract.kind == "permutation":
        return "no value stands there twice (`permutation`)"
    return f"every value is at least 0 and below {contract.of} (`{contract}`)"


def _splits(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        for g in step.grid:
            if g.kind == "table":
                yield f"assumed for `{g.table}`: `{step.path}` finds all of axis `{g.dim}` between its first and last value"


def _vectors(laid: Laid) -> Iterator[str]:
    for op in walk(laid.step.step.program.body):
        if isinstance(op, (Load, Store)) and any(isinstance(e, Gather) and not e.expr.positional for e in op.index):
            name = laid.tensor(op.param).name
            yield f"assumed for `{name}`: the positions that `{laid.step.path}` works out lie inside it, or are -1"


__all__ = ["contracts"]
