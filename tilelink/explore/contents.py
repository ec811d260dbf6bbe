"""Tables with values made up at random that keep what their contract promises."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilelink.ir.shape import Contract


def table(contract: Contract, shape: Sequence[int], most: int, generator: torch.Generator) -> torch.Tensor:
    """int64, on the generator's device.

    Args:
        contract: what the values promise.
        shape: elements per axis.
        most: of `<e`, the size that values stay below; of `offsets`, where the last one points.
    """
    count, on = torch.Size(shape).numel(), generator.device
    if contract.kind == "permutation":
        return torch.randperm(count, generator=generator, device=on).view(*shape)
    if contract.kind == "offsets":
        inner = torch.randint(most + 1, (max(count - 1, 0),), generator=generator, device=on).sort().values
        inner[-1:] = most
        return torch.cat([inner.new_zeros(min(count, 1)), inner]).view(*shape)
    return torch.randint(max(most, 1), tuple(shape), generator=generator, device=on)
