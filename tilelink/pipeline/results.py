"""Shapes and dtypes of an operator's results on one rank, from its signature alone: nothing is planned.

Sizes may be symbols of `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilelink.errors import TilelinkError
from tilelink.ir.shape import Axis, Dim, Signature, evaluated
from tilelink.ir.topology import Topology
from tilelink.pipeline.arguments import axes_of, bound_sizes, check_tensors
from tilelink.pipeline.operator import Operator
from tilelink.runtime.memory import DTYPES

Result = tuple[tuple[Any, ...], torch.dtype]


def results_of(
    operator: Operator, tensors: Sequence[torch.Tensor], given: Mapping[str, Any], topology: Topology, rank: int
) -> tuple[Result, ...]:
    """Shape and dtype of each result.

    Args:
        operator: whose signature names its results.
        tensors: the rank's part of each input, or tensors without data of the same kind.
        given: as of a call; a constant may be the size of a result.
        topology: how many ranks there are, and along which axes.
        rank: whose results.

    Raises:
        TilelinkError: TL230 a size that the signature's inputs do not have; those of a call for its arguments; TL234.
    """
    signature = operator.signature
    check_tensors(operator, tensors)
    shapes = [tuple(t.shape) for t in tensors]
    sizes = {**given, **bound_sizes(operator, shapes, given, topology, rank)}
    axes = axes_of(operator, topology)
    at = {axis: topology.at(rank, axis) for axis in axes}
    rows = _own(signature, shapes, given)
    found = []
    for shape in signature.outputs:
        extents = [_extent(operator, a, sizes, rows, axes, at) for a in shape.axes if not a.own_slice]
        if shape.rest is not None:
            extents[shape.rest : shape.rest] = [sizes[name] for name in sizes if name.startswith("_")]
        found.append((tuple(extents), DTYPES[shape.dtype] if shape.dtype else tensors[0].dtype))
    return tuple(found)


def _own(signature: Signature, shapes: Sequence[Sequence[Any]], said: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank holds of the axes that are split evenly: an input's own length, which needs no division."""
    return {
        axis.name: length
        for shape, lengths in zip(signature.inputs, shapes, strict=True)
        if shape.rest is None and len(lengths) == len(shape.axes)
        for axis, length in zip(shape.axes, lengths, strict=True)
        if axis.split in signature.axes and axis.name not in said
    }


def _extent(
    operator: Operator,
    axis: Axis,
    sizes: Mapping[str, Any],
    own: Mapping[str, Any],
    ranks: Mapping[str, int],
    rank: Mapping[str, int],
) -> Any:
    """`ranks`, `rank`: along each axis of ranks."""
    if axis.name in ranks:
        return ranks[axis.name]
    size = evaluated(axis.size, lambda dim: _known(operator, dim, sizes))
    over = axis.split
    if over is None or over not in ranks:
        return size
    if axis.name in own:
        return own[axis.name]
    part = -(-size // ranks[over])
    return torch.sym_max(0, torch.sym_min(part, size - rank[over] * part))


def _known(operator: Operator, dim: Dim, sizes: Mapping[str, Any]) -> Any:
    if dim.name not in sizes:
        raise _unknown(operator, dim)
    return sizes[dim.name]


def _unknown(operator: Operator, size: Dim) -> TilelinkError:
    return TilelinkError(
        "TL230",
        f"the shapes of the inputs of `{operator.name}` do not say how large `{size}` of its results is",
        loc=operator.loc,
        why=f"its signature is `{operator.signature}`; torch asks for shapes before there is data",
        hint=f"write `{size}` in the signature as what it is made of, `T*K`",
    )
