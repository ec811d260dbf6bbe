"""Rule 6, epochs: a credit that the plan leaves out is implied by what every rank hears in each call (G8).

Who has heard from q in call e - 1 knows that q has entered it and so has left call e - 2, however slow q is. Every rank
has to hear from every rank in each call, whatever the number of slots: the calls before may have been of other sizes, in
which others were heard.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilelink.errors import Note, TilelinkError
from tilelink.ir.plan import Plan
from tilelink.ir.program import Loop, Notify, Tiles, Wait
from tilelink.mapping.sites import site_of
from tilelink.mapping.verify.geometry import Bools, Ints, World
from tilelink.mapping.verify.mistakes import REPORT
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.words import Delivery, Told, Words, delivery, holder_of, signals_on


def check_epochs(plan: Plan, world: World, laid: Mapping[str, Laid]) -> str:
    """Raises:
    TilelinkError: TL610, a credit is left out that nothing implies.
    """
    shared = [b for b in plan.buffers if b.shared]
    credits = {c.tensor: c for c in plan.credits}
    kept = [b.tensor for b in shared if b.tensor in credits and credits[b.tensor].implied_by is None]
    if not shared:
        return "no memory is shared between ranks"
    slots = min(_turn(plan.schedule.slots, b.slots) for b in shared)
    if kept and slots == plan.schedule.slots:
        # One credit that is waited for is waited for from every rank, before anything is written.
        return f"every call waits until all ranks have left the one that used its slots ({_names(kept)})"
    known = heard(plan, world, laid) if slots > 1 else np.eye(world.ranks, dtype=np.bool_)
    if not known.all():
        rank, source = (int(i) for i in np.argwhere(~known)[0])
        raise _refused(plan, min(shared, key=lambda b: b.slots).tensor, slots, rank, source)
    freed = _names([b.tensor for b in shared if b.tensor not in kept])
    return f"{plan.schedule.slots} slots: every rank hears from every rank in a call, so {freed} needs no credit"


def _turn(slots: int, copies: int) -> int:
    """Calls until a buffer's memory is used again, where calls count up to `slots`."""
    return min(slots, copies) if copies >= slots or slots % copies == 0 else 1


def _names(tensors: list[str]) -> str:
    return ", ".join(f"`{t}`" for t in tensors)


def heard_by(plan: Plan, world: World, laid: Mapping[str, Laid]) -> dict[str, Bools]:
    """Tensor -> (rank, source): in each call the rank waits for something that the source does to the tensor."""
    out: dict[str, Bools] = {}

    def add(tensor: str, direct: Bools) -> None:
        out[tensor] = out.get(tensor, np.eye(world.ranks, dtype=np.bool_)) | direct

    for s in plan.signals:
        if s.action == "ready":
            add(laid[s.path].tensor(s.op.param).name, _ready(laid[s.path], s.op, world))
    for channel in plan.channels:
        told = signals_on(plan, laid, channel, "notify")
        for wait in signals_on(plan, laid, channel, "await"):
            for notify in told:
                add(channel.tensor, _pair(wait, notify, world))
    return out


def heard(plan: Plan, world: World, laid: Mapping[str, Laid]) -> Bools:
    """(rank, source): in each call the rank waits for something that the source does in that call."""
    found = heard_by(plan, world, laid).values()
    return np.logical_or.reduce([np.eye(world.ranks, dtype=np.bool_), *found])


def _ready(laid: Laid, op: Wait | Notify, world: World) -> Bools:
    """A rank waits for the holder of each tile that it pulls."""
    out = np.zeros((world.ranks, world.ranks), dtype=np.bool_)
    found = holder_of(laid, op.param, op.index)
    if found.to is None or found.kind != "tile" or found.key is None:
        return out
    spans = laid.spans[found.key]
    assert spans is not None
    holder, filled = np.broadcast_arrays(found.to, spans.filled)
    rows = np.nonzero(filled)
    if holder.shape[0] == 1:
        out[:, holder[rows]] = True
    else:
        out[rows[0], holder[rows]] = True
    return out & ~laid.idle(site_of(laid.step.step.program, op))


def _pair(wait: Told, notify: Told, world: World) -> Bools:
    """(rank, source): some word that the source raises on the rank is waited for there."""
    to = delivery(notify)
    if to.stays:
        return np.eye(world.ranks, dtype=np.bool_)  # at most: whoever tells itself hears of no other
    return met(wait, notify, to, world)


def met(wait: Told, notify: Told, to: Delivery, world: World) -> Bools:
    """The same of a notify for `to`, where data does not say which words they are."""
    ranks = np.arange(world.ranks)
    out = np.ones((world.ranks, world.ranks), dtype=np.bool_)
    for k, (mine, theirs) in enumerate(zip(wait.words, notify.words, strict=True)):
        width = world.number(wait.channel.axes[k].count)
        if mine.by_data or theirs.by_data:
            # Whichever words they are, they may be none.
            return np.zeros_like(out)
        out &= _common(_touched(mine, width), _touched(theirs, width))
    if to.kind == "all":
        out &= world.same_line(notify.laid.step.axis)
    if to.kind == "one" and to.to is not None:
        reached = np.zeros_like(out)
        reached[to.to, ranks] = True
        out &= reached
    elif to.kind == "tile" and to.to is not None and to.key is not None:
        spans = notify.laid.spans[to.key]
        assert spans is not None
        filled = np.broadcast_arrays(notify.mask.on(spans, to.key).filled, to.to)
        row, col = np.nonzero(filled[0])
        reached = np.zeros_like(out)
        if filled[0].shape[0] == 1:
            reached[filled[1][row, col], :] = True
        else:
            reached[filled[1][row, col], row] = True
        out &= reached
    if notify.laid.keeps_own:
        out &= ~np.eye(world.ranks, dtype=np.bool_)
    return out & _done(wait, world) & _done(notify, world).T


def _done(told: Told, world: World) -> Bools:
    """(ranks, 1): ranks on which the signal is given, or waited for, once at least, whatever data says."""
    laid, never = told.laid, np.zeros((world.ranks, 1), dtype=np.bool_)
    if told.mask.data or not all(_goes_round(laid, loop) for loop in told.site.loops):
        return never
    keys = [*range(len(laid.step.grid)), *(loop.var for loop in told.site.loops if isinstance(loop, Tiles))]
    done = ~never & told.mask.by.get(None, ~never)
    for key in keys:
        spans = laid.spans[key]
        if spans is not None:
            done = done & told.mask.on(spans, key).filled.any(axis=1, keepdims=True)
    return done


def _goes_round(laid: Laid, loop: Tiles | Loop) -> bool:
    """Whether the plan knows how often; of a loop over tiles, which ones there are."""
    if isinstance(loop, Tiles):
        return laid.spans[loop.var] is not None
    often = laid.value(loop.turns)
    return often is not None and bool((often.array > 0).all())


def _touched(w: Words, width: int) -> Bools:
    """(ranks or 1, words)"""
    shape = (max(len(w.first), len(w.last), len(w.real)), w.first.shape[1])
    out: Ints = np.zeros((shape[0], width + 1), dtype=np.int64)
    row, col = np.nonzero(np.broadcast_to(w.real, shape))
    lo = np.clip(np.broadcast_to(w.first, shape)[row, col], 0, width)
    hi = np.clip(np.broadcast_to(w.last, shape)[row, col] + 1, lo, width)
    np.add.at(out, (row, lo), 1)
    np.add.at(out, (row, hi), -1)
    return np.cumsum(out, axis=1)[:, :width] > 0


def _common(mine: Bools, theirs: Bools) -> Bools:
    """(rank or 1, source or 1): whether the two have a word in common."""
    return (mine.astype(np.float32) @ theirs.astype(np.float32).T) > 0


def _refused(plan: Plan, tensor: str, slots: int, rank: int, source: int) -> TilelinkError:
    decl = plan.wiring.tensor(tensor)
    if slots == 1:
        why = "with one slot nothing that is heard in the call before says that its user has left it"
    else:
        why = (
            f"a rank has to hear from all others in each call, and nothing that rank {source} does reaches rank {rank}"
        )
    return TilelinkError(
        "TL610",
        f"rank {rank} may write `{tensor}` again while rank {source} still uses it from {slots} calls ago",
        loc=decl.loc or plan.wiring.loc,
        why=why,
        hint=REPORT,
        notes=(Note("a rank without rows signals nothing"),),
    )
