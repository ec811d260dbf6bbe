"""Which axis of a tensor the ranks lie on, followed through views, transpositions and split-and-concatenate.

Every axis is written as factors, outermost first: parts of the axes of a tensor at the start. So `[B, S, D]` seen as
`[B * S, D]` still tells where the ranks' parts of `S` are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

RANKS = -1
"""The axis of the ranks, beside the axes of what each of them has."""


@dataclass(frozen=True, slots=True)
class Factor:
    """`size` positions of axis `axis`, `step` apart."""

    axis: int
    step: int
    size: int


Axis = tuple[Factor, ...]
Layout = tuple[Axis, ...]


def layout_of(shape: Sequence[int]) -> Layout:
    """Each axis as itself. Axes of one element have no factor."""
    return tuple((Factor(axis, 1, size),) if size != 1 else () for axis, size in enumerate(shape))


def size_of(axis: Sequence[Factor]) -> int:
    return prod(f.size for f in axis)


def taken(axis: Axis, size: int) -> tuple[Axis, Axis] | None:
    """The outermost `size` positions of an axis, and the rest of it; None where they are no factors."""
    head: list[Factor] = []
    rest = list(axis)
    while size > 1:
        if not rest:
            return None
        first = rest.pop(0)
        if size % first.size == 0:
            head.append(first)
            size //= first.size
        elif first.size % size == 0:
            inner = first.size // size
            head.append(Factor(first.axis, first.step * inner, size))
            rest.insert(0, Factor(first.axis, first.step, inner))
            size = 1
        else:
            return None
    return tuple(head), tuple(rest)


def reshaped(layout: Layout, shape: Sequence[int]) -> Layout | None:
    rest: Axis = tuple(f for axis in layout for f in axis)
    axes: list[Axis] = []
    for size in shape:
        found = taken(rest, size)
        if found is None:
            return None
        axis, rest = found
        axes.append(axis)
    return tuple(axes)


def moved(layout: Layout, split: int, chunks: int, onto: int) -> Layout | None:
    """Split along one axis into chunks, which are concatenated along another."""
    if split == onto:
        return layout
    found = taken(layout[split], chunks)
    if found is None:
        return None
    axes = list(layout)
    head, axes[split] = found
    axes[onto] = (*head, *axes[onto])
    return tuple(axes)


def in_order(factors: Sequence[Factor], axis: int) -> Axis:
    """The factors of one axis at the start, as they lie there."""
    return tuple(sorted((f for f in factors if f.axis == axis), key=lambda f: -f.step))
