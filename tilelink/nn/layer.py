"""What layers say of their parameters: over which ranks they lie, which of them are parts, and what lies side by side."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from torch import nn


class Layer(nn.Module):
    """A module whose parameters, and those of the modules inside, are those of a group of ranks.

    A module of your own over `tilelink.nn.functional` derives from it so that `clip_grad_norm_` and the whole
    state dicts (`whole_state_dict`) know.

    Attributes:
        group: the ranks' name (`tilelink.nn.group_name`).
        split_parameters: its own parameters of which each rank has a part, by name, and the axis along which the parts of all
            ranks follow one another; every rank has all of the others.
        joined: of the unsplit model several layers, or parameters, that are one here: the names and lengths in which each
            rank's part of it follows one another along that axis (the first one where no rank has a part). Under the name of
            a parameter of its own, or, for the layer as a whole, under "".
    """

    split_parameters: ClassVar[Mapping[str, int]] = MappingProxyType({})
    group: str
    joined: Mapping[str, Mapping[str, int]] = MappingProxyType({})
