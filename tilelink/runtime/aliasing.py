"""What a call writes: arguments that programs write to, and `out=`. Nobody else's memory, and nothing that has gradients.

The proof takes for granted that tensors of a call share memory only where all of them are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
from torch.autograd.graph import increment_version

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.program import Move, Store, walk
from tilelink.runtime.cache import Recent
from tilelink.runtime.memory import extent

APART_KEPT = 1024
"""Places of a call's tensors that are known to share no memory, for each kind of call."""


def writes_of(plan: Plan) -> tuple[tuple[int, str], ...]:
    """The arguments that programs write to, by number and name."""
    found = {
        s.step.binding(op.param).tensor
        for s in plan.steps
        for op in walk(s.step.program.body)
        if isinstance(op, (Store, Move))
    }
    return tuple((k, name) for k, name in enumerate(plan.wiring.arguments) if name in found)


@dataclass(slots=True, eq=False)
class Written:
    """What calls of one kind write.

    `arguments`: their number. `stored`: as of `writes_of`; none of the unfused form. `spans`: bytes from the first to the
    last, of each argument and then of each result. `apart`: addresses of tensors that were looked at: shapes and strides
    are those of the kind, so nothing else decides whether they share memory.
    """

    operator: str
    loc: Loc
    arguments: int
    stored: tuple[tuple[int, str], ...]
    spans: tuple[int, ...]
    apart: Recent[bool] = field(default_factory=lambda: Recent[bool](APART_KEPT))

    def refused(self, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor | None]) -> TilelinkError | None:
        """TL240, TL244 to TL246: why a call must not write what it would; None: it may."""
        every = (*tensors, *outs)
        for k, t in self._targets(every):
            if t.requires_grad and torch.is_grad_enabled():
                return self._wrong(
                    "TL245",
                    k,
                    "is written to and requires a gradient",
                    "autograd does not see what an operator does, so gradients would be those of the values before",
                    "call it under torch.no_grad(), or take a layer of tilelink.nn, which has gradients",
                )
        begins = tuple([0 if t is None else t.data_ptr() for t in every])
        if self.apart.get(begins):
            return None
        wrong = self._folded_or_shared(every, begins)
        if wrong is None:
            self.apart[begins] = True
        return wrong

    def changed(self, tensors: Sequence[torch.Tensor], outs: Sequence[torch.Tensor | None]) -> None:
        """Autograd hears of what has been written, so that it does not use what it has saved of it."""
        for _, t in self._targets((*tensors, *outs)):
            increment_version(t)

    def _targets(self, every: Sequence[torch.Tensor | None]) -> list[tuple[int, torch.Tensor]]:
        """What is written of arguments and results, with its number among them."""
        numbers = [*(k for k, _ in self.stored), *range(self.arguments, len(every))]
        return [(k, t) for k in numbers if (t := every[k]) is not None]

    def _folded_or_shared(self, every: Sequence[torch.Tensor | None], begins: tuple[int, ...]) -> TilelinkError | None:
        ends = [begin + span for begin, span in zip(begins, self.spans, strict=False)]
        for k, t in self._targets(every):
            if k < self.arguments and not _simple(t):
                return self._wrong(
                    "TL246",
                    k,
                    "is written to, and some of its elements share memory",
                    "an expanded or windowed tensor has fewer places than elements, and tiles write theirs in any order",
                    "pass a copy of it (`.contiguous()`)",
                )
            for j, other in enumerate(every):
                # Most lie apart as a whole, which two numbers tell.
                close = j != k and begins[j] < ends[k] and begins[k] < ends[j]
                if close and other is not None and np.shares_memory(_seen(t), _seen(other)):
                    return self._shared(k, j)
        return None

    def _label(self, k: int) -> str:
        return f"argument {k + 1}" if k < self.arguments else f"`out` {k + 1 - self.arguments}"

    def _shared(self, k: int, j: int) -> TilelinkError:
        name, what = dict(self.stored).get(k), f"shares memory with {self._label(j)}"
        if name is None:
            why = (
                "results are written during the call, and nothing says what of the other tensor is used before or after"
            )
            return self._wrong("TL244", k, what, why, "pass memory of its own, or none")
        why = f"programs write to `{name}` during the call, and nothing says when it is read under another name"
        return self._wrong("TL240", k, what, why, "pass a copy of one of them")

    def _wrong(self, code: str, k: int, what: str, why: str, hint: str) -> TilelinkError:
        return TilelinkError(code, f"{self._label(k)} of `{self.operator}` {what}", loc=self.loc, why=why, hint=hint)


def span(t: torch.Tensor | None) -> int:
    """Bytes from the first to the last."""
    first, end = (0, 0) if t is None else extent(t)
    return end - first


def _simple(t: torch.Tensor) -> bool:
    """Whether each element has a place of its own, as in all views that torch makes by slicing and transposing."""
    if t.is_contiguous():
        return True
    reach = 0
    for stride, length in sorted(zip(t.stride(), t.shape, strict=True)):
        if length > 1:
            if stride <= reach:
                return False
            reach += stride * (length - 1)
    return True


def _seen(t: torch.Tensor) -> np.ndarray:
    """A tensor's addresses for numpy, which reads nothing there: they may be a GPU's."""
    item = t.element_size()
    places = {
        "version": 3,
        "typestr": f"|V{item}",
        "shape": tuple(t.shape),
        "strides": tuple(s * item for s in t.stride()),
        "data": (t.data_ptr(), True),
    }
    return np.asarray(SimpleNamespace(__array_interface__=places))
