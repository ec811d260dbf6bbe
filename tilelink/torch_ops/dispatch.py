"""How a gradient is made known to torch's dispatcher: one kernel under its key for autograd, and nothing around the others.

`torch.library.register_autograd` does the same for every form of an operator that there is; what it does around each call costs
the host more than a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import _C

Below = Callable[..., Any]
"""`below(keyset, *arguments)`: what runs beneath autograd, by the overload's `redispatch`."""
Keep = Callable[..., None]
"""`keep(ctx, arguments, results)`: saves what gradients need."""
Backward = Callable[..., tuple[Any, ...]]
"""`backward(ctx, *gradients)`: the gradient of each argument. `ctx.wanted`: which of them are asked for."""


def differentiable(below: Below, keep: Keep, backward: Backward) -> Callable[..., Any]:
    """A kernel for `Library.impl(name, …, "Autograd", with_keyset=True)`.

    Among its arguments, and among the results of `below`, are tensors, and what is none; tensors in lists have no gradients.
    """

    def beneath(keyset: Any, args: tuple[Any, ...]) -> Any:
        with _C._AutoDispatchBelowAutograd():
            return below(keyset & _C._after_autograd_keyset, *args)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, *args: Any) -> Any:
            found = beneath(keyset, args)
            keep(ctx, args, found)
            return found

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            ctx.wanted = ctx.needs_input_grad[1:]
            return (None, *backward(ctx, *gradients))

    def kernel(keyset: Any, *args: Any) -> Any:
        if _C.is_grad_enabled() and _C._any_requires_grad(*args):
            return Differentiable.apply(keyset, *args)
        return beneath(keyset, args)

    return kernel
