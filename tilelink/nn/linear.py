"""Linear layers split over the ranks: by their output features, by their input features."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import nn

from tilelink.nn import split_linear
from tilelink.nn.fitting import check_features, check_joined, require_even
from tilelink.nn.groups import group_name, rank_of, ranks_of
from tilelink.nn.layer import Layer


class _Split(Layer):
    """`torch.nn.Linear` of which each rank has some `features`, as `split_parameters` says."""

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
        self._take(whole, group, dim, sequence_parallel)

    @classmethod
    def of(cls, linear: nn.Linear, *, group: Any = None, dim: int = -2, sequence_parallel: bool = True) -> Self:
        """This rank's part of a layer that every rank has."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._take(linear, group, dim, sequence_parallel)
        return made

    def _take(self, whole: nn.Linear, group: Any, dim: int, sequence_parallel: bool) -> None:
        self.in_features, self.out_features = whole.in_features, whole.out_features
        self.group, self.dim, self.sequence_parallel = group_name(group), dim, sequence_parallel
        self.ranks = ranks_of(self.group)
        self.weight = part_of(whole.weight, self.split_parameters["weight"], self.group, self.features)
        self.bias = None
        if whole.bias is not None:
            self.bias = part_of(whole.bias, self.split_parameters.get("bias"), self.group, self.features)

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

    features, split_parameters = "out_features", MappingProxyType({"weight": 0, "bias": 0})

    @classmethod
    def of_several(cls, layers: Mapping[str, nn.Linear], **how: Any) -> Self:
        """As `of`, of layers that share one gathering: this rank's features of each follow one another, by their names.

        Raises:
            TilelinkError: TL235, some have a bias, or are trained, and others not; those of `of`.
        """
        check_joined(layers)
        parts = [cls.of(each, **how) for each in layers.values()]
        made = parts[0]
        made.joined = {"": {name: len(part.weight) for name, part in zip(layers, parts, strict=True)}}
        made.out_features = sum(part.out_features for part in parts)
        for own, first in list(made.named_parameters()):
            rows = torch.cat([part.get_parameter(own).detach() for part in parts])
            setattr(made, own, nn.Parameter(rows, first.requires_grad))
        return made

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

    features, split_parameters = "in_features", MappingProxyType({"weight": 1})

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


def part_of(whole: torch.Tensor, axis: int | None, group: str, what: str) -> nn.Parameter:
    """This rank's part of a parameter along an axis, or all of it: a copy, which is trained if that is.

    Raises:
        TilelinkError: TL232, the ranks' parts would differ.
    """
    mine = whole.detach()
    if axis is not None:
        ranks = ranks_of(group)
        require_even(what, whole.shape[axis], ranks)
        mine = mine.chunk(ranks, axis)[rank_of(group)]
    return nn.Parameter(mine.clone(memory_format=torch.contiguous_format), whole.requires_grad)
