"""The words that a tile of a stream touches, by number: those that it waits for, and the one that it sets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.plan import Plan
from tilelink.ir.wiring import ViewAxis

Span: TypeAlias = "tuple[int, int]"
"""Begin and end."""
Place: TypeAlias = "tuple[ViewAxis, Span]"
"""A tile's begin and end on an axis of a tensor, as the program counts them."""


def touched(
    plan: Plan, channel: Channel, on_axis: Callable[[int], Place | None], *, rank: int, pe: int, source: int | None
) -> list[int]:
    """Numbers of words on rank `pe`.

    Args:
        on_axis: the tile on an axis of the channel's tensor; None: it is all of the axis.
        rank: whose stream takes the tile, and counts its positions.
        source: of words by source rank, whose; None: all.
    """
    env = plan.env(pe)
    spans: list[range] = []
    for axis in channel.axes:
        found = on_axis(axis.axis) if axis.axis is not None else None
        if axis.axis is None and source is not None:
            at = plan.topology.at(source, axis.over)
            spans.append(range(at, at + 1))
        elif found is None:
            spans.append(range(int(F.evaluate(axis.count if axis.axis is None else axis.filled, env))))
        else:
            view, (lo, hi) = found
            # Words of all parts; a program that sees its own alone counts from its begin.
            first = plan.topology.at(rank, axis.over) * axis.part if axis.kind == "cut" and view.local else 0
            ends = [int(F.evaluate(axis.index(F.of(first) + at), env)) for at in (lo, hi - 1)]
            spans.append(range(ends[0], ends[1] + 1))
    return [int(F.evaluate(channel.flat(indices), env)) for indices in itertools.product(*spans)]
