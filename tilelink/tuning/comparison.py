"""Whether two results are the same but for rounding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TOLERANCE = {"bf16": 2e-2, "f16": 5e-3, "f32": 2e-3}
"""Relative Frobenius error that is still right. f32 is that of matrix units that round to tf32, where that is allowed."""


def tolerance(dtypes: Iterable[torch.dtype]) -> float:
    """How far two right results may be apart: each is as far from the exact one as the coarsest dtype of what is read and made
    allows, and seldom in opposite directions."""
    import torch

    from tilelink.runtime.memory import NAMES

    reals = [d for d in dtypes if d.is_floating_point]
    errors = [TOLERANCE.get(NAMES[d], max(TOLERANCE["f32"], torch.finfo(d).eps / 2)) for d in reals]
    return 1.5 * max(errors, default=0.0)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the Frobenius norms; 0 where there is nothing to compare, infinite where nothing was expected but something came."""
    difference, size = _norm(found.float() - expected), _norm(expected)
    if size == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / size


def _norm(t: Any) -> float:
    return float(t.norm())


def apart(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The largest relative error of several results; infinite where they cannot be compared.

    What is not finite has to be so in both, and something has to be finite.
    """
    if len(got) != len(want) or any(a.shape != b.shape for a, b in zip(got, want, strict=True)):
        return float("inf")
    return max((_one(a, b) for a, b in zip(got, want, strict=True)), default=0.0)


def _one(got: torch.Tensor, want: torch.Tensor) -> float:
    import torch

    if not want.dtype.is_floating_point:
        return 0.0 if torch.equal(got.long(), want.long()) else float("inf")
    known = want.float().isfinite()
    if not torch.equal(got.float().isfinite(), known) or (want.numel() and not known.any()):
        return float("inf")
    return relative_error(got.float()[known], want.float()[known])


def results(values: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What a call gives, one result or several."""
    import torch

    return (values,) if isinstance(values, torch.Tensor) else tuple(values)
