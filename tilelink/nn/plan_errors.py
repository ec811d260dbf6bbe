"""The error of a plan that does not fit its model, TL241, in one place."""

from __future__ import annotations

from tilelink.errors import TilelinkError


def misfit(text: str, why: str, hint: str) -> TilelinkError:
    return TilelinkError("TL241", text, why=why, hint=hint)


def made_of(name: str, hint: str) -> TilelinkError:
    return misfit(
        f"{name} has a weight that is made of other parameters",
        "each rank has a part of a parameter, and of none from which a parametrization makes another",
        hint,
    )
