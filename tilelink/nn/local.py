"""This rank's part of parameters that are DTensors, at less cost to the host than torch's own way to it and back."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor


class Whole:
    """What a gradient of a rank's part becomes: a gradient of the parameter, which lies as that does.

    torch's `to_local` works out for each gradient what the parameter's spec says already.
    """

    __slots__ = ("_spec", "_stride", "part")

    def __init__(self, parameter: Any) -> None:
        apart = isinstance(parameter, DTensor)
        self.part: torch.Tensor = parameter._local_tensor if apart else parameter
        self._spec: Any = parameter._spec if apart else None
        self._stride = self.part.stride()

    def gradient(self, grad: torch.Tensor) -> torch.Tensor:
        spec = self._spec
        if spec is None:
            return grad
        if grad.stride() != self._stride or torch.is_grad_enabled():  # it may be differentiated again
            shape: Any = {"shape": spec.shape, "stride": spec.stride}
            return DTensor.from_local(grad, spec.mesh, spec.placements, run_check=False, **shape)
        # Its __init__ does nothing, at three times the time.
        return DTensor.__new__(DTensor, grad, spec, requires_grad=False)


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Any) -> torch.Tensor:
        ctx.whole = Whole(parameter)
        return ctx.whole.part.view_as(ctx.whole.part)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.whole.gradient(grad)


def local(x: Any) -> Any:
    """What this rank has of `x`, if that is a DTensor; else `x`."""
    return x.to_local() if isinstance(x, DTensor) else x


def own(parameter: Any) -> Any:
    """`local` of a parameter, which is split or on every rank alike, and whose gradient lies as it does."""
    if not isinstance(parameter, DTensor) or torch.compiler.is_compiling():
        return local(parameter)
    if not (torch.is_grad_enabled() and parameter.requires_grad):
        return parameter._local_tensor
    return _Part.apply(parameter)
