"""Gradients clipped by their norm over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from tilelink.nn import functional as F
from tilelink.nn.groups import rank_of, ranks_of
from tilelink.nn.layer import Layer


@torch.no_grad()
def clip_grad_norm_(
    model: nn.Module,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_` by the norm over all ranks: parts of parameters add up, what all hold counts once.

    Collective over the groups of the model's layers. Parameters outside of layers are the same on all ranks, and so are
    their gradients.

    Args:
        model: with this rank's part of each layer; its gradients are scaled in place.
        max_norm: what the norm is at most afterwards.
        norm_type: the order of the norm, above 0; `inf` for the largest gradient.
        error_if_nonfinite: whether a norm that is infinite or no number is an error.
        foreach: as of `torch.nn.utils.clip_grad_norm_`.

    Returns:
        the norm before clipping, a scalar, the same on all ranks; of several ranks in fp32, or fp64 where a parameter is.

    Raises:
        RuntimeError: torch's, for `error_if_nonfinite`.
    """
    held = _by_group(model)
    norms = [_norm_over(group, layers, norm_type, foreach) for group, layers in held.items()]
    total = get_total_norm(norms, norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(model.parameters(), max_norm, total, foreach)
    return total


def _by_group(model: nn.Module) -> dict[str | None, dict[nn.Parameter, bool]]:
    """The parameters of each group, and whether they are parts; those outside of layers go with the first group. None is
    the group of a model without layers, which every rank holds alike."""
    found: dict[nn.Parameter, tuple[str, bool]] = {}

    def visit(module: nn.Module, group: str | None) -> None:
        split: Mapping[str, int] = {}
        if isinstance(module, Layer):
            group, split = module.group, module.split_parameters
        for name, parameter in module.named_parameters(recurse=False):
            if group is not None:
                found.setdefault(parameter, (group, name in split))
        for inner in module.children():
            visit(inner, group)

    visit(model, None)
    first = next((group for group, _ in found.values()), None)
    held: dict[str | None, dict[nn.Parameter, bool]] = {}
    for parameter in model.parameters():
        group, split = found.get(parameter, (first, False))
        held.setdefault(group, {})[parameter] = split
    return held


def _norm_over(
    group: str | None, parameters: dict[nn.Parameter, bool], norm_type: float, foreach: bool | None
) -> torch.Tensor:
    """Of what the ranks of a group hold: each one's parts, and the first one's copy of what all hold."""
    if group is None or ranks_of(group) == 1:
        return get_total_norm(_gradients(parameters), norm_type, foreach=foreach)
    first, some = rank_of(group) == 0, next(iter(parameters))
    dtype = reduce(torch.promote_types, (p.dtype for p in parameters), torch.float32)
    mine = get_total_norm(
        _gradients(p for p, split in parameters.items() if split or first), norm_type, foreach=foreach
    )
    # Gathered and not summed: all ranks add the same numbers up in the same order.
    rows = F.all_gather(mine.to(some.device, dtype).view(1, 1), group=group)
    return get_total_norm(rows.unbind(), norm_type)


def _gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [p.grad for p in parameters if p.grad is not None]
