"""Rule 4, continued: every tile that a wait stands for raises a word that the wait looks at, on the rank that looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilelink.errors import Note, TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.plan import Plan
from tilelink.ir.program import Notify, Wait
from tilelink.mapping.programs.facts import EMPTY, fact
from tilelink.mapping.verify.accesses import Access, writes
from tilelink.mapping.verify.counts import Product, count
from tilelink.mapping.verify.epochs import met
from tilelink.mapping.verify.geometry import Bools, Ints, Spans, World
from tilelink.mapping.verify.reach import Key, Laid
from tilelink.mapping.verify.words import (
    Delivery,
    Told,
    delivery,
    holder_of,
    leaving,
    signals_on,
    spans_on,
    to_itself,
    unproven,
)


def check_meeting(plan: Plan, world: World, laid: Mapping[str, Laid]) -> str:
    """Per axis, the words of a wait meet those of each producer tile that it intersects; both sides mean the same rank.

    Raises:
        TilelinkError: TL608; TL605 for a bell that a stream would wait for twice; TL606.
    """
    stored = writes(plan, laid)
    pairs = 0
    for channel in plan.channels:
        told = signals_on(plan, laid, channel, "notify")
        for wait in signals_on(plan, laid, channel, "await"):
            _check_peers(wait, told, world)
            for notify in told:
                _Meeting(plan, world, channel, wait, notify, stored).run()
                pairs += 1
        if channel.bells:
            _check_bells(plan, world, laid, channel, told)
    return f"{pairs} pairs of wait and notify meet on every axis"


@dataclass(frozen=True, slots=True)
class _Meeting:
    plan: Plan
    world: World
    channel: Channel
    wait: Told
    notify: Told
    stored: tuple[Access, ...]

    def run(self) -> None:
        to = delivery(self.notify)
        remote = self._pulls()
        if remote:
            self._check_makers()
            self._check_puller(to)
        else:
            self._check_holder(to)
        for k in range(len(self.channel.axes)):
            self._check_axis(k, to, remote)

    def _several(self) -> bool:
        """Whether there is anybody else along the axis of the signals."""
        return self.world.along(self.notify.laid.step.axis) > 1

    def _pulls(self) -> bool:
        """Whether the wait is for tiles in other ranks' instances."""
        step = self.wait.laid.step
        if step.step.program.movement is None or step.push or self.world.along(step.axis) == 1:
            return False
        tensor = self.plan.wiring.tensor(self.channel.tensor)
        return tensor.names_holders(step.step.binding(self.wait.op.param).view)

    # ------------------------------------------------------------------------------------------------------ the ranks
    def _check_holder(self, to: Delivery) -> None:
        """Where the tile is written, there it is announced."""
        for w in self.stored:
            if w.path != self.notify.path or w.tensor != self.channel.tensor or not self._announces(w):
                continue
            place = holder_of(w.laid, w.param, w.index) if w.remote else to_itself(self.world)
            if not to.agrees(place) and self._several():
                raise self._refused("the tile is written on one rank and announced on another")

    def _check_makers(self) -> None:
        """The words of a rank whose instance is pulled from are raised by whoever writes it: by that rank. (Where words are those
        of parts, it does not matter by whom.)"""
        if self._sends() and any(a.axis is None and not a.every for a in self.channel.axes):
            raise unproven(self.wait, f"`{self.notify.path}` writes the instances that it pulls from on other ranks")

    def _sends(self) -> bool:
        """Whether the tiles are written on other ranks."""
        return any(w.remote and w.path == self.notify.path and w.tensor == self.channel.tensor for w in self.stored)

    def _announces(self, w: Access) -> bool:
        """Whether it is this notify that is given for the store."""
        if w.laid.step.step.program.movement is not None:
            return True
        step, op = w.laid.step.step, self.notify.op
        return fact(step, op.param, op.index, EMPTY, op.loc).reaches(fact(step, w.param, w.index, EMPTY, w.loc))

    def _check_puller(self, to: Delivery) -> None:
        """A rank that pulls a tile hears of it."""
        along = self.notify.laid.step.axis == self.wait.laid.step.axis
        if to.kind == "all" and along:
            return
        axis = self.channel.whose(self.notify.laid.step.axis)
        wanted = spans_on(self.wait, axis.axis) if axis is not None and axis.axis is not None else None
        if axis is None or wanted is None or to.kind != "tile" or not along:
            raise self._refused("the tile is pulled by ranks that are not told")
        spans, part = wanted[1], self.world.part(axis.size, axis.over)
        filled = spans.filled
        rank = self.world.at(axis.over)
        if bool((filled & ((spans.begin // part != rank) | ((spans.end - 1) // part != rank))).any()):
            raise self._refused("the tile is pulled by ranks that are not told")
        made = spans_on(self.notify, axis.axis) if axis.axis is not None else None
        if made is None or bool((made[1].filled & (made[1].begin // part != (made[1].end - 1) // part)).any()):
            raise self._refused("a tile reaches into the parts of two ranks, and one of them is told")

    # ------------------------------------------------------------------------------------------------------- the words
    def _check_axis(self, k: int, to: Delivery, remote: bool) -> None:
        axis = self.channel.axes[k]
        mine, theirs = self.wait.words[k], self.notify.words[k]
        if axis.axis is None:
            if bool((mine.first <= 0).all()) and bool((mine.last >= self.world.number(axis.count) - 1).all()):
                return  # those of all ranks
            own = not self._sends() or to.stays
            if not remote and not own and self._several():
                raise self._refused("the words of one source rank are waited for, and every rank raises its own")
            return
        if mine.by_data or theirs.by_data:
            return
        wanted, made = spans_on(self.wait, axis.axis), spans_on(self.notify, axis.axis)
        if wanted is None or made is None:
            return
        waits = _Tiles(wanted[0], wanted[1], mine.first, mine.last)
        tiles = _Tiles(made[0], made[1], theirs.first, theirs.last)
        tiles = tiles.of_sources(to, self.world, self.notify.laid.step.axis, flat=remote)
        missed = _missed(waits, tiles)
        if missed is not None:
            at, first, last = missed
            raise self._refused(
                f"waiting for positions {first} to {last} of axis `{self._axis(axis.axis)}` misses the tile at {at}"
            )

    def _axis(self, axis: int) -> str:
        return self.plan.wiring.tensor(self.channel.tensor).axes[axis].name

    def _refused(self, what: str) -> TilelinkError:
        return _refused(self.wait, (self.notify,), what)


def _refused(wait: Told, told: tuple[Told, ...], what: str) -> TilelinkError:
    return TilelinkError(
        "TL608",
        f"this wait of `{wait.op.param}` does not wait for {_whom(told)}: {what}",
        loc=wait.op.loc,
        why="a wait must end after every producer tile that intersects what it names, and so look at their words",
        hint="name the tile and the rank as the producer does; if they do agree, please report the schedule",
        notes=tuple(Note("the notify", t.op.loc) for t in told),
    )


def _whom(told: tuple[Told, ...]) -> str:
    return ", ".join(dict.fromkeys(f"`{t.path}`" for t in told))


def _check_peers(wait: Told, told: tuple[Told, ...], world: World) -> None:
    """Somebody's notify goes from the rank that the wait names to the rank that waits, and from no other rank."""
    if wait.op.peer is None or not told:
        # Without a notify there is nothing to wait for: the counts say so, and rule 2 that the notify was let go.
        return
    named = _peer(wait, wait.op, world)
    ranks = np.arange(world.ranks)
    goes_to = [_peer(n, n.op, world) if n.op.peer is not None else ranks for n in told]
    if named is None or not any(to is not None and bool((to[named] == ranks).all()) for to in goes_to):
        raise _refused(wait, told, "the rank that it names is not one that notifies this rank")
    for notify, to in zip(told, goes_to, strict=True):
        if notify.op.peer is not None and to is not None and bool((to[named] == ranks).all()):
            continue
        others = met(wait, notify, delivery(notify), world) & (ranks[None, :] != named[:, None])
        if others.any():
            raise _refused(wait, (notify,), "the rank that it names is not the only one that notifies this rank")


def _peer(told: Told, op: Wait | Notify, world: World) -> Ints | None:
    """The peer that each rank names; None: data, or a tile, says."""
    found = told.laid.coordinate(op.peer) if op.peer is not None else None
    if found is None or found.key is not None:
        return None
    return world.each(world.peers(told.laid.step.axis, found.array))


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Tiles on one axis with the words they touch: arrays of shape (1 or ranks, tiles)."""

    key: Key | None
    spans: Spans
    first: Ints
    last: Ints

    def rows(self) -> int:
        return max(self.spans.rows, len(self.first), len(self.last))

    def row(self, at: int) -> tuple[Ints, Ints, Ints, Ints, Bools]:
        n = self.spans.begin.shape[1]

        def pick(a: Any) -> Any:
            return np.broadcast_to(a[min(at, a.shape[0] - 1)], (n,))

        begin, end = pick(self.spans.begin), pick(self.spans.end)
        return begin, end, pick(self.first), pick(self.last), pick(self.spans.real) & (begin < end)

    def of_sources(self, to: Delivery, world: World, axis: str, *, flat: bool) -> _Tiles:
        """Rows by the rank that is told; one row of all tiles where each rank may be told by several, those of its line."""
        if self.rows() == 1:
            return self
        ranks, n = world.ranks, self.spans.begin.shape[1]
        shape = (ranks, n)
        begin, end = np.broadcast_to(self.spans.begin, shape), np.broadcast_to(self.spans.end, shape)
        first, last = np.broadcast_to(self.first, shape), np.broadcast_to(self.last, shape)
        real = np.broadcast_to(self.spans.real, shape)
        if to.kind == "one" and to.to is not None and not flat:
            at = np.argsort(to.to, kind="stable")
            return _Tiles(self.key, Spans(begin[at], end[at], real[at]), first[at], last[at])
        lines = world.lines(axis)

        def flat_(a: Any) -> Any:
            return a.reshape(1, -1) if lines is None else a[lines].reshape(ranks, -1)

        return _Tiles(self.key, Spans(flat_(begin), flat_(end), flat_(real)), flat_(first), flat_(last))


def _missed(waits: _Tiles, tiles: _Tiles) -> tuple[int, int, int] | None:
    """(begin of a producer tile, the waiting interval) that intersect and share no word."""
    for row in range(max(waits.rows(), tiles.rows())):
        found = _missed_in_row(waits.row(row), tiles.row(row))
        if found is not None:
            return found
    return None


Row = tuple[Ints, Ints, Ints, Ints, Bools]


def _missed_in_row(wait: Row, tile: Row) -> tuple[int, int, int] | None:
    wb, we, wf, wl, wanted = wait
    keep = tile[4]
    order = np.argsort(tile[0][keep], kind="stable")
    begin, end, first, last = (a[keep][order] for a in tile[:4])
    wb, we, wf, wl = wb[wanted], we[wanted], wf[wanted], wl[wanted]
    if not len(begin) or not len(wb):
        return None
    lo = np.searchsorted(np.maximum.accumulate(end), wb, side="right")
    hi = np.searchsorted(begin, we, side="left")
    sorted_words = bool((np.diff(first) >= 0).all() and (np.diff(last) >= 0).all())
    # Where words ascend with positions, the outermost tiles decide.
    steps = (0, -1) if sorted_words else range(int((hi - lo).max(initial=0)))
    for step in steps:
        at = lo + step if step >= 0 else hi - 1
        inside = (at < hi) & (lo < hi)
        at = np.clip(at, 0, len(begin) - 1)
        bad = inside & ((first[at] > wl) | (last[at] < wf))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            return int(begin[at[i]]), int(wb[i]), int(we[i])
    return None


# ---------------------------------------------------------------------------------------------------------------- bells
def _check_bells(plan: Plan, world: World, laid: Mapping[str, Laid], channel: Channel, told: tuple[Told, ...]) -> None:
    """A stream's wait resets the bell: each that is rung must be waited for just once in a call."""
    streams = (w for w in signals_on(plan, laid, channel, "await") if w.laid.step.engine == "stream")
    waits = _each_once([w for w in streams if not w.laid.step.by_runs])
    if channel.scope != "gpu" or not waits:
        return
    widths = [world.number(a.count) for a in channel.axes]
    own = to_itself(world)
    taken = [_product(w if channel.rings is None else leaving(w), widths, own, world) for w in waits]
    heard = taken[0]
    times = heard.most()
    if len(taken) > 1 or times > 1:
        raise TilelinkError(
            "TL605",
            f"a copy engine waits {'twice' if len(taken) > 1 or times == 2 else f'{times} times'} for one word of "
            f"`{channel.tensor}`",
            loc=waits[0].op.loc,
            why="its bell is rung once and reset by the first wait: the next one would never end",
            hint=f"let the tile of `{waits[0].path}` be a multiple of that of {_whom(told)}",
        )
    ringing = _ringing(channel, widths, world)
    if ringing is None:
        raise unproven(waits[0], "which bells are rung is no product of axes")
    if heard.beyond(ringing).any():
        raise unproven(waits[0], "a transfer begins without a bell, which nobody rings for what it takes")
    for notify in told:
        # A word is rung by whichever notify comes last: all words that any of them raises are, as far as they ring.
        raised = _product(notify, widths, delivery(notify), world)
        rings = zip(raised.tables, ringing.tables, strict=True)
        rung = Product(raised.scalar * ringing.scalar, tuple(t * r for t, r in rings))
        if rung.beyond(heard).any():
            raise unproven(waits[0], "a bell is rung that no transfer waits for, and would be heard in a later call")


def _each_once(waits: list[Told]) -> list[Told]:
    """A library function waits once for words that its program names twice."""
    out: list[Told] = []
    for w in waits:
        same = (o for o in out if o.path == w.path and w.laid.step.library is not None)
        if not any(all(a.same(b) for a, b in zip(o.words, w.words, strict=True)) for o in same):
            out.append(w)
    return out


def _ringing(channel: Channel, widths: list[int], world: World) -> Product | None:
    """Which words have bells that are rung; None: it is no product."""
    scalar, tables = np.ones((1, 1), np.int64), [np.ones((1, w), dtype=np.int64) for w in widths]
    if channel.rings is not None:
        indices = {f"c{k}": np.arange(w, dtype=np.int64)[None, :] for k, w in enumerate(widths)}
        used = sorted(F.symbols(channel.rings) & indices.keys())
        if len(used) > 1:
            return None
        rung = (world.value(channel.rings, indices) != 0).astype(np.int64)
        if used:
            tables[int(used[0][1:])] = rung
        else:
            scalar = rung
    return Product(scalar, tuple(tables))


def _product(told: Told, widths: list[int], to: Delivery, world: World) -> Product:
    """How often words are touched along each axis."""
    found = count(told, widths, to, world)
    if not isinstance(found, Product):
        raise unproven(told, "which bells it touches is no product of axes")
    return found
