"""The tensor-parallel MLP: two linear layers with one all-gather and one reduce-scatter, both behind the products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn

from tilelink.nn.layer import Layer
from tilelink.nn.linear import ColumnParallelLinear, RowParallelLinear
from tilelink.nn.replicated import call_summed

Activation = Callable[[torch.Tensor], torch.Tensor]


class ParallelMLP(nn.Module):
    """`down(activation(up(x)))`, or with a gate `down(activation(gate(x)) * up(x))` (arXiv:2002.05202).

    Args:
        features: of the activations between layers.
        hidden: of the whole layer between, a multiple of the ranks.
        bias: whether the layers have one.
        gated: whether there is a gate; it shares the all-gather with `up`, whose weight holds both, the gate's first.
        activation: of the gate, or of `up`. Of a module with parameters every rank has all, and their gradients are summed.
        group: the ranks, as of `ColumnParallelLinear`.
        dim: the axis of activations that is split over the ranks.
        sequence_parallel: as of `ColumnParallelLinear`.
        device: of the parameters.
        dtype: of the parameters.

    Shapes: `[…, S/R, …, features]` to the same.

    Raises:
        TilelinkError: those of `ColumnParallelLinear`.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        bias: bool = True,
        *,
        gated: bool = False,
        activation: Activation = nn.functional.gelu,
        group: Any = None,
        dim: int = -2,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        up, down = nn.Linear(features, hidden, **made), nn.Linear(hidden, features, **made)
        gate = nn.Linear(features, hidden, **made) if gated else None
        self._take(up, down, gate, activation, {"group": group, "dim": dim, "sequence_parallel": sequence_parallel})

    @classmethod
    def of(
        cls,
        up: nn.Linear,
        down: nn.Linear,
        gate: nn.Linear | None = None,
        *,
        activation: Activation = nn.functional.gelu,
        group: Any = None,
        dim: int = -2,
        sequence_parallel: bool = True,
    ) -> Self:
        """This rank's part of layers that every rank has."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(up, down, gate, activation, {"group": group, "dim": dim, "sequence_parallel": sequence_parallel})
        return made

    def _take(
        self, up: nn.Linear, down: nn.Linear, gate: nn.Linear | None, activation: Activation, how: dict[str, Any]
    ) -> None:
        self.gated, self.activation = gate is not None, activation
        self.up = (
            ColumnParallelLinear.of(up, **how)
            if gate is None
            else ColumnParallelLinear.of_several({"gate": gate, "up": up}, **how)
        )
        self.down = RowParallelLinear.of(down, **how)

    def forward(self, x: torch.Tensor, length: int | None = None) -> torch.Tensor:
        """Apply it; collective.

        Args:
            x: this rank's part, `[…, S/R, …, features]`.
            length: the size `S` of the split axis over all ranks, where their parts differ.

        Raises:
            TilelinkError: those of the layers.
        """
        inner = self.up(x, length)
        if self.gated:
            gate, inner = inner.chunk(2, -1)
            return self.down(self._activated(gate) * inner)
        return self.down(self._activated(inner))

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        module = self.activation
        if isinstance(module, nn.Module) and not isinstance(module, Layer) and any(True for _ in module.parameters()):
            return call_summed(module, self.up.group, x)  # of this rank's features
        return module(x)
