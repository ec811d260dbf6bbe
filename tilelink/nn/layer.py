"""What layers say of their parameters: over which ranks they lie, and which of them are parts."""

from __future__ import annotations

from typing import ClassVar

from torch import nn


class Layer(nn.Module):
    """A module whose parameters, and those of the modules inside, are those of a group of ranks.

    A module of your own over `tilelink.nn.functional` derives from it so that `clip_grad_norm_` knows.

    Attributes:
        group: the ranks' name (`tilelink.nn.group_name`).
        split_parameters: names of its own parameters of which each rank has a part; every rank has all of the others.
    """

    split_parameters: ClassVar[tuple[str, ...]] = ()
    group: str
