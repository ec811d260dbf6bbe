"""What tables passed as arguments promise, looked at in debug mode before a call.

What a program makes of them, and tables that programs make themselves, are checked where they are used, by the kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.plan import Plan
from tilelink.ir.shape import evaluated


def broken(plan: Plan, tensors: Sequence[torch.Tensor], constants: Mapping[str, Any]) -> TilelinkError | None:
    """TL473 for the first argument that does not keep its contract; None if all do. Waits for the device.

    Args:
        constants: those of the call, which contracts may name besides its sizes.
    """
    sizes = {**constants, **dict(plan.sizes)}
    for name, table in zip(plan.wiring.arguments, tensors, strict=True):
        decl = plan.wiring.tensor(name)
        if decl.contract is None:
            continue
        if decl.contract.of is not None:
            why = _below(table, evaluated(decl.contract.of, lambda dim: sizes[dim.name]))
        else:
            why = _offsets(plan, name, table) if decl.contract.kind == "offsets" else _permutation(table)
        if why is not None:
            return TilelinkError(
                "TL473",
                f"argument `{name}` of `{plan.wiring.name}` is no `{decl.contract}`: {why}",
                loc=plan.wiring.loc,
                why="a plan takes the contract of a table for granted",
                hint="look at what makes this table",
            )
    return None


def _offsets(plan: Plan, name: str, table: torch.Tensor) -> str | None:
    values = table.flatten().tolist()
    sizes = [a.size for t in plan.wiring.tensors for a in t.axes if a.split == name]
    most = int(F.evaluate(sizes[0], plan.env(0))) if sizes else None
    if not values or values[0] != 0:
        return f"it begins with {values[0] if values else 'nothing'}, not with 0"
    for at, (before, after) in enumerate(itertools.pairwise(values)):
        if after < before:
            return f"entry {at + 1} is {after}, after {before}"
    return (
        f"it ends with {values[-1]}, and there is room for {most}" if most is not None and values[-1] > most else None
    )


def _permutation(table: torch.Tensor) -> str | None:
    values = table.flatten()
    values = values[values != -1]
    outside = values[(values < 0) | (values >= table.numel())]
    if outside.numel():
        return f"{int(outside[0])} is not below {table.numel()}"
    times = torch.bincount(values.long(), minlength=1)
    return f"{int(times.argmax())} is there {int(times.max())} times" if int(times.max()) > 1 else None


def _below(table: torch.Tensor, most: int) -> str | None:
    outside = table[(table < -1) | (table >= most)]
    return f"{int(outside.flatten()[0])} is not below {most}" if outside.numel() else None
