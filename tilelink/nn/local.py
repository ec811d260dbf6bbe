"""This rank's part of parameters that are DTensors, at less cost to the host than torch's own way to it and back."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tilelink.nn import native

_make = inspect.unwrap(DTensor.__new__)
"""Without what keeps torch.compile from looking into it, and without `__init__`, which does nothing: a third of the time."""


class Whole:
    """What a gradient of a rank's part becomes: a gradient of the parameter, which lies as that does.

    torch's `to_local` works out for each gradient what the parameter's spec says already. And autograd takes a DTensor over as
    the parameter's `grad`, memory and all, whoever has that memory too: a gradient that is not `fresh`, made for this one
    alone, is copied.
    """

    __slots__ = ("_fresh", "_spec", "_stride", "part")

    def __init__(self, parameter: Any, fresh: bool = True) -> None:
        apart = isinstance(parameter, DTensor)
        self.part: torch.Tensor = parameter._local_tensor if apart else parameter
        self._spec: Any = parameter._spec if apart else None
        self._stride, self._fresh = self.part.stride(), fresh

    def gradient(self, grad: torch.Tensor) -> torch.Tensor:
        spec = self._spec
        if spec is None:
            return grad
        again = torch.is_grad_enabled()  # it may be differentiated again
        if not self._fresh and not again:
            grad = grad.clone(memory_format=torch.contiguous_format)
        if again or grad.stride() != self._stride:
            shape: Any = {"shape": spec.shape, "stride": spec.stride}
            return DTensor.from_local(grad, spec.mesh, spec.placements, run_check=False, **shape)
        return _make(DTensor, grad, spec, requires_grad=False)


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Any, fresh: bool) -> torch.Tensor:
        ctx.fresh = fresh
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(parameter)  # whose versions torch counts, as it does not those of the part
        part = Whole(parameter).part
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None if grad is None else Whole(ctx.saved_tensors[0], ctx.fresh).gradient(grad), None


class _Copied(torch.autograd.Function):
    """A part whose gradient is copied in compiled functions: two copies of one gradient, of different parts, stay two."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(part)
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _copy(grad, *ctx.saved_tensors)


@torch.library.custom_op("tilelink::copy_of_gradient", mutates_args=())
def _copy(grad: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    del of  # tells copies apart
    return grad.clone(memory_format=torch.contiguous_format)


@_copy.register_fake
def _(grad: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    del of
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def local(x: Any) -> Any:
    """What this rank has of `x`, if that is a DTensor; else `x`."""
    return x.to_local() if isinstance(x, DTensor) else x


def own(parameter: Any, *, fresh: bool = False) -> Any:
    """`local` of a parameter, which is split or on every rank alike, and whose gradient lies as it does.

    `fresh`: nothing else has that gradient, as of a matrix that is multiplied by.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    if torch.compiler.is_compiling():
        return parameter.to_local() if fresh else _Copied.apply(parameter.to_local())
    if not (torch.is_grad_enabled() and parameter.requires_grad):
        return parameter._local_tensor
    if (compiled := native.steps()) is not None:
        whole = Whole(parameter)
        return compiled.part(parameter, whole.part, whole)  # which sees whose memory a gradient is
    return _Part.apply(parameter, fresh)
