"""The words that a wait or a notify touches, tile by tile, as the emitted code works them out; and whose words they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel, ChannelAxis
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Plan, Signal
from tilelink.ir.program import At, Index, IndexEntry, Notify, OfTile, Tiles, Wait
from tilelink.mapping.libraries import tiled
from tilelink.mapping.sites import Site, site_of, sites
from tilelink.mapping.verify.geometry import Bools, Ints, Spans, World
from tilelink.mapping.verify.reach import EVERYWHERE, Key, Laid, Mask


@dataclass(frozen=True, slots=True)
class Words:
    """Words `[first, last]` along one channel axis, for each tile of `key` that is `real` there.

    Arrays of shape (1 or ranks, tiles). `by_data`: some range of these words.
    """

    key: Key | None
    first: Ints
    last: Ints
    real: Bools
    by_data: bool = False

    def same(self, other: Words) -> bool:
        """Whether each tile has the same words."""
        pairs = ((self.first, other.first), (self.last, other.last), (self.real, other.real))
        known = not (self.by_data or other.by_data) and self.key == other.key
        return known and all(a.shape == b.shape and bool((a == b).all()) for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rank that a tile goes to. `kind`: one (rank q's go to `to[q]`), tile (`to` by tile of `key`), all of its line along
    the step's axis of ranks."""

    kind: str
    key: Key | None = None
    to: Ints | None = None

    @property
    def stays(self) -> bool:
        """Whether each rank's go to itself."""
        return self.kind == "one" and self.to is not None and bool((self.to == np.arange(len(self.to))).all())

    def agrees(self, other: Delivery) -> bool:
        """Whether what goes with `other` is told by this."""
        if self.kind == "all":
            return True
        if self.kind != other.kind or self.key != other.key or self.to is None or other.to is None:
            return False
        return bool(np.all(self.to == other.to))


def to_itself(world: World) -> Delivery:
    return Delivery("one", None, np.arange(world.ranks, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Told:
    """One signal of a step on a channel: what it touches along each axis of the channel."""

    signal: Signal
    channel: Channel
    laid: Laid
    site: Site
    mask: Mask
    words: tuple[Words, ...]

    @property
    def op(self) -> Wait | Notify:
        return self.signal.op

    @property
    def path(self) -> str:
        return self.signal.path

    @property
    def executor(self) -> str:
        return self.laid.step.executor


def signals_on(plan: Plan, laid: Mapping[str, Laid], channel: Channel, action: str) -> tuple[Told, ...]:
    """The notifies, or the waits (`await`), that use a channel."""
    found = [s for s in plan.signals if s.action == action and s.channel == channel.name]
    return tuple(_told(channel, laid[s.path], s) for s in found)


def _told(channel: Channel, laid: Laid, signal: Signal) -> Told:
    site = site_of(laid.step.step.program, signal.op)
    mask = _without_own(laid, signal.op, laid.mask(site))
    words = tuple(_words(laid, signal.op, axis, mask) for axis in channel.axes)
    told = Told(signal, channel, laid, site, mask, words)
    if not channel.counted or channel.rings is None:
        return told
    return leaving(told) if isinstance(signal.op, Wait) else _ringing(told)


def leaving(told: Told) -> Told:
    """Of a push that leaves out what stays on its rank: its wait for the tiles that go."""
    laid, movement = told.laid, told.laid.step.step.program.movement
    if not laid.keeps_own or movement is None:
        return told
    tensor = laid.tensor(movement.destination)
    for k, view in enumerate(laid.step.step.binding(movement.destination).view):
        spans = laid.spans[k]
        if view.axis is None or not tensor.names_holder(view) or spans is None:
            continue
        goes = laid.world.holders(tensor, view.axis, spans.begin) != laid.at
        before = told.mask.by.get(k)
        mask = Mask({**told.mask.by, k: goes if before is None else before & goes}, told.mask.data)
        return replace(told, mask=mask, words=tuple(_words(laid, told.op, axis, mask) for axis in told.channel.axes))
    return told


def _ringing(told: Told) -> Told:
    """Of bells that are counted: the notifies that ring any."""
    rings = told.channel.rings
    assert rings is not None
    named = [k for k in range(len(told.words)) if f"c{k}" in F.symbols(rings)]
    if not named:
        rung, before = told.laid.world.value(rings) != 0, told.mask.by.get(None)
        return replace(
            told, mask=Mask({**told.mask.by, None: rung if before is None else before & rung}, told.mask.data)
        )
    if len(named) != 1:
        return told
    w = told.words[named[0]]
    rung = told.laid.world.value(rings, {f"c{named[0]}": w.first}) != 0
    words = [replace(w, real=w.real & rung) if k == named[0] else other for k, other in enumerate(told.words)]
    return replace(told, words=tuple(words))


def _without_own(laid: Laid, op: Wait | Notify, mask: Mask) -> Mask:
    """A fused step takes this rank's slice from registers, and does not wait for it."""
    if not isinstance(op, Wait) or laid.tensor(op.param).name not in laid.step.forwarded:
        return mask
    for view, entry in laid.index(op.param, op.index):
        at = laid.coordinate(entry) if view.unit and isinstance(entry, At) else None
        if at is not None:
            others = at.array != laid.at
            before = mask.by.get(at.key)
            return Mask({**mask.by, at.key: others if before is None else before & others}, mask.data)
    return mask


def entry_on(laid: Laid, op: Wait | Notify, axis: int) -> IndexEntry | None:
    return next((e for v, e in laid.index(op.param, op.index) if v.axis == axis), None)


def _words(laid: Laid, op: Wait | Notify, axis: ChannelAxis, mask: Mask) -> Words:
    if axis.axis is None:
        return _source(laid, op, axis)
    step = laid.step
    function = tiled(step.step, op.param, op.index, runs=step.by_runs) if step.library is not None else None
    for k, (view, entry) in enumerate(laid.index(op.param, op.index)):
        if view.axis != axis.axis:
            continue
        if axis.kind == "part" and function is not None and function[k] is None:
            break  # a library's function takes all of the axis, whatever loop the program has: all words of the rank's part
        # Words of all parts take positions in the tensor, words of one part also those that count from its begin.
        reach = laid.reach(op.param, view, entry, seen=axis.kind != "cut")
        if reach.whole:
            break
        if reach.spans is None:
            return Words(None, np.zeros((1, 1), np.int64), laid.world.value(axis.count) - 1, _one(), by_data=True)
        spans = reach.spans
        first = _index(laid, axis, spans.begin)
        grid = _grid(laid, reach.key)
        one = isinstance(entry, At) or axis.kind == "unit" or grid is None or axis.holds(grid)
        last = first if one else _index(laid, axis, np.maximum(spans.end - 1, 0))
        return Words(reach.key, first, last, mask.on(spans, reach.key).real)
    return Words(None, np.zeros((1, 1), np.int64), laid.world.value(axis.filled) - 1, _one())


def _index(laid: Laid, axis: ChannelAxis, at: Ints) -> Ints:
    """The word of each position: one column per tile, also where one word serves all."""
    found = laid.world.value(axis.index(F.Sym("_at")), {"_at": at})
    return np.broadcast_to(found, (len(found), at.shape[1]))


def _source(laid: Laid, op: Wait | Notify, axis: ChannelAxis) -> Words:
    """The axis of source ranks: a notify names its own rank; so does a wait, unless it pulls from another, or asks for what
    every rank writes here."""
    over = axis.over
    if axis.every and isinstance(op, Wait) and op.peer is None:
        return Words(None, np.zeros((1, 1), np.int64), laid.world.value(axis.count) - 1, _one())
    movement = laid.step.step.program.movement
    if isinstance(op, Wait) and movement is not None and not laid.step.push:
        found = holder_of(laid, op.param, op.index)
        if found.kind == "tile" and found.to is not None and found.key is not None:
            spans = laid.spans[found.key]
            assert spans is not None
            at = np.asarray(laid.world.plan.topology.at(found.to, over))  # type: ignore[arg-type]
            return Words(found.key, at, at, spans.real)
    own = laid.world.at(over)
    return Words(None, own, own, np.ones_like(own, dtype=np.bool_))


def _one() -> Bools:
    return np.ones((1, 1), dtype=np.bool_)


def _grid(laid: Laid, key: Key | None) -> GridAxis | None:
    if isinstance(key, int):
        return laid.step.grid[key]
    loops = (s.op for s in sites(laid.step.step.program) if isinstance(s.op, Tiles))
    loop = next((op for op in loops if op.var == key), None)
    if loop is None:
        return None
    return laid.step.loop(loop)


# ------------------------------------------------------------------------------------------------------------ whose words
def holder_of(laid: Laid, param: str, index: Index | None, mask: Mask = EVERYWHERE) -> Delivery:
    """Who holds the tile in the parameter's tensor; `mask`: of which tiles it is asked."""
    tensor = laid.tensor(param)
    for view, entry in laid.index(param, index):
        if view.axis is None:
            continue
        if not tensor.names_holder(view):
            continue
        reach = laid.reach(param, view, entry)
        if reach.spans is None:
            return Delivery("unknown")
        return _to(laid, reach.key, laid.world.holders(tensor, view.axis, reach.spans.begin), mask)
    return _slice_holder(laid, param)


def _slice_holder(laid: Laid, param: str) -> Delivery:
    """A plain instance seen as one slice per rank: a movement's coordinate on that axis names the rank."""
    if laid.step.step.program.movement is not None:
        for k, view in enumerate(laid.step.step.binding(param).view):
            spans = laid.spans[k]
            if view.axis is None and spans is not None:
                return _to(laid, k, spans.begin)
    return Delivery("all")


def _to(laid: Laid, key: Key | None, at: Ints, mask: Mask = EVERYWHERE) -> Delivery:
    """`at`: coordinates on the step's axis of ranks. A rank that is asked of none but its own tiles means itself."""
    to = laid.world.peers(laid.step.axis, at)
    single = to.shape[1] == 1
    if single and (key is None or _alone(laid, key)):
        return Delivery("one", None, laid.world.each(to))
    spans = laid.spans[key] if key is not None else None
    asked = mask.on(spans, key).filled if spans is not None else None
    # Where neither differs from rank to rank, several tiles are of several ranks.
    if asked is not None and (single or len(to) > 1 or len(asked) > 1) and bool(((to == laid.rank) | ~asked).all()):
        return to_itself(laid.world)
    return Delivery("tile", key, to)


def _alone(laid: Laid, key: Key) -> bool:
    grid = _grid(laid, key)
    return grid is not None and grid.kind == "own"


def delivery(told: Told) -> Delivery:
    """Whose words a notify raises."""
    laid, signal, op = told.laid, told.signal, told.op
    assert isinstance(op, Notify)
    if signal.to == "self":
        return to_itself(laid.world)
    if signal.to == "all":
        return Delivery("all")
    if signal.to == "peer":
        at = laid.coordinate(op.peer) if op.peer is not None else None
        if at is None or at.key is not None:
            raise unproven(told, "the rank that it is for is not this rank's coordinate plus a constant")
        return Delivery("one", None, laid.world.each(laid.world.peers(laid.step.axis, at.array)))
    if laid.step.library is not None:
        return _waiter(told)  # its tiles are this rank's own
    found = holder_of(laid, op.param, op.index, told.mask)
    if found.kind == "all" and laid.step.push and laid.step.step.program.movement is not None:
        return found  # each rank that it has moved to
    return found if found.kind != "all" else _waiter(told)


def _waiter(told: Told) -> Delivery:
    """Of a tensor that others pull: the rank whose part of the destination the tile belongs to."""
    axis = told.channel.whose(told.laid.step.axis)
    if axis is None or axis.axis is None:
        raise unproven(told, "no axis says which rank it is for")
    entry = entry_on(told.laid, told.op, axis.axis)
    if not isinstance(entry, OfTile):
        raise unproven(told, "its index on the axis that says which rank it is for is no tile")
    view = next(v for v, _ in told.laid.index(told.op.param, told.op.index) if v.axis == axis.axis)
    reach = told.laid.reach(told.op.param, view, entry, seen=True)
    if reach.spans is None:
        raise unproven(told, "data says which rank it is for")
    at = reach.spans.begin // told.laid.world.part(axis.size, axis.over)
    return _to(told.laid, reach.key, at, told.mask)


def unproven(told: Told, why: str) -> TilelinkError:
    word = "notify" if isinstance(told.op, Notify) else "wait"
    return TilelinkError(
        "TL606",
        f"it cannot be shown that this {word} of `{told.op.param}` is counted right",
        loc=told.op.loc,
        why=why,
        hint="signal once per tile, under tests of positions",
    )


def spans_on(told: Told, axis: int) -> tuple[Key | None, Spans] | None:
    """Positions in the tensor that the signal's tiles have on an axis; None: by data."""
    for view, entry in told.laid.index(told.op.param, told.op.index):
        if view.axis == axis:
            reach = told.laid.reach(told.op.param, view, entry)
            return (reach.key, reach.spans) if reach.spans is not None else None
    return None
