# pyright: reportPrivateImportUsage=false
"""A backend of torch.compile that runs Inductor's passes behind autograd, and then the graph itself: no C++ is compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import compile_fx
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.virtualized import V


def inner(graph: torch.fx.GraphModule, inputs: Any, **_: Any) -> Any:
    """In the place of Inductor's lowering."""
    with V.set_fake_mode(detect_fake_mode(inputs)):
        post_grad_passes(graph, is_inference=False)
    graph.recompile()
    return make_boxed_func(graph.forward)


passes = partial(compile_fx, inner_compile=inner)
