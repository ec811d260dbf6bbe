"""Linear layers split over the ranks: by their output features, by their input features."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import nn

from tilelink.errors import TilelinkError
from tilelink.nn import split_linear
from tilelink.nn.fitting import check_features
from tilelink.nn.groups import group_name, rank_of, ranks_of
from tilelink.nn.layer import Layer


class _Split(Layer):
    """`torch.nn.Linear` of which each rank has a part of the weight along `axis`, called `features`."""

    axis: ClassVar[int]
    features: ClassVar[str]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group: Any = None,
        dim: int = -2,
        sequence_parallel: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        whole = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self._take(whole, group_name(group), dim, sequence_parallel)

    @classmethod
    def of(cls, linear: nn.Linear, *, group: Any = None, dim: int = -2, sequence_parallel: bool = True) -> Self:
        """This rank's part of a layer that every rank has."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(linear, group_name(group), dim, sequence_parallel)
        return made

    def _take(self, whole: nn.Linear, group: str, dim: int, sequence_parallel: bool) -> None:
        self.in_features, self.out_features = whole.in_features, whole.out_features
        self.group, self.ranks, self.dim = group, ranks_of(group), dim
        self.sequence_parallel = sequence_parallel
        self.weight = part_of(whole.weight, self.axis, group, self.features)
        if whole.bias is None:
            self.bias = None
        elif self.axis == 0:  # each feature has its own
            self.bias = part_of(whole.bias, 0, group, self.features)
        else:
            self.bias = nn.Parameter(whole.bias.detach().clone(), whole.bias.requires_grad)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"ranks={self.ranks}, dim={self.dim}"
        )


class ColumnParallelLinear(_Split):
    """`torch.nn.Linear` of which each rank has some output features; rows are gathered while they are multiplied.

    Activations between layers are split over the ranks along `dim` (sequence parallelism, arXiv:2205.05198).

    Args:
        in_features: of the whole layer.
        out_features: of the whole layer, a multiple of the ranks; each rank has as many, in the ranks' order.
        bias: whether there is one; each rank has that of its features.
        group: the ranks: a process group, a `DeviceMesh` of one dimension, what `tilelink.group` gave, a name; None: all.
        dim: the axis of activations that is split over the ranks, as Python counts them.
        sequence_parallel: False: activations between layers are the same on all ranks (arXiv:1909.08053). Then nothing
            is gathered, and the gradient of `x` is summed over the ranks. There is one loss, which every rank computes.
        device: as of `torch.nn.Linear`.
        dtype: as of `torch.nn.Linear`.

    Shapes: `[…, S/R, …, in_features]` to `[…, S, …, out_features/R]`.

    Attributes:
        weight: `[out_features/R, in_features]`. Ranks with one seed hold parts of what `torch.nn.Linear` draws with it.
        bias: `[out_features/R]`, or None.

    Raises:
        TilelinkError: TL232 features that cannot be split evenly; those of `tilelink.nn.group_name`.
    """

    axis, features, split_parameters = 0, "out_features", MappingProxyType({"weight": 0, "bias": 0})

    def forward(self, x: torch.Tensor, length: int | None = None) -> torch.Tensor:
        """Apply it; collective.

        Args:
            x: this rank's part, `[…, S/R, …, in_features]`.
            length: the size `S` of the split axis over all ranks, where their parts differ.

        Raises:
            TilelinkError: TL231 an axis that cannot be split, TL235 other features; those of the operator `ag_gemm`.
        """
        check_features(x, self.in_features, f"in_features={self.in_features}")
        if not self.sequence_parallel:
            return split_linear.replicated(x, self.weight, self.bias, group=self.group)
        given: dict[str, Any] = {"group": self.group, "ranks": self.ranks, "length": length}
        return split_linear.gathered(x, self.weight, self.bias, self.dim, **given)


class RowParallelLinear(_Split):
    """`torch.nn.Linear` of which each rank has some input features; sums go to their rows' ranks as they are computed.

    Args:
        in_features: of the whole layer, a multiple of the ranks; each rank has as many, in the ranks' order.
        out_features: of the whole layer.
        bias: whether there is one; every rank has all of it, and its gradient is that of all ranks.
        group: as of `ColumnParallelLinear`.
        dim: as of `ColumnParallelLinear`.
        sequence_parallel: False: every rank gets the sums of all rows (GEMM+AR).
        device: as of `torch.nn.Linear`.
        dtype: as of `torch.nn.Linear`.

    Shapes: `[…, S, …, in_features/R]` to `[…, S/R, …, out_features]`.

    Attributes:
        weight: `[out_features, in_features/R]`.
        bias: `[out_features]`, or None.

    Raises:
        TilelinkError: TL232 features that cannot be split evenly; those of `tilelink.nn.group_name`.
    """

    axis, features, split_parameters = 1, "in_features", MappingProxyType({"weight": 1})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it; collective.

        Args:
            x: `[…, S, …, in_features/R]`.

        Raises:
            TilelinkError: TL231 an axis that cannot be split, TL235 other features; those of the operator `gemm_rs`.
        """
        own = self.in_features // self.ranks
        check_features(x, own, f"in_features={self.in_features}, of which each of {self.ranks} ranks has {own}")
        if not self.sequence_parallel:
            return split_linear.summed(x, self.weight, self.bias, group=self.group)
        return split_linear.scattered(x, self.weight, self.bias, self.dim, group=self.group, ranks=self.ranks)


def part_of(whole: torch.Tensor, axis: int, group: str, what: str) -> nn.Parameter:
    """This rank's part of a parameter, a copy, which is trained if that is.

    Raises:
        TilelinkError: TL232, the ranks' parts would differ.
    """
    ranks = ranks_of(group)
    require_even(what, whole.shape[axis], ranks)
    mine = whole.detach().chunk(ranks, axis)[rank_of(group)].clone(memory_format=torch.contiguous_format)
    return nn.Parameter(mine, whole.requires_grad)


def joined(parts: Sequence[torch.Tensor]) -> nn.Parameter:
    """Parameters of layers that `check_joined` has seen as one, their rows behind one another."""
    return nn.Parameter(torch.cat([part.detach() for part in parts]), parts[0].requires_grad)


def require_even(what: str, count: int, ranks: int) -> None:
    """Raises TL232 where the ranks' parts of a layer would differ."""
    if count % ranks:
        raise TilelinkError(
            "TL232",
            f"{what}={count} cannot be split evenly over {ranks} ranks",
            why="every rank multiplies by a weight of the same shape",
            hint=f"choose a multiple of {ranks}",
        )
