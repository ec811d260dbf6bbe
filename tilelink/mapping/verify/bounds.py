"""Rule 7, bounds: every tile lies inside the instance that it is read from or written to, and words exist."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilelink.errors import TilelinkError
from tilelink.ir.plan import Plan
from tilelink.mapping.verify.accesses import Access, reads, writes
from tilelink.mapping.verify.geometry import NOWHERE, Bools, Ints, World
from tilelink.mapping.verify.mistakes import REPORT
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.words import Told, signals_on


def check_bounds(plan: Plan, world: World, laid: Mapping[str, Laid]) -> str:
    """Raises:
    TilelinkError: TL611.
    """
    count = 0
    for buffer in plan.buffers:
        if buffer.space == "symmetric" and any(world.value(e).shape[0] > 1 for e in buffer.extents):
            raise _uneven(plan, buffer.tensor)
    for a in (*writes(plan, laid), *reads(plan, laid)):
        if plan.buffer_or_none(a.tensor) is not None:
            count += _check_access(plan, world, a)
            _check_slice(a)
    for channel in plan.channels:
        for action in ("notify", "await"):
            for told in signals_on(plan, laid, channel, action):
                _check_words(world, told)
    return f"{count} axes of accesses lie in their instances on every rank"


def _check_access(plan: Plan, world: World, a: Access) -> int:
    tensor = plan.wiring.tensor(a.tensor)
    extents = plan.buffer(a.tensor).seen(by_peers=a.remote)
    stored = [k for k, axis in enumerate(tensor.axes) if not axis.own_slice]
    idle = a.idle() | _moves_nothing(a)
    for place, k in enumerate(stored):
        found = a.axes.get(k)
        if found is None or found.spans is None:
            continue
        spans = found.spans.where(~idle) if idle.any() else found.spans
        first: Ints = np.zeros((1, 1), dtype=np.int64)
        over = tensor.axes[k].over
        if over is not None:
            part = world.part(tensor.axes[k].size, over)
            # A tile of another rank lies in the instance of the rank in whose part it begins.
            away = a.remote and over == a.laid.step.axis
            first = spans.begin // part * part if away else world.at(over) * part
        extent = world.value(extents[place])
        if a.remote and extent.shape[0] > 1 and over is not None and over == a.laid.step.axis:
            if a.holder_axis() is None:  # every rank of the line
                lines = world.lines(over)
                extent = extent.min(keepdims=True) if lines is None else extent[:, 0][lines].min(axis=1, keepdims=True)
            else:
                at = np.clip(spans.begin // world.part(tensor.axes[k].size, over), 0, world.along(over) - 1)
                extent = extent[:, 0][world.peers(over, at)]
        outside = (spans.begin < first) | (spans.end > first + extent)
        if not outside.any():
            continue
        bad = spans.filled & outside
        if bad.any():
            raise _outside(a, k, bad, spans.begin, spans.end, extent)
    return len(stored)


def _moves_nothing(a: Access) -> Bools:
    """Ranks all of whose tiles stay where they are."""
    if a.laid.world.along(a.laid.step.axis) == 1 and a.tensor in a.laid.step.forwarded:
        return ~NOWHERE  # the one slice is in registers
    movement = a.laid.step.step.program.movement
    holder = a.holder() if a.remote and a.laid.keeps_own else None
    if movement is None or a.param != movement.destination or holder is None:
        return NOWHERE
    key, to = holder
    spans = a.laid.spans[key] if key is not None else None
    away: Bools = np.asarray((to != a.laid.rank) & (spans.filled if spans is not None else True))
    return np.asarray(~away.any(axis=1, keepdims=True))


def _check_slice(a: Access) -> None:
    """Of what every rank has a slice, a rank finds its own slice in its own instance, and no other."""
    tensor = a.laid.tensor(a.param)
    if a.remote:
        return
    for view, entry in a.laid.index(a.param, a.index):
        if view.axis is not None and not tensor.axes[view.axis].own_slice:
            continue
        found = a.laid.reach(a.param, view, entry)
        if found.spans is None or found.whole:
            continue
        spans = a.mask.on(found.spans, found.key)
        bad = spans.filled & (spans.begin != a.laid.at) & ~a.idle()
        if bad.any():
            rank, column = (int(i) for i in np.argwhere(bad)[0])
            at = int(np.broadcast_to(spans.begin, bad.shape)[rank, column])
            raise TilelinkError(
                "TL611",
                f"slice {at} of `{a.param}` is not on rank {rank}, where `{a.path}` looks for it",
                loc=a.loc,
                why="every rank holds its own slice, and reads and stores in its own instance",
                hint="push the tile to its holder, or pull it from there",
            )


def _check_words(world: World, told: Told) -> None:
    for axis, w in zip(told.channel.axes, told.words, strict=True):
        width = world.number(axis.count)
        bad = w.real & ((w.first < 0) | (w.last >= width))
        if bad.any():
            row, col = (int(i) for i in np.argwhere(bad)[0])
            last = int(np.broadcast_to(w.last, bad.shape)[row, col])
            raise TilelinkError(
                "TL611",
                f"`{told.path}` on rank {row} touches word {last} of `{told.channel.tensor}`, which has {width} there",
                loc=told.op.loc,
                why="the words of a channel are as many as its axes say",
                hint=REPORT,
            )


def _outside(a: Access, axis: int, bad: Bools, begin: Ints, end: Ints, extent: Ints) -> TilelinkError:
    row, col = (int(i) for i in np.argwhere(bad)[0])
    first, last, most = (int(np.broadcast_to(x, bad.shape)[row, col]) for x in (begin, end, extent))
    of = a.laid.tensor(a.param).axes[axis]
    why, hint = f"the instance has {most} elements there", "leave such tiles out by a test of their positions"
    if of.over is not None:
        why += ", and a rank reads and stores its own part of a split axis only"
        hint = "push the tile to its holder, pull it from there, or test with `tl.rank_of` whose it is"
    elif first < 0:
        hint += "; `//` and `%` of what is below 0 are Triton's, and round towards 0, those of constants alone down"
    return TilelinkError(
        "TL611",
        f"positions {first} to {last} of axis `{of.name}` of `{a.param}` are not where `{a.path}` looks for them on rank {row}",
        loc=a.loc,
        why=why,
        hint=hint,
    )


def _uneven(plan: Plan, tensor: str) -> TilelinkError:
    decl = plan.wiring.tensor(tensor)
    return TilelinkError(
        "TL611",
        f"`{tensor}` has another size on each rank",
        loc=decl.loc or plan.wiring.loc,
        why="symmetric memory has one layout: peers work out addresses from their own",
        hint=REPORT,
    )
