"""Plans broken in one place: signals, flags, orders, tiles, buffers, credits, the host's sequence. Of each kind of mistake, every
plan that has it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from benchmarks.mutants.bodies import with_body, with_op
from tests.mapping.plans import unguarded, with_buffer, with_channel, with_step
from tilelink.frontend.values import shifted
from tilelink.ir import formula as F
from tilelink.ir.partition import ChannelAxis, GridAxis
from tilelink.ir.plan import Fork, HostStep, Join, Keep, KernelPlan, Launch, Plan, Signal, StepPlan, Transfer
from tilelink.ir.program import If, Loop, Notify, Op, Tiles, Wait
from tilelink.mapping.orders import decode

Corruption = Callable[[Plan], Iterator[Plan]]
ORDERS = [
    ("row",),
    ("column",),
    ("ring",),
    ("ring+1",),
    ("ring+2",),
    ("group 2",),
    ("ring", "group 3"),
    ("ring+1", "group 2"),
    ("ring+1", "column"),
]


def spoilt(rng: random.Random, plan: Plan, how: str) -> Plan | None:
    """By one of `CORRUPTIONS`; None: there is nothing that could be wrong so."""
    found = [*CORRUPTIONS[how](plan)]
    return rng.choice(found) if found else None


def _swapped(items: tuple[Any, ...], old: object, new: object) -> tuple[Any, ...]:
    return tuple(new if i is old else i for i in items)


# ---------------------------------------------------------------------------------------------------------------- signals
def _with_signal(plan: Plan, s: Signal, **changes: Any) -> Plan:
    return replace(plan, signals=_swapped(plan.signals, s, replace(s, **changes)))


def drop_signal(plan: Plan) -> Iterator[Plan]:
    for s in (s for s in plan.signals if s.action != "elided"):
        for reason in ("nobody waits",) if isinstance(s.op, Notify) else ("worker", "stream", "argument"):
            yield _with_signal(plan, s, action="elided", channel=None, reason=reason)


def other_addressee(plan: Plan) -> Iterator[Plan]:
    for s in (s for s in plan.signals if s.action == "notify"):
        yield from (_with_signal(plan, s, to=to) for to in ("self", "owner", "all") if to != s.to)


def other_peer(plan: Plan) -> Iterator[Plan]:
    for s in plan.signals:
        if s.op.peer is not None and s.op.peer.ring is not None:
            name, shift = s.op.peer.ring
            for by in (-1, 1, 2):
                yield with_op(plan, s, replace(s.op, peer=replace(s.op.peer, expr=shifted(name, shift + by).expr())))


def late_signal(plan: Plan) -> Iterator[Plan]:
    """A wait behind everything that its program does, or a notify before all but the first op."""
    for s in plan.signals:
        program = plan.step(s.path).step.program
        if s.action != "elided" and program.copy_program is None:
            yield with_body(plan, s.path, _moved(program.body, s.op))


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
def other_target(plan: Plan) -> Iterator[Plan]:
    for c in plan.channels:
        for target in (c.target + 1, F.maximum(c.target - 1, 0), F.of(1), c.target * 2):
            yield with_channel(plan, c.tensor, target=target)


def other_guard(plan: Plan) -> Iterator[Plan]:
    free = ((c, unguarded(c)) for c in plan.channels)
    yield from (with_channel(plan, c.tensor, target=target) for c, target in free if target != c.target)


def weaker_scope(plan: Plan) -> Iterator[Plan]:
    yield from (with_channel(plan, c.tensor, scope="gpu") for c in plan.channels if c.scope == "sys")


def other_writers(plan: Plan) -> Iterator[Plan]:
    yield from (with_channel(plan, c.tensor, adds=not c.adds) for c in plan.channels)


def _other_axes(plan: Plan, others: Callable[[ChannelAxis, int], Iterator[ChannelAxis]]) -> Iterator[Plan]:
    """`others`: what an axis, of flags of so many positions, might be instead."""
    for c in plan.channels:
        for a in c.axes:
            for other in others(a, a.span) if a.axis is not None and a.span is not None else ():
                yield with_channel(plan, c.tensor, axes=_swapped(c.axes, a, other))


def other_span(plan: Plan) -> Iterator[Plan]:
    return _other_axes(plan, lambda a, span: (replace(a, span=n) for n in (max(1, span - 1), span + 1, 2 * span)))


def other_kind(plan: Plan) -> Iterator[Plan]:
    return _other_axes(plan, lambda a, _: (replace(a, kind=k) for k in ("plain", "cut", "part") if k != a.kind))


# ------------------------------------------------------------------------------------------------------ orders and tiles
def _hosts(plan: Plan) -> Iterator[StepPlan]:
    """Steps whose tiles are their own."""
    return (s for s in plan.steps if s.into is None)


def other_order(plan: Plan) -> Iterator[Plan]:
    for s in _hosts(plan):
        for names in ORDERS:
            order, total = decode(s.grid, names)
            yield with_step(plan, s.path, order=order, total=total, order_said=names)


def fewer_tiles(plan: Plan) -> Iterator[Plan]:
    yield from (with_step(plan, s.path, total=F.maximum(s.total - 1, 0)) for s in _hosts(plan))


def same_tile(plan: Plan) -> Iterator[Plan]:
    for s in _hosts(plan):
        for name in (n for n, _ in s.order if n[0] == "i"):
            yield with_step(plan, s.path, order=tuple((n, F.of(0)) if n == name else (n, v) for n, v in s.order))


def other_tile(plan: Plan) -> Iterator[Plan]:
    """Tiles of another length, or counted over other parts; the order follows."""
    for s in (s for s in _hosts(plan) if not s.fused):
        for old in (g for g in s.grid if g.kind in ("cut", "plain", "mine")):
            for new in _other_grids(old):
                grid = _swapped(s.grid, old, new)
                order, total = decode(grid, ("row",))
                yield with_step(plan, s.path, grid=grid, order=order, total=total, order_said=("row",))


def _other_grids(g: GridAxis) -> Iterator[GridAxis]:
    yield replace(g, tile=(g.tile or 2) + 1)
    yield replace(g, tile=1)
    if g.kind == "cut":
        yield replace(g, kind="mine")


def own_left_out(plan: Plan) -> Iterator[Plan]:
    moving = (s for s in plan.steps if s.step.program.copy_program is not None)
    yield from (with_step(plan, s.path, skip_own=not s.skip_own) for s in moving)


def other_direction(plan: Plan) -> Iterator[Plan]:
    moving = (s for s in _hosts(plan) if s.step.program.copy_program is not None)
    yield from (with_step(plan, s.path, push=not s.push) for s in moving)


# ------------------------------------------------------------------------------------------------------- memory and calls
def smaller_buffer(plan: Plan) -> Iterator[Plan]:
    for b in (b for b in plan.buffers if b.space in ("symmetric", "device")):
        for k, e in enumerate(b.extents):
            yield with_buffer(plan, b.name, extents=(*b.extents[:k], F.maximum(e - 1, 0), *b.extents[k + 1 :]))


def no_credit(plan: Plan) -> Iterator[Plan]:
    if plan.takes_credits:
        yield replace(plan, credits_implied_by="all")


def one_slot(plan: Plan) -> Iterator[Plan]:
    if plan.schedule.slots != 1:
        buffers = tuple(replace(b, slots=1) for b in plan.buffers)
        yield replace(plan, schedule=replace(plan.schedule, slots=1), buffers=buffers)


def fewer_slots(plan: Plan) -> Iterator[Plan]:
    """One buffer turns otherwise than the calls do."""
    for b in (b for b in plan.buffers if b.shared):
        yield from (with_buffer(plan, b.name, slots=n) for n in (1, 2, 3, 4) if n != b.slots)


# ------------------------------------------------------------------------------------------------- the host and its kernels
def _with_host(plan: Plan, host: list[HostStep], h: HostStep, at: int) -> Plan:
    """`h` comes as the one with number `at`."""
    return replace(plan, host=(*host[:at], h, *host[at:]))


def host_step(plan: Plan) -> Iterator[Plan]:
    yield from (replace(plan, host=tuple(x for x in plan.host if x is not h)) for h in plan.host)


def host_order(plan: Plan) -> Iterator[Plan]:
    for k, h in enumerate(plan.host[:-1]):
        yield _with_host(plan, [x for x in plan.host if x is not h], h, k + 1)


def host_moved(plan: Plan) -> Iterator[Plan]:
    """A step comes at any other time: what is kept behind kernels, say, or a stream's steps behind its end."""
    kept = [h for h in plan.host if isinstance(h, (Keep, Transfer, Fork, Join))]
    for h in kept or plan.host:
        others = [x for x in plan.host if x is not h]
        yield from (_with_host(plan, others, h, at) for at in range(len(plan.host)))


def host_twice(plan: Plan) -> Iterator[Plan]:
    for h in plan.host:
        yield from (_with_host(plan, [*plan.host], h, at) for at in range(len(plan.host) + 1))


def other_stream(plan: Plan) -> Iterator[Plan]:
    found = [h for h in plan.host if isinstance(h, (Fork, Join, Launch, Transfer))]
    for h in found:
        for stream in sorted(({x.stream for x in found} | {0, h.stream + 1}) - {h.stream}):
            yield replace(plan, host=_swapped(plan.host, h, replace(h, stream=stream)))


def _with_kernel(plan: Plan, k: KernelPlan, **changes: Any) -> Plan:
    return replace(plan, kernels=_swapped(plan.kernels, k, replace(k, **changes)))


def other_turns(plan: Plan) -> Iterator[Plan]:
    """Steps of a kernel take turns in another order, or have workers of their own."""
    for k in (k for k in plan.kernels if len(k.roles) > 1):
        yield _with_kernel(plan, k, roles=tuple(reversed(k.roles)))
        yield from (_with_kernel(plan, k, turns=n) for n in range(1, len(k.roles) + 1) if n != k.turns)


def more_workers(plan: Plan) -> Iterator[Plan]:
    """No SM is left, where something else needs one."""
    for k in plan.kernels:
        path, count = k.roles[-1]
        roles = (*k.roles[:-1], (path, (count or 0) + plan.topology.device.sms - k.workers))
        if roles != k.roles:
            yield _with_kernel(plan, k, roles=roles)


# ---------------------------------------------------------------------------------------------------------------- fused steps
def other_deferred(plan: Plan) -> Iterator[Plan]:
    yield from (with_step(plan, s.path, deferred=not s.deferred) for s in plan.steps if s.into is not None)


def other_subtiles(plan: Plan) -> Iterator[Plan]:
    """Of a step that notifies nobody: others are taken whole (TL607), also where its notifies are given to no rank."""
    told = {s.path for s in plan.signals if s.action == "notify"}
    for s in plan.steps:
        if s.into is not None and (s.grid[-1].tile or 1) > 1 and s.path not in told:
            yield with_step(plan, s.path, subtiles=2 if s.subtiles == 1 else 1)


def not_forwarded(plan: Plan) -> Iterator[Plan]:
    yield from (with_step(plan, s.path, forwarded=()) for s in plan.steps if s.forwarded)


def other_rows(plan: Plan) -> Iterator[Plan]:
    yield from (with_step(plan, s.path, own_axis=None) for s in plan.steps if s.own_axis is not None)


# ----------------------------------------------------------------------------------------------------------------- doorbells
def other_doorbells(plan: Plan) -> Iterator[Plan]:
    for c in (c for c in plan.channels if c.doorbells):
        yield with_channel(plan, c.tensor, rings=None)
        for other in ("beside" if c.doorbells == "alone" else "alone", ""):
            yield with_channel(plan, c.tensor, doorbells=other)


def brought_along(plan: Plan) -> Iterator[Plan]:
    """A part that is read in place: by one reader less, by a tile of another axis, or in a step that may not."""
    read = [s for s in plan.steps if s.in_place]
    for s in read:
        own = s.in_place[0]
        if len(read) > 1:
            yield with_step(plan, s.path, in_place=())  # of the only one that is right: all of it is moved
        for var in (g.var for g in s.grid if g.var not in (None, own.var)):
            yield with_step(plan, s.path, in_place=(replace(own, var=var),))


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
