"""Sizes that have to fit one another, refused where they enter a layer."""

from __future__ import annotations

import torch

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


def _misfit(text: str, why: str, hint: str) -> TilelinkError:
    return TilelinkError("TL235", text, why=why, hint=hint)
