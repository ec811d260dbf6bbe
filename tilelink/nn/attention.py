"""Attention of which each rank has some heads, between linear layers that gather and scatter the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn

from tilelink.nn.fitting import width_of_heads
from tilelink.nn.groups import group_name, ranks_of
from tilelink.nn.linear import ColumnParallelLinear, RowParallelLinear, part_of, require_even

Rotate = Callable[[torch.Tensor], torch.Tensor]


class ParallelAttention(nn.Module):
    """Self-attention (arXiv:2205.05198): AG+GEMM for queries, keys and values, torch's attention, GEMM+RS.

    Args:
        features: of the activations between layers.
        heads: of queries, a multiple of the ranks.
        groups: heads of keys and values, a multiple of the ranks that divides `heads`; None: as many.
        bias: whether the linear layers have one.
        causal: whether a position sees no later one.
        rotate: what is done to queries and keys, `[…, heads/R, S, features/heads]`, for their positions.
        group: the ranks, as of `ColumnParallelLinear`.
        dim: the axis of activations that is the sequence and is split over the ranks.
        device: of the parameters.
        dtype: of the parameters.

    Shapes: `[…, S/R, …, features]` to the same; the axes but `dim` and the last are a batch.

    Attributes:
        inputs: its weight has this rank's heads of queries, then of keys, then of values.
        output: as of `RowParallelLinear`.

    Raises:
        TilelinkError: TL232 heads that cannot be split evenly, TL235 features or heads that do not fit one another; those
            of `ColumnParallelLinear`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        groups: int | None = None,
        bias: bool = True,
        *,
        causal: bool = True,
        rotate: Rotate | None = None,
        group: Any = None,
        dim: int = -2,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        groups = groups or heads
        width = width_of_heads(features, heads, groups)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        projections = [nn.Linear(features, n * width, bias, **made) for n in (heads, groups, groups)]
        self._take(projections, nn.Linear(heads * width, features, bias, **made), heads, causal, rotate, group, dim)

    @classmethod
    def of(
        cls,
        query: nn.Linear,
        key: nn.Linear,
        value: nn.Linear,
        output: nn.Linear,
        heads: int,
        *,
        causal: bool = True,
        rotate: Rotate | None = None,
        group: Any = None,
        dim: int = -2,
    ) -> Self:
        """This rank's heads of layers that every rank has."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take([query, key, value], output, heads, causal, rotate, group, dim)
        return made

    def _take(
        self,
        projections: list[nn.Linear],
        output: nn.Linear,
        heads: int,
        causal: bool,
        rotate: Rotate | None,
        group: Any,
        dim: int,
    ) -> None:
        name = group_name(group)
        self.width = width_of_heads(projections[0].out_features, heads)
        width_of_heads(projections[0].out_features, heads, projections[1].out_features // self.width)
        self.heads, self.causal, self.rotate, self.dim = heads, causal, rotate, dim
        ranks = ranks_of(name)
        for what, linear in zip(("heads", "groups"), projections, strict=False):
            require_even(what, linear.out_features // self.width, ranks)
        self.inputs = ColumnParallelLinear.of(projections[0], group=name, dim=dim)
        self.inputs.out_features = sum(p.out_features for p in projections)
        self.inputs.weight = nn.Parameter(
            torch.cat([part_of(p.weight, 0, name, "heads") for p in projections]).detach()
        )
        if projections[0].bias is not None:
            self.inputs.bias = nn.Parameter(
                torch.cat([part_of(p.bias, 0, name, "heads") for p in projections]).detach()
            )
        self.output = RowParallelLinear.of(output, group=name, dim=dim)
        self.lengths = [p.out_features // ranks for p in projections]
        self.inputs.joined = {"": dict(zip(("query", "key", "value"), self.lengths, strict=True))}

    def forward(self, x: torch.Tensor, length: int | None = None) -> torch.Tensor:
        """Apply it; collective.

        Args:
            x: this rank's part, `[…, S/R, …, features]`.
            length: the size `S` of the sequence over all ranks, where their parts differ.

        Raises:
            TilelinkError: those of the layers.
        """
        made = self.inputs(x, length).movedim(self.dim, -2)
        query, key, value = (
            t.unflatten(-1, (-1, self.width)).transpose(-2, -3) for t in made.split(self.lengths, dim=-1)
        )
        if self.rotate is not None:
            query, key = self.rotate(query), self.rotate(key)
        several = query.shape[-3] != key.shape[-3]
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal, enable_gqa=several)
        return self.output(seen.transpose(-2, -3).flatten(-2).movedim(-2, self.dim))
