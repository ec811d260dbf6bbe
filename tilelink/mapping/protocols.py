"""What the signals of a call spare: credits that they imply, counts where the number of the call does, and flags of tensors
whose data carry it (LL)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tilelink.ir import formula as F
from tilelink.ir.lowered import ENTERED, READY
from tilelink.ir.partition import Channel
from tilelink.ir.plan import COPIES, LL_DATA, LL_MOST, Plan, StepPlan
from tilelink.ir.program import Load, Move, Notify, OfTile, Op, Raw, Store, Tiles, Wait, Whole, blocks, walk
from tilelink.ir.shape import ITEM_BYTES
from tilelink.ir.wiring import entries
from tilelink.mapping.lower import lower
from tilelink.proof.calls import hearing
from tilelink.proof.table import Array, Table


def implying_credits(plan: Plan) -> str | None:
    """The tensors whose signals say when slots may be written again; None: nobody's do, and a call takes credits.

    With two or more slots, a rank that in each call waits for something of every rank knows on entry to call e that
    every rank has entered call e - 1 and so has left call e - 2: the ready signals imply the credit. A rank without rows
    sends none, and with one slot nothing does.
    """
    if plan.unverified or not plan.takes_credits or plan.schedule.slots == 1:
        return None
    table = Table.of(lower(plan, text=False))
    # Those flags that say that a call has begun, or that what is staged is there, are waited for by arguments.
    ready = [plan.step(s.path).step.binding(s.op.param).tensor for s in plan.signals if s.action == "ready"]
    staged = {name: plan.buffer(name).staged for name in dict.fromkeys(ready)}
    tensors = {flags: " and ".join(n for n in staged if staged[n] == (flags == READY)) for flags in (READY, ENTERED)}
    there = {f.name for f in table.lowered.flags}
    heard: dict[str, Array] = {}
    for flags, tensor in (tensors | {c.tensor: c.tensor for c in plan.channels}).items():
        if tensor and flags in there:
            heard[tensor] = hearing(table, flags)
            if heard[tensor].all():
                return tensor
    # One tensor's signals let every rank hear from every rank in each call, or those of several together.
    together = heard and np.logical_or.reduce([*heard.values()]).all()
    return " and ".join(heard) if together else None


def epoch_signalled(plan: Plan) -> bool:
    """Whether the call is one kernel, in which each word is raised once and every rank hears from every other.

    Then words are set to the number of the call, which each worker counts for itself, and neither does anybody wait for
    the last worker, nor do ranks say that they have begun, unless a slot is used in two calls running.
    """
    if len(plan.whole_call) != 1 or plan.credits_implied_by is None or any(s.deferred for s in plan.steps):
        return False
    return plan.kernel(plan.whole_call[0]).workers <= COPIES and all(_once(plan, c) for c in plan.channels)


def _once(plan: Plan, c: Channel) -> bool:
    """Whether one notify of a worker of any rank completes each word."""
    if c.scope != "sys" or not c.adds:  # and so without doorbells
        return False
    for env in map(plan.env, range(plan.topology.ranks)):
        words = np.arange(int(F.evaluate(c.flags, env)))
        if not np.all(F.evaluate(c.target, c.at(words, env)) == 1):
            return False
    return True


def by_ll(plan: Plan) -> bool:
    """Whether tensors come so: all of an epoch-signalled call, where they are small, and written and read as `_fits` says.

    All or none: where one of them needs a release, it covers the others too.
    """
    # AMD's caches keep what is stored to peers until something writes them back.
    if not plan.schedule.ll or not plan.epoch_signalled or plan.topology.reach != "peer" or plan.topology.device.amd:
        return False
    return all(_small(plan, c.tensor) and _fits(plan, c.tensor) for c in plan.channels)


def _small(plan: Plan, tensor: str) -> bool:
    """Whether it is a tensor of whole words on each row, and of few of them. Of one without any nobody would hear."""
    buffer = plan.buffer_or_none(tensor)
    if buffer is None or buffer.space != "symmetric" or ITEM_BYTES[buffer.dtype] not in (2, LL_DATA):
        return False
    for rank in range(plan.topology.ranks):
        extents = [int(F.evaluate(e, plan.env(rank))) for e in buffer.extents]
        most = LL_MOST * plan.topology.ranks // max(plan.topology.ranks - 1, 1)
        nbytes = math.prod(extents) * ITEM_BYTES[buffer.dtype]
        if not extents or not 0 < nbytes <= most or extents[-1] * ITEM_BYTES[buffer.dtype] % LL_DATA:
            return False
    return True


def _fits(plan: Plan, tensor: str) -> bool:
    """Whether programs push whole tiles, and each load is of a tile that was waited for just before: then a load that waits for
    its own words waits for what the program waits for, and ends. So do copy programs, which wait for what they move."""
    uses = [(s, b.param) for s in plan.steps for b in s.step.bindings if b.tensor == tensor]
    if any(tensor in s.forwarded or s.subtiles > 1 for s, _ in uses):
        return False
    return all(_moved(plan, s, param) if s.copies else _says_itself(plan, s, param) for s, param in uses)


def _moved(plan: Plan, step: StepPlan, param: str) -> bool:
    """Whether workers push a tensor to the ranks that hold it, or take their own instance of it, by panels of whole words."""
    binding, moves = step.step.binding(param), step.step.moves
    tensor, last = plan.wiring.tensor(binding.tensor), len(plan.wiring.tensor(binding.tensor).axes) - 1
    if step.engine.by != "kernel" or moves is None or step.push != (param == moves[1].param):
        return False
    if not step.push and binding.names_holders:
        return False
    # Tiles of smaller elements begin and end at even positions of the tensor's last axis.
    g = next((g for v, g in zip(binding.view, step.grid, strict=True) if v.axis == last), None)
    if ITEM_BYTES[tensor.dtype] == LL_DATA:
        return True
    if g is None or g.kind not in ("plain", "cut", "mine") or (g.tile or 0) % 2:
        return False
    split = g.kind != "plain" or tensor.axes[last].split is not None
    lengths = (g.size, g.part) if split else (g.size,)
    return not any(int(F.evaluate(n, plan.env(rank))) % 2 for n in lengths for rank in range(plan.topology.ranks))


def _says_itself(plan: Plan, step: StepPlan, param: str) -> bool:
    """Whether a program pushes and reads a tensor by tiles of whole words, right before it notifies and behind its waits."""
    found = [op for op in walk(step.step.program.body) if getattr(op, "param", None) == param]
    if any(isinstance(op, (Move, Raw)) for op in found):
        return False
    if any(isinstance(op, Store) and (op.to == "own" or op.mask is not None or not op.value.vector) for op in found):
        return False
    if not all(_of_words(plan, step, op) for op in found if isinstance(op, (Load, Store))):
        return False
    return all(_paired(block, param) for block in blocks(step.step.program.body))


def _paired(block: Iterable[Op], param: str) -> bool:
    """Whether of one block of lines each push has its notify behind it, and each wait its load, of the same tile."""
    mine = [op for op in block if isinstance(op, (Load, Store, Wait, Notify)) and op.param == param]
    kinds = [type(op) for op in mine]
    pairs = zip(kinds[::2], kinds[1::2], strict=False)
    alike = all(a.index == b.index for a, b in zip(mine[::2], mine[1::2], strict=False))
    return len(mine) % 2 == 0 and alike and all(pair in ((Store, Notify), (Wait, Load)) for pair in pairs)


def _of_words(plan: Plan, step: StepPlan, op: Load | Store) -> bool:
    """Whether an access takes whole words of memory's last axis, where a tile may begin at any multiple of its length."""
    tensor = plan.wiring.tensor(step.step.binding(op.param).tensor)
    if isinstance(op, Load) and op.other is not None and op.other.text not in ("0", "0.0"):
        return False
    view, found = step.step.binding(op.param).view, entries(step.step, op.param, op.index)
    entry, axis = found[-1], len(tensor.axes) - 1
    if view[-1].axis != axis or tensor.axes[axis].split is not None:
        return False
    if isinstance(entry, Whole):
        return True
    elements = LL_DATA // ITEM_BYTES[tensor.dtype]
    grids = [g for g in (*step.grid, *step.loops) if g.dim == view[-1].dim]
    if not isinstance(entry, OfTile) or not grids or any(g.kind != "plain" for g in grids):
        return False
    # A loop with limits begins and ends where the program says, be it inside a word.
    limited = any(isinstance(o, Tiles) and o.var == entry.var and o.limited for o in walk(step.step.program.body))
    return elements == 1 or not (limited or any((g.tile or elements) % elements for g in grids))
