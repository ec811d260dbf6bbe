"""A mixture of experts whose experts are split over the ranks by their inner features."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from tilelink.nn import functional as F
from tilelink.nn.fitting import check_choices, check_features, require_even
from tilelink.nn.groups import group_name, rank_of, ranks_of
from tilelink.nn.layer import Layer
from tilelink.nn.replicated import Replicated
from tilelink.nn.rows import from_rows, to_rows, total_rows


class ParallelMoE(Layer):
    """Each token through the experts that the router chooses, `(silu(x @ gate) * (x @ up)) @ down`, weighted and summed.

    The tokens of all ranks are gathered and sorted by expert while they are multiplied; sums go to their tokens' ranks.
    Nothing waits for a table on the host, and no token is dropped.

    Args:
        features: of the activations between layers.
        hidden: of each expert between, a multiple of the ranks.
        experts: how many there are.
        choices: experts of each token, at most `experts`; their weights, the router's softmax over all, are scaled to a sum of 1.
        group: the ranks, as of `ColumnParallelLinear`.
        dim: the axis of activations that is split over the ranks.
        device: of the parameters.
        dtype: of the parameters.

    Shapes: `[…, S/R, …, features]` to the same.

    Attributes:
        router: `Linear(features, experts)` without bias; every rank has all of it.
        up: `[experts, features, 2*hidden/R]`, of each expert the columns of the gate and then those of `up`.
        down: `[experts, hidden/R, features]`.

    Raises:
        TilelinkError: TL232 inner features that cannot be split evenly, TL235 more choices than experts; those of
            `tilelink.nn.group_name`.
    """

    split_parameters = MappingProxyType({"up": 2, "down": 1})

    def __init__(
        self,
        features: int,
        hidden: int,
        experts: int,
        choices: int,
        *,
        group: Any = None,
        dim: int = -2,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.group, self.choices, self.dim, self.features = group_name(group), choices, dim, features
        self.ranks = ranks = ranks_of(self.group)
        rank = rank_of(self.group)
        require_even("hidden", hidden, ranks)
        check_choices(choices, experts)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.router = Replicated(nn.Linear(features, experts, bias=False, **made), group=self.group)
        gate, up = (_drawn(experts, features, hidden, features, made).chunk(ranks, 2)[rank] for _ in range(2))
        down = _drawn(experts, hidden, features, hidden, made).chunk(ranks, 1)[rank]
        self.up = nn.Parameter(torch.cat([gate, up], 2))
        self.down = nn.Parameter(down.clone())
        self.joined = {"up": {"gate": hidden // ranks, "up": hidden // ranks}}

    def forward(self, x: torch.Tensor, length: int | None = None) -> torch.Tensor:
        """Apply it; collective.

        Args:
            x: this rank's part, `[…, S/R, …, features]`.
            length: the size `S` of the split axis over all ranks, where their parts differ.

        Raises:
            TilelinkError: TL231 an axis that cannot be split, TL235 other features; those of the operators `ag_moe` and
                `moe_rs`.
        """
        check_features(x, self.features, f"features={self.features}")
        total_rows(x, self.dim, self.ranks, length)
        rows = to_rows(x, self.dim)
        score, choice = self.router(rows).float().softmax(-1).topk(self.choices)
        score = score / score.sum(-1, keepdim=True)
        inner, start, slot = F.ag_moe(rows, choice.int(), self.up, group=self.group, T=length)
        gate, inner = inner.chunk(2, -1)
        inner = nn.functional.silu(gate) * inner
        scores = F.all_gather(score, group=self.group, M=length)
        y = F.moe_rs(inner, start, slot, self.down, scores, group=self.group)
        return from_rows(y, x, self.dim, x.shape[self.dim])


def _drawn(experts: int, rows: int, columns: int, fan: int, made: dict[str, Any]) -> torch.Tensor:
    """As `torch.nn.Linear` draws its weight, for each expert."""
    return torch.empty(experts, rows, columns, **made).uniform_(-(fan**-0.5), fan**-0.5)
