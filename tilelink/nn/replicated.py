"""Modules that every rank holds alike and applies to its own part of the activations."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.func import functional_call

from tilelink.nn import functional as F
from tilelink.nn.groups import group_name
from tilelink.nn.layer import Layer


class Replicated(Layer):
    """A module whose parameters are the same on all ranks, such as a norm: their gradients are summed over the ranks.

    Without it each rank's gradient is that of its own rows, and the ranks' parameters drift apart.

    A reentrant checkpoint inside the module, which calls it once more by itself, is summed over no ranks: put it around, or use
    `use_reentrant=False`.

    Args:
        module: with no tensor-parallel layer inside.
        group: the ranks, as of `ColumnParallelLinear`.

    Raises:
        TilelinkError: those of `tilelink.nn.group_name`.
    """

    def __init__(self, module: nn.Module, *, group: Any = None) -> None:
        super().__init__()
        self.module, self.group = module, group_name(group)

    def forward(self, *args: Any, **given: Any) -> Any:
        """The module's own; its gradients are collective."""
        return call_summed(self.module, self.group, *args, **given)


def call_summed(module: nn.Module, group: str, *args: Any, **given: Any) -> Any:
    """A module's own call, whose gradients of its parameters are summed over the ranks."""
    parameters = dict(module.named_parameters())
    shared = F.replicated_all(tuple(parameters.values()), group=group)
    return functional_call(module, dict(zip(parameters, shared, strict=True)), args, given)
