"""Attention of which each rank has some heads of all positions, or all heads of some positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import torch
from torch import nn

from tilelink.nn import functional as F
from tilelink.nn.fitting import check_features, require_even, width_of_heads
from tilelink.nn.groups import group_name, rank_of, ranks_of
from tilelink.nn.linear import ColumnParallelLinear, RowParallelLinear
from tilelink.nn.replicated import Replicated
from tilelink.nn.rows import total_rows

Rotate = Callable[[torch.Tensor], torch.Tensor]
RotateFrom = Callable[[torch.Tensor, int], torch.Tensor]


class Cache(Protocol):
    """Keys and values of earlier positions, such as transformers' `DynamicCache`."""

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep what is new of a layer, `[…, groups/R, S, width]`, and give all there is."""
        ...


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
        sequence_parallel: as of `ColumnParallelLinear`; False to generate token by token.
        layer: by which a cache tells layers apart.
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
        sequence_parallel: bool = True,
        layer: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        groups = groups or heads
        width = width_of_heads(features, heads, groups)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        query, key, value = (nn.Linear(features, n * width, bias, **made) for n in (heads, groups, groups))
        output = nn.Linear(heads * width, features, bias, **made)
        self.causal, self.rotate, self.layer = causal, rotate, layer
        how: dict[str, Any] = {"group": group, "dim": dim, "sequence_parallel": sequence_parallel}
        self._take({"query": query, "key": key, "value": value}, output, heads, how)

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
        sequence_parallel: bool = True,
        layer: int = 0,
    ) -> Self:
        """This rank's heads of layers that every rank has."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.causal, made.rotate, made.layer = causal, rotate, layer
        how: dict[str, Any] = {"group": group, "dim": dim, "sequence_parallel": sequence_parallel}
        made._take({"query": query, "key": key, "value": value}, output, heads, how)
        return made

    def _take(self, projections: dict[str, nn.Linear], output: nn.Linear, heads: int, how: dict[str, Any]) -> None:
        ranks = ranks_of(group_name(how["group"]))
        features = projections["query"].out_features
        self.width = width_of_heads(features, heads)
        groups = projections["key"].out_features // self.width
        width_of_heads(features, heads, groups)
        require_even("heads", heads, ranks)
        require_even("groups", groups, ranks)
        self.dim = how["dim"]
        self.inputs = ColumnParallelLinear.of_several(projections, **how)
        self.output = RowParallelLinear.of(output, **how)
        self.lengths = [*self.inputs.joined[""].values()]

    def forward(
        self,
        x: torch.Tensor,
        length: int | None = None,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        mask: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Apply it; collective.

        Args:
            x: this rank's part, `[…, S/R, …, features]`.
            length: the size `S` of the sequence over all ranks, where their parts differ.
            position_embeddings: cosines and sines for queries and keys, `[…, S, features/heads]` of all positions, as
                transformers' rotary embeddings give them.
            mask: of scores, as torch's `scaled_dot_product_attention` takes it, in the place of `causal`: `[…, 1, S, T]`, where
                `T` counts what the cache has, too.
            cache: what has keys and values of positions before these, and keeps theirs: of this rank's heads.

        Raises:
            TilelinkError: those of the layers.
        """
        made = self.inputs(x, length).movedim(self.dim, -2)
        query, key, value = (t.transpose(-2, -3) for t in _apart(made, self.lengths, self.width))
        if self.rotate is not None:
            query, key = self.rotate(query), self.rotate(key)
        if position_embeddings is not None:
            query, key = (_turned(t, *position_embeddings) for t in (query, key))
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        own, total = query.shape[-2], key.shape[-2]
        if mask is None and self.causal and own != total:  # these positions are the last ones
            mask = torch.ones(own, total, dtype=torch.bool, device=query.device).tril(total - own)
        causal, several = self.causal and mask is None, query.shape[-3] != key.shape[-3]
        seen = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=several
        )
        return self.output(seen.transpose(-2, -3).flatten(-2).movedim(-2, self.dim))


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
        rotate: RotateFrom | None = None,
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
        query, key, value = _apart(made, self.lengths, self.width)
        if self.rotate is not None:
            query, key = (self.rotate(t.transpose(-2, -3), first).transpose(-2, -3) for t in (query, key))
        # Sequences of a batch are heads of one: [S/R, batch and heads, width].
        query, key, value = (t.movedim(-3, 0).flatten(1, -2).contiguous() for t in (query, key, value))
        seen = F.ag_attention(query, key, value, group=self.group, causal=self.causal, S=length)
        ahead = (*made.shape[:-2], self.lengths[0] // self.width)
        return self.output(seen.unflatten(1, ahead).movedim(0, -3).flatten(-2).movedim(-2, self.dim))


def _apart(made: torch.Tensor, lengths: list[int], width: int) -> Iterator[torch.Tensor]:
    """Queries, keys and values of such a layer, `[…, S, heads, width]` each."""
    return (t.unflatten(-1, (-1, width)) for t in made.split(lengths, dim=-1))


def _turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings (arXiv:2104.09864) of the halves of each head, `[…, heads, S, width]`."""
    first, second = x.chunk(2, -1)
    return x * cosine.unsqueeze(-3) + torch.cat([-second, first], -1) * sine.unsqueeze(-3)
