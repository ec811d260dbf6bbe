"""How a gradient is made known to torch's dispatcher: one kernel under its key for autograd, and nothing around the others.

`torch.library.register_autograd` does the same for every form of an operator that there is; what it does around each call costs
the host more than a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _C
from torch._C._autograd import _profiler_enabled
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

Below = Callable[..., Any]
"""`below(*arguments)`: what runs beneath autograd."""
Keep = Callable[..., None]
"""`keep(ctx, arguments, results)`: saves what gradients need."""
Backward = Callable[..., tuple[Any, ...]]
"""`backward(ctx, *gradients)`: the gradient of each argument. `ctx.wanted`: which of them are asked for."""


def function_of(keep: Keep, backward: Backward) -> type[torch.autograd.Function]:
    """`apply(below, *arguments)` of what it gives: runs `below`, and autograd keeps what it gave with its gradient.

    Among arguments and results are tensors, and what is none; tensors in lists have no gradients.
    """

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, below: Below, *args: Any) -> Any:
            found = below(*args)
            keep(ctx, args, found)
            return found

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            ctx.wanted = ctx.needs_input_grad[1:]
            return (None, *backward(ctx, *gradients))

    return Differentiable


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Its `apply` for arguments that are plain (`is_plain`): without looking for transforms of torch.func once more."""
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


def kernel_of(redispatch: Callable[..., Any], apply: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel for `Library.impl(name, …, "Autograd", with_keyset=True)`.

    Args:
        redispatch: the overload's, `redispatch(keyset, *arguments)`.
        apply: that of a `function_of`.
    """

    def kernel(keyset: Any, *args: Any) -> Any:
        def below(*args: Any) -> Any:
            with _C._AutoDispatchBelowAutograd():
                return redispatch(keyset & _C._after_autograd_keyset, *args)

        refuse_tangents(args)
        if _C.is_grad_enabled() and _C._any_requires_grad(*args):
            return apply(below, *args)
        return below(*args)

    return kernel


def refuse_tangents(args: Sequence[Any]) -> None:
    """Raises NotImplementedError where forward-mode differentiation would go on without what goes through an operator."""
    if forward_ad._current_level < 0 or torch.compiler.is_compiling():  # torch.func.jvp has a level as well
        return
    for t in args:
        if isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None:
            raise NotImplementedError(
                "operators of tilelink have gradients, and no forward-mode derivatives (torch.func.jvp)"
            )


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether torch's dispatcher would only hand these arguments on: nobody traces, transforms, casts or watches a call."""
    if torch.compiler.is_compiling():
        return False
    for t in tensors:
        if type(t) not in _PLAIN or t.is_meta:
            return False
    return not (
        _C._is_any_autocast_enabled()
        or _C._len_torch_dispatch_stack()
        or _C._len_torch_function_stack()
        or peek_interpreter_stack() is not None
        or _C._get_tracing_state() is not None
        or _profiler_enabled()
        or forward_ad._current_level >= 0
    )


def is_readable(x: torch.Tensor) -> bool:
    """Whether the host can look at values: nobody traces, transforms or records what is done with them."""
    plain = type(x) is torch.Tensor and not _C._len_torch_dispatch_stack() and peek_interpreter_stack() is None
    return plain and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
