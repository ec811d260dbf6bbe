"""Plans broken in one place by chance: signals, flags, orders, tiles, buffers, credits, the host's sequence."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from benchmarks.mutants.bodies import with_body, with_op
from tests.mapping.plans import unguarded, with_channel, with_step
from tilelink.frontend.values import shifted
from tilelink.ir import formula as F
from tilelink.ir.partition import GridAxis
from tilelink.ir.plan import Fork, HostStep, Join, Keep, Launch, Plan, Transfer
from tilelink.ir.program import If, Loop, Notify, Op, Tiles, Wait
from tilelink.mapping.orders import decode

Corruption = Callable[[random.Random, Plan], Plan | None]
ORDERS = [
    ("row",),
    ("column",),
    ("ring",),
    ("ring+1",),
    ("ring+2",),
    ("group 2",),
    ("ring", "group 2"),
    ("ring+1", "column"),
]


def _one(rng: random.Random, found: tuple[Any, ...]) -> Any | None:
    return rng.choice(found) if found else None


def _swapped(items: tuple[Any, ...], old: object, new: object) -> tuple[Any, ...]:
    return tuple(new if i is old else i for i in items)


# ---------------------------------------------------------------------------------------------------------------- signals
def drop_signal(rng: random.Random, plan: Plan) -> Plan | None:
    kept = tuple(s for s in plan.signals if s.action != "elided")
    s = _one(rng, kept)
    if s is None:
        return None
    reason = "nobody waits" if isinstance(s.op, Notify) else rng.choice(["worker", "stream", "argument"])
    return replace(plan, signals=_swapped(plan.signals, s, replace(s, action="elided", channel=None, reason=reason)))


def other_addressee(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.signals if s.action == "notify"))
    if s is None:
        return None
    to = rng.choice([t for t in ("self", "owner", "all") if t != s.to])
    return replace(plan, signals=_swapped(plan.signals, s, replace(s, to=to)))


def other_peer(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.signals if s.op.peer is not None and s.op.peer.ring is not None))
    if s is None:
        return None
    name, shift = s.op.peer.ring
    other = shifted(name, shift + rng.choice([-1, 1, 2]))
    return with_op(plan, s, replace(s.op, peer=replace(s.op.peer, expr=other.expr())))


def late_signal(rng: random.Random, plan: Plan) -> Plan | None:
    """A wait behind everything that its program does, or a notify before all but the first op."""
    kept = [s for s in plan.signals if s.action != "elided" and plan.step(s.path).step.program.copy_program is None]
    s = _one(rng, tuple(kept))
    if s is None:
        return None
    return with_body(plan, s.path, _moved(plan.step(s.path).step.program.body, s.op))


def _moved(body: tuple[Op, ...], op: Op) -> tuple[Op, ...]:
    if op in body:
        others = tuple(o for o in body if o != op)
        return (*others, op) if isinstance(op, Wait) else (*others[:1], op, *others[1:])
    out: list[Op] = []
    for o in body:
        if isinstance(o, (Tiles, Loop)):
            out.append(replace(o, body=_moved(o.body, op)))
        elif isinstance(o, If):
            out.append(replace(o, body=_moved(o.body, op), orelse=_moved(o.orelse, op)))
        else:
            out.append(o)
    return tuple(out)


# ------------------------------------------------------------------------------------------------------------------ flags
def other_target(rng: random.Random, plan: Plan) -> Plan | None:
    c = _one(rng, plan.channels)
    if c is None:
        return None
    return with_channel(
        plan, c.tensor, target=rng.choice([c.target + 1, F.maximum(c.target - 1, 0), F.of(1), c.target * 2])
    )


def other_guard(rng: random.Random, plan: Plan) -> Plan | None:
    c = _one(rng, tuple(c for c in plan.channels if unguarded(c) != c.target))
    return None if c is None else with_channel(plan, c.tensor, target=unguarded(c))


def weaker_scope(rng: random.Random, plan: Plan) -> Plan | None:
    c = _one(rng, tuple(c for c in plan.channels if c.scope == "sys"))
    return None if c is None else with_channel(plan, c.tensor, scope="gpu")


def other_writers(rng: random.Random, plan: Plan) -> Plan | None:
    c = _one(rng, plan.channels)
    return None if c is None else with_channel(plan, c.tensor, adds=not c.adds)


def other_span(rng: random.Random, plan: Plan) -> Plan | None:
    c = _one(rng, tuple(c for c in plan.channels if any(a.span is not None and a.axis is not None for a in c.axes)))
    if c is None:
        return None
    a = rng.choice([a for a in c.axes if a.span is not None and a.axis is not None])
    return with_channel(
        plan, c.tensor, axes=_swapped(c.axes, a, replace(a, span=max(1, a.span + rng.choice([-1, 1, a.span]))))
    )


def other_kind(rng: random.Random, plan: Plan) -> Plan | None:
    c = _one(rng, tuple(c for c in plan.channels if any(a.axis is not None for a in c.axes)))
    if c is None:
        return None
    a = rng.choice([a for a in c.axes if a.axis is not None])
    if a.span is None:
        return None
    kind = rng.choice([k for k in ("plain", "cut", "part") if k != a.kind])
    return with_channel(plan, c.tensor, axes=_swapped(c.axes, a, replace(a, kind=kind)))


# ------------------------------------------------------------------------------------------------------ orders and tiles
def other_order(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.steps if s.into is None))
    if s is None:
        return None
    names = rng.choice(ORDERS)
    order, total = decode(s.grid, names)
    return with_step(plan, s.path, order=order, total=total, order_said=names)


def fewer_tiles(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.steps if s.into is None))
    return None if s is None else with_step(plan, s.path, total=F.maximum(s.total - 1, 0))


def same_tile(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.steps if s.into is None and len(s.order) > 0))
    if s is None:
        return None
    name = rng.choice([n for n, _ in s.order if n[0] == "i"])
    return with_step(plan, s.path, order=tuple((n, F.of(0)) if n == name else (n, v) for n, v in s.order))


def other_tile(rng: random.Random, plan: Plan) -> Plan | None:
    """Tiles of another length, or counted over other parts; the order follows."""
    found = [
        (s, g)
        for s in plan.steps
        if s.into is None and not s.fused
        for g in s.grid
        if g.kind in ("cut", "plain", "mine")
    ]
    if not found:
        return None
    step, g = rng.choice(found)
    grid: GridAxis = rng.choice([replace(g, tile=(g.tile or 2) + 1), replace(g, tile=1), *_parts(g)])
    order, total = decode(_swapped(step.grid, g, grid), ("row",))
    return with_step(plan, step.path, grid=_swapped(step.grid, g, grid), order=order, total=total, order_said=("row",))


def _parts(g: GridAxis) -> Iterator[GridAxis]:
    if g.kind == "cut":
        yield replace(g, kind="mine")


def own_left_out(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.steps if s.step.program.copy_program is not None))
    return None if s is None else with_step(plan, s.path, skip_own=not s.skip_own)


def other_direction(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.steps if s.step.program.copy_program is not None and s.into is None))
    return None if s is None else with_step(plan, s.path, push=not s.push)


# ------------------------------------------------------------------------------------------------------- memory and calls
def smaller_buffer(rng: random.Random, plan: Plan) -> Plan | None:
    b = _one(rng, tuple(b for b in plan.buffers if b.space in ("symmetric", "device") and b.extents))
    if b is None:
        return None
    k = rng.randrange(len(b.extents))
    extents = tuple(F.maximum(e - 1, 0) if i == k else e for i, e in enumerate(b.extents))
    return replace(plan, buffers=_swapped(plan.buffers, b, replace(b, extents=extents)))


def no_credit(rng: random.Random, plan: Plan) -> Plan | None:
    return replace(plan, credits_implied_by="all") if plan.takes_credits else None


def one_slot(rng: random.Random, plan: Plan) -> Plan | None:
    if plan.schedule.slots == 1:
        return None
    buffers = tuple(replace(b, slots=1) for b in plan.buffers)
    return replace(plan, schedule=replace(plan.schedule, slots=1), buffers=buffers)


def fewer_slots(rng: random.Random, plan: Plan) -> Plan | None:
    """One buffer turns otherwise than the calls do."""
    b = _one(rng, tuple(b for b in plan.buffers if b.shared))
    if b is None:
        return None
    slots = rng.choice([n for n in (1, 2, 3, 4) if n != b.slots])
    return replace(plan, buffers=_swapped(plan.buffers, b, replace(b, slots=slots)))


# ------------------------------------------------------------------------------------------------- the host and its kernels
def host_step(rng: random.Random, plan: Plan) -> Plan | None:
    h: HostStep | None = _one(rng, plan.host)
    if h is None:
        return None
    return replace(plan, host=tuple(x for x in plan.host if x is not h))


def host_order(rng: random.Random, plan: Plan) -> Plan | None:
    if len(plan.host) < 2:
        return None
    k = rng.randrange(len(plan.host) - 1)
    host = list(plan.host)
    host[k], host[k + 1] = host[k + 1], host[k]
    return replace(plan, host=tuple(host))


def host_moved(rng: random.Random, plan: Plan) -> Plan | None:
    """A step comes at any other time: what is kept behind kernels, say, or a stream's steps behind its end."""
    host = list(plan.host)
    if len(host) < 2:
        return None
    kept = [k for k, h in enumerate(host) if isinstance(h, (Keep, Transfer, Fork, Join))]
    h = host.pop(rng.choice(kept or range(len(host))))
    host.insert(rng.randrange(len(host) + 1), h)
    return replace(plan, host=tuple(host))


def host_twice(rng: random.Random, plan: Plan) -> Plan | None:
    h = _one(rng, plan.host)
    if h is None:
        return None
    host = list(plan.host)
    host.insert(rng.randrange(len(host) + 1), h)
    return replace(plan, host=tuple(host))


def other_stream(rng: random.Random, plan: Plan) -> Plan | None:
    h = _one(rng, tuple(h for h in plan.host if isinstance(h, (Fork, Join, Launch, Transfer))))
    if h is None:
        return None
    streams = {x.stream for x in plan.host if isinstance(x, (Fork, Join, Launch, Transfer))} | {0, h.stream + 1}
    stream = rng.choice(sorted(streams - {h.stream}))
    return replace(plan, host=_swapped(plan.host, h, replace(h, stream=stream)))


def other_turns(rng: random.Random, plan: Plan) -> Plan | None:
    """Steps of a kernel take turns in another order, or have workers of their own."""
    k = _one(rng, tuple(k for k in plan.kernels if len(k.roles) > 1))
    if k is None:
        return None
    turned = replace(k, roles=tuple(reversed(k.roles)))
    apart = replace(k, turns=rng.choice([n for n in range(1, len(k.roles) + 1) if n != k.turns]))
    return replace(plan, kernels=_swapped(plan.kernels, k, rng.choice([turned, apart])))


def more_workers(rng: random.Random, plan: Plan) -> Plan | None:
    """No SM is left, where something else needs one."""
    k = _one(rng, plan.kernels)
    if k is None:
        return None
    path, count = k.roles[-1]
    roles = (*k.roles[:-1], (path, (count or 0) + plan.topology.device.sms - k.workers))
    return replace(plan, kernels=_swapped(plan.kernels, k, replace(k, roles=roles))) if roles != k.roles else None


# ---------------------------------------------------------------------------------------------------------------- fused steps
def other_deferred(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.steps if s.into is not None))
    return None if s is None else with_step(plan, s.path, deferred=not s.deferred)


def other_subtiles(rng: random.Random, plan: Plan) -> Plan | None:
    """Of a step that notifies nobody: others are taken whole (TL607), also where its notifies are given to no rank."""
    told = {s.path for s in plan.signals if s.action == "notify"}
    found = (s for s in plan.steps if s.into is not None and (s.grid[-1].tile or 1) > 1 and s.path not in told)
    s = _one(rng, tuple(found))
    return None if s is None else with_step(plan, s.path, subtiles=2 if s.subtiles == 1 else 1)


def not_forwarded(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.steps if s.forwarded))
    return None if s is None else with_step(plan, s.path, forwarded=())


def other_rows(rng: random.Random, plan: Plan) -> Plan | None:
    s = _one(rng, tuple(s for s in plan.steps if s.own_axis is not None))
    return None if s is None else with_step(plan, s.path, own_axis=None)


# ----------------------------------------------------------------------------------------------------------------- doorbells
def other_doorbells(rng: random.Random, plan: Plan) -> Plan | None:
    c = _one(rng, tuple(c for c in plan.channels if c.doorbells))
    if c is None:
        return None
    other = "beside" if c.doorbells == "alone" else "alone"
    return with_channel(plan, c.tensor, **rng.choice([{"rings": None}, {"doorbells": other}, {"doorbells": ""}]))


def brought_along(rng: random.Random, plan: Plan) -> Plan | None:
    """A part that is read in place: by one reader less, by a tile of another axis, or in a step that may not."""
    s = _one(rng, tuple(s for s in plan.steps if s.in_place))
    if s is None:
        return None
    own = s.in_place[0]
    others = [g.var for g in s.grid if g.var not in (None, own.var)]
    ways = [(), *((replace(own, var=var),) for var in others)]
    changed = replace(plan, steps=_swapped(plan.steps, s, replace(s, in_place=rng.choice(ways))))
    if all(not s.in_place for s in changed.steps):
        return None  # nothing is read in place, and all of it is moved: that is right
    return changed


CORRUPTIONS: dict[str, Corruption] = {
    f.__name__: f
    for f in (
        drop_signal, late_signal, other_addressee, other_peer, other_target, other_guard, weaker_scope, other_writers, other_span,
        other_kind, other_order, fewer_tiles, same_tile, other_tile, own_left_out, other_direction, smaller_buffer,
        no_credit, one_slot, fewer_slots, host_step, host_order, host_moved, host_twice, other_stream,
        other_turns, more_workers, other_deferred, other_subtiles, not_forwarded, other_rows, other_doorbells,
        brought_along,
    )
}  # fmt: skip
