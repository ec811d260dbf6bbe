"""Rule 6, epochs: a credit that the plan leaves out is implied by what every rank hears in each call (G8).

Who has heard from q in call e - 1 knows that q has entered it and so has left call e - 2; by way of others, a call earlier
for each of them. With D slots, whoever is at most D - 1 steps away is known to be through with the slot.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilelink.errors import Note, TilelinkError
from tilelink.ir.plan import Plan
from tilelink.mapping.verify.geometry import Bools, Ints, World
from tilelink.mapping.verify.reach import Laid
from tilelink.mapping.verify.words import Told, Words, delivery, holder_of, signals_on


def check_epochs(plan: Plan, world: World, laid: Mapping[str, Laid]) -> str:
    """Raises:
    TilelinkError: TL610, a credit is left out that nothing implies.
    """
    shared = [b for b in plan.buffers if b.space == "symmetric" or b.staged]
    credits = {c.tensor: c for c in plan.credits}
    kept = [b.tensor for b in shared if b.tensor in credits and credits[b.tensor].implied_by is None]
    dropped = [b for b in shared if b.tensor not in kept]
    if not shared:
        return "no memory is shared between ranks"
    if kept:
        # One credit that is waited for is waited for from every rank, before anything is written.
        return f"every call waits until all ranks have left the one that used its slots ({_names(kept)})"
    known = _after(heard(plan, world, laid), min(b.slots for b in dropped) - 1)
    if not known.all():
        rank, source = (int(i) for i in np.argwhere(~known)[0])
        raise _refused(plan, dropped[0].tensor, rank, source)
    freed = _names([b.tensor for b in dropped])
    return f"{plan.schedule.slots} slots: every rank hears from every rank in a call, so {freed} needs no credit"


def _names(tensors: list[str]) -> str:
    return ", ".join(f"`{t}`" for t in tensors)


def _after(direct: Bools, steps: int) -> Bools:
    """Who is at most `steps` hearings away."""
    known = np.eye(len(direct), dtype=np.bool_)
    for _ in range(min(steps, len(direct))):
        known = known | ((known.astype(np.float32) @ direct.astype(np.float32)) > 0)
    return known


def heard(plan: Plan, world: World, laid: Mapping[str, Laid]) -> Bools:
    """(rank, source): in each call the rank waits for something that the source does in that call."""
    out = np.eye(world.ranks, dtype=np.bool_)
    for s in plan.signals:
        if s.action == "ready":
            out |= _ready(laid[s.path], s.op.param, world)
    for channel in plan.channels:
        told = signals_on(plan, laid, channel, "notify")
        for wait in signals_on(plan, laid, channel, "await"):
            for notify in told:
                out |= _pair(wait, notify, world)
    return out


def _ready(laid: Laid, param: str, world: World) -> Bools:
    """A rank waits for the holder of each tile that it pulls."""
    out = np.zeros((world.ranks, world.ranks), dtype=np.bool_)
    found = holder_of(laid, param, None)
    if found.to is None or found.kind != "tile" or found.key is None:
        return out
    if any(s is not None and not s.filled.any() for s in laid.spans.values()):
        return out
    spans = laid.spans[found.key]
    assert spans is not None
    holder, filled = np.broadcast_arrays(found.to, spans.filled)
    rows = np.nonzero(filled)
    if holder.shape[0] == 1:
        out[:, holder[rows]] = True
    else:
        out[rows[0], holder[rows]] = True
    return out & _busy(laid, world)


def _busy(laid: Laid, world: World) -> Bools:
    """(ranks, 1): ranks on which the step has tiles."""
    busy = np.ones((world.ranks, 1), dtype=np.bool_)
    for a in range(len(laid.step.grid)):
        spans = laid.spans[a]
        if spans is not None:
            busy = busy & spans.filled.any(axis=1, keepdims=True)
    return busy


def _pair(wait: Told, notify: Told, world: World) -> Bools:
    """(rank, source): some word that the source raises on the rank is waited for there."""
    ranks = np.arange(world.ranks)
    to = delivery(notify)
    out = np.ones((world.ranks, world.ranks), dtype=np.bool_)
    for k, (mine, theirs) in enumerate(zip(wait.words, notify.words, strict=True)):
        width = world.number(wait.channel.axes[k].count)
        if mine.by_data or theirs.by_data:
            # Whichever words they are, they may be none.
            return np.zeros_like(out)
        out &= _common(_touched(mine, width), _touched(theirs, width))
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
    return out & _busy(wait.laid, world) & _busy(notify.laid, world).T


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


def _refused(plan: Plan, tensor: str, rank: int, source: int) -> TilelinkError:
    decl = plan.wiring.tensor(tensor)
    slots = plan.schedule.slots
    why = "with one slot" if slots == 1 else f"with {slots} slots"
    return TilelinkError(
        "TL610",
        f"rank {rank} may write `{tensor}` again while rank {source} still uses it from {slots} calls ago",
        loc=decl.loc or plan.wiring.loc,
        why=f"{why} a rank has to hear from all others in each call, and nothing that rank {source} does reaches rank {rank}",
        hint="this is the plan's mistake and not yours: please report it with the schedule",
        notes=(Note("a rank without rows signals nothing"),),
    )
