"""Arguments that programs write to: the proof takes for granted that they share memory with no other tensor of the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.program import Move, Store, walk
from tilelink.runtime.memory import extent


def written(plan: Plan) -> tuple[int, ...]:
    """Which arguments programs write to, by number."""
    stored = {
        s.step.binding(op.param).tensor
        for s in plan.steps
        for op in walk(s.step.program.body)
        if isinstance(op, (Store, Move))
    }
    return tuple(k for k, name in enumerate(plan.wiring.arguments) if name in stored)


def sharing(
    plan: Plan, numbers: Sequence[int], tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor | None]
) -> TilelinkError | None:
    """An argument of `numbers`, which are written to, that shares memory with another one or with a result; None: none does."""
    others = [(f"argument {k + 1}", t) for k, t in enumerate(tensors)]
    others += [(f"`out` {k + 1}", t) for k, t in enumerate(outs) if t is not None]
    for k in numbers:
        for what, t in (o for n, o in enumerate(others) if n != k):
            if _share(tensors[k], t):
                return TilelinkError(
                    "TL240",
                    f"argument {k + 1} of `{plan.wiring.name}` shares memory with {what}",
                    loc=plan.wiring.loc,
                    why=f"programs write to `{plan.wiring.arguments[k]}` during the call, and nothing says when it is read under "
                    "another name",
                    hint="pass a copy of one of them",
                )
    return None


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    (first, end), (begin, last) = extent(one), extent(other)
    if end <= begin or last <= first:
        return False
    return np.shares_memory(np.asarray(_Seen(one)), np.asarray(_Seen(other)))


class _Seen:
    """A tensor's addresses for numpy, which reads nothing there: they may be a GPU's."""

    def __init__(self, t: torch.Tensor) -> None:
        item = t.element_size()
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": f"|V{item}",
            "shape": tuple(t.shape),
            "strides": tuple(s * item for s in t.stride()),
            "data": (t.data_ptr(), True),
        }
