"""Attention of which each rank has some heads, between linear layers that gather and scatter the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import nn

from tilelink.nn.fitting import width_of_heads
from tilelink.nn.groups import group_name, ranks_of
from tilelink.nn.linear import ColumnParallelLinear, RowParallelLinear, part_of, require_even

Rotate = Callable[[torch.Tensor], torch.Tensor]


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
        projections = [nn.Linear(features, n * width, bias, **made) for n in (heads, groups, groups)]
        self.causal, self.rotate, self.layer = causal, rotate, layer
        output = nn.Linear(heads * width, features, bias, **made)
        self._take(projections, output, heads, group, dim, sequence_parallel)

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
        made._take([query, key, value], output, heads, group, dim, sequence_parallel)
        return made

    def _take(
        self,
        projections: list[nn.Linear],
        output: nn.Linear,
        heads: int,
        group: Any,
        dim: int,
        sequence_parallel: bool,
    ) -> None:
        name = group_name(group)
        self.width = width_of_heads(projections[0].out_features, heads)
        width_of_heads(projections[0].out_features, heads, projections[1].out_features // self.width)
        self.heads, self.dim = heads, dim
        ranks = ranks_of(name)
        for what, linear in zip(("heads", "groups"), projections, strict=False):
            require_even(what, linear.out_features // self.width, ranks)
        how: dict[str, Any] = {"group": name, "dim": dim, "sequence_parallel": sequence_parallel}
        self.inputs = ColumnParallelLinear.of(projections[0], **how)
        self.inputs.out_features = sum(p.out_features for p in projections)
        self.inputs.weight = nn.Parameter(
            torch.cat([part_of(p.weight, 0, name, "heads") for p in projections]).detach()
        )
        if projections[0].bias is not None:
            self.inputs.bias = nn.Parameter(
                torch.cat([part_of(p.bias, 0, name, "heads") for p in projections]).detach()
            )
        self.output = RowParallelLinear.of(output, **how)
        self.lengths = [p.out_features // ranks for p in projections]
        self.inputs.joined = {"": dict(zip(("query", "key", "value"), self.lengths, strict=True))}

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
        query, key, value = (
            t.unflatten(-1, (-1, self.width)).transpose(-2, -3) for t in made.split(self.lengths, dim=-1)
        )
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


def _turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings (arXiv:2104.09864) of the halves of each head, `[…, heads, S, width]`."""
    first, second = x.chunk(2, -1)
    return x * cosine.unsqueeze(-3) + torch.cat([-second, first], -1) * sine.unsqueeze(-3)
