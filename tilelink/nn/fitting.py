"""Sizes that have to fit one another, refused where they enter a layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tilelink.errors import TilelinkError


def check_features(x: torch.Tensor, features: int, what: str) -> None:
    """Whether an activation has the features that a layer takes; `what` says which sizes of the layer that follows from.

    Raises:
        TilelinkError: TL235.
    """
    if x.dim() and x.shape[-1] != features:
        raise _misfit(
            f"an activation of shape {tuple(x.shape)} has {x.shape[-1]} features, and the layer takes {features}",
            what,
            "look at what the layer before it gives",
        )


def require_even(what: str, count: int, ranks: int) -> None:
    """Raises TL232 where the ranks' parts of a layer would differ."""
    if count % ranks:
        raise TilelinkError(
            "TL232",
            f"{what}={count} cannot be split evenly over {ranks} ranks",
            why="every rank multiplies by a weight of the same shape",
            hint=f"choose a multiple of {ranks}",
        )


def width_of_heads(features: int, heads: int, groups: int = 1) -> int:
    """How many features a head has.

    Raises:
        TilelinkError: TL235, features are no multiple of the heads, or these none of the groups.
    """
    for what, count, of, parts in (("features", features, "heads", heads), ("heads", heads, "groups", groups)):
        if count % parts:
            raise _misfit(
                f"{what}={count} is no multiple of {of}={parts}",
                "heads have equally many features, and as many of them share each head of keys and values",
                f"choose a multiple of {parts}",
            )
    return features // heads


def check_choices(choices: int, experts: int) -> None:
    """Raises TL235 where a token cannot have so many different experts."""
    if not 0 < choices <= experts:
        raise _misfit(
            f"choices={choices} of experts={experts}",
            "the router chooses different experts for a token",
            f"choose 1 to {experts}",
        )


def check_joined(layers: Mapping[str, nn.Linear]) -> None:
    """Whether layers can be one, behind one gathering.

    Raises:
        TilelinkError: TL235, some have a bias, or are trained, and others not.
    """
    (first, other), *more = layers.items()
    for name, layer in more:
        if (layer.bias is None) != (other.bias is None):
            has, lacks = (name, first) if other.bias is None else (first, name)
            raise _misfit(
                f"{has} has a bias, and {lacks} has none", JOINED, "give the others one of zeros, or remove it"
            )
        for of in ("weight", "bias"):
            a, b = getattr(layer, of), getattr(other, of)
            if a is not None and a.requires_grad != b.requires_grad:
                has, lacks = (first, name) if b.requires_grad else (name, first)
                raise _misfit(
                    f"the {of} of {has} is trained, and that of {lacks} is not", JOINED, "set requires_grad alike"
                )


JOINED = "layers that share a gathering are one layer here, with one weight and one bias"


def _misfit(text: str, why: str, hint: str) -> TilelinkError:
    return TilelinkError("TL235", text, why=why, hint=hint)
