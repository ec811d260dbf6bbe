"""Attention of which each rank has all heads of some positions, whose keys and values are gathered meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tilelink.nn import functional as F
from tilelink.nn.fitting import check_features, width_of_heads
from tilelink.nn.groups import group_name, rank_of, ranks_of
from tilelink.nn.replicated import Replicated
from tilelink.nn.rows import total_rows

Rotate = Callable[[torch.Tensor, int], torch.Tensor]


class SequenceParallelAttention(nn.Module):
    """Self-attention (arXiv:2503.20313, section 5): keys and values are gathered behind the scores, weights stay whole.

    For long sequences with few heads; `ParallelAttention` splits the weights instead. The backward pass is plain torch: it
    gathers keys and values again and has all scores of this rank's positions in memory.

    Args:
        features: of the activations.
        heads: of queries.
        groups: heads of keys and values, of which `heads` is a multiple; None: as many.
        bias: whether the linear layers have one.
        causal: whether a position sees no later one.
        rotate: what is done to queries and keys, `[…, heads, S/R, features/heads]`, given the first one's position.
        group: the ranks, as of `ColumnParallelLinear`.
        dim: the axis of activations that is the sequence and is split over the ranks.
        device: of the parameters.
        dtype: of the parameters.

    Shapes: `[…, S/R, …, features]` to the same; the axes but `dim` and the last are a batch.

    Attributes:
        inputs: `Linear` to heads of queries, then of keys, then of values; every rank has all of it.
        output: `Linear`; every rank has all of it.

    Raises:
        TilelinkError: TL235 features or heads that do not fit one another; those of `tilelink.nn.group_name`.
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
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        groups, self.features = groups or heads, features
        self.width = width_of_heads(features, heads, groups)
        self.group, self.dim, self.causal, self.rotate = group_name(group), dim, causal, rotate
        self.ranks, self.rank = ranks_of(self.group), rank_of(self.group)
        self.lengths = [n * self.width for n in (heads, groups, groups)]
        self.inputs = Replicated(nn.Linear(features, sum(self.lengths), bias, **made), group=self.group)
        self.inputs.joined = {"": dict(zip(("query", "key", "value"), self.lengths, strict=True))}
        self.output = Replicated(nn.Linear(self.lengths[0], features, bias, **made), group=self.group)

    def forward(self, x: torch.Tensor, length: int | None = None) -> torch.Tensor:
        """Apply it; collective.

        Args:
            x: this rank's part, `[…, S/R, …, features]`.
            length: the size `S` of the sequence over all ranks, where their parts differ.

        Raises:
            TilelinkError: TL231 no axis to split, TL235 other features; those of the operator `ag_attention`.
        """
        check_features(x, self.features, f"features={self.features}")
        total = total_rows(x, self.dim, self.ranks, length, cut=False)
        made = self.inputs(x).movedim(self.dim, -2)
        first = self.rank * -(-total // self.ranks)
        query, key, value = (t.unflatten(-1, (-1, self.width)) for t in made.split(self.lengths, dim=-1))
        if self.rotate is not None:
            query, key = (self.rotate(t.transpose(-2, -3), first).transpose(-2, -3) for t in (query, key))
        # Sequences of a batch are heads of one: [S/R, batch and heads, width].
        query, key, value = (t.movedim(-3, 0).flatten(1, -2).contiguous() for t in (query, key, value))
        seen = F.ag_attention(query, key, value, group=self.group, causal=self.causal, S=length)
        batch = made.shape[:-2]
        return self.output(seen.unflatten(1, (*batch, -1)).movedim(0, -3).flatten(-2).movedim(-2, self.dim))
