"""Every single change of a plan's signals, as data: the changed plan, or the signal whose memory order the text loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.mutants.bodies import elsewhere, turned_around, with_body, with_op
from tests.mapping.plans import unguarded
from tilelink.frontend.values import shifted
from tilelink.ir import formula as F
from tilelink.ir.lowered import Buffer
from tilelink.ir.partition import Channel
from tilelink.ir.plan import CallEntry, CallExit, Fork, Join, Plan, Signal, Stage
from tilelink.ir.program import Notify

LIVE = ("notify", "await", "ready")


@dataclass(frozen=True, slots=True)
class Mutation:
    """`name`: what was done; `signal`: to which signal, for people. `weakened`: the signal whose emitted calls lose their release
    or acquire, which no plan says."""

    name: str
    signal: str
    plan: Plan
    weakened: Signal | None = None


def mutations(plan: Plan) -> Iterator[Mutation]:
    """All of one plan, in a fixed order."""
    for signal in plan.signals:
        if signal.action in LIVE:
            yield from _of_signal(plan, signal)
    for channel in plan.channels:
        yield from _of_channel(plan, channel)
    yield from _of_call(plan)


# --------------------------------------------------------------------------------------------------------- one signal
def _of_signal(plan: Plan, s: Signal) -> Iterator[Mutation]:
    yield from _dropped(plan, s)
    yield from _on_another_channel(plan, s)
    yield from _at_another_tile(plan, s)
    if isinstance(s.op, Notify):
        yield from _to_another_rank(plan, s)
    yield from _turned(plan, s)
    if s.action != "ready" and plan.step(s.path).engine.adds:
        # What a stream waits for and sets is ordered by the driver: no text says how.
        name = "release weakened" if isinstance(s.op, Notify) else "acquire weakened"
        yield Mutation(name, said(plan, s), plan, s)


def _dropped(plan: Plan, s: Signal) -> Iterator[Mutation]:
    """Left out, and said to be implied by something else: whatever that is, it is not there."""
    reasons = {"notify": ["nobody waits"], "await": ["stream", "worker"], "ready": ["argument"]}[s.action]
    for reason in reasons:
        name = "drop a notify" if s.action == "notify" else f"drop a wait ({reason})"
        yield Mutation(name, said(plan, s), _with(plan, s, _elided(s, reason)))


def _elided(s: Signal, reason: str) -> Signal:
    return replace(s, action="elided", channel=None, to="self", reason=reason)


def _on_another_channel(plan: Plan, s: Signal) -> Iterator[Mutation]:
    other = next((c for c in plan.channels if c.tensor != s.channel), None)
    if s.channel is not None and other is not None:
        changed = _with(plan, s, replace(s, channel=other.tensor))
        if other.doorbells == "alone":  # it has flags where others than streams wait
            changed = _channel(changed, other, doorbells="beside")
        yield Mutation("wrong channel", said(plan, s), changed)


def _at_another_tile(plan: Plan, s: Signal) -> Iterator[Mutation]:
    changed = elsewhere(plan, s.path, s.op)
    if changed is not None:
        yield Mutation("wrong tile", said(plan, s), with_op(plan, s, changed))


def _to_another_rank(plan: Plan, s: Signal) -> Iterator[Mutation]:
    if s.to == "peer" and s.op.peer is not None and s.op.peer.ring is not None:
        var, shift = s.op.peer.ring
        other = replace(s.op, peer=replace(s.op.peer, expr=shifted(var, shift + 1).expr()))
        yield Mutation("wrong rank", said(plan, s), with_op(plan, s, other))
        return
    for to in ("self", "all"):
        if to != s.to:
            yield Mutation(f"wrong rank ({to})", said(plan, s), _with(plan, s, replace(s, to=to)))


def _turned(plan: Plan, s: Signal) -> Iterator[Mutation]:
    body = turned_around(plan, s.path, s.op)
    if body is not None:
        name = "notify before the store" if isinstance(s.op, Notify) else "wait after the load"
        yield Mutation(name, said(plan, s), with_body(plan, s.path, body))


def said(plan: Plan, s: Signal) -> str:
    """The step and what it does; which of them in the order of its program, where it does so several times."""
    verb = "notifies" if isinstance(s.op, Notify) else "waits for"
    alike = [g for g in plan.signals if (g.path, type(g.op), g.op.param) == (s.path, type(s.op), s.op.param)]
    which = f" ({alike.index(s) + 1} of {len(alike)})" if len(alike) > 1 else ""
    return f"{s.path} {verb} {s.op.param}{which}"


def _with(plan: Plan, old: Signal, new: Signal) -> Plan:
    return replace(plan, signals=tuple(new if s is old else s for s in plan.signals))


# --------------------------------------------------------------------------------------------------------- one channel
def _of_channel(plan: Plan, c: Channel) -> Iterator[Mutation]:
    signal = f"flags of {c.tensor}"
    for by in (1, -1):
        yield Mutation(f"count off by one ({by:+d})", signal, _channel(plan, c, target=c.target + by))
    if c.adds:
        yield Mutation("epoch not advanced (expected)", signal, _channel(plan, c, target=F.of(0)))
    if c.adds and unguarded(c) != c.target:
        yield Mutation("count without its guard", signal, _channel(plan, c, target=unguarded(c)))
    if c.scope == "sys":
        yield Mutation("scope weakened", signal, _channel(plan, c, scope="gpu"))


def _channel(plan: Plan, c: Channel, **changes: object) -> Plan:
    return replace(plan, channels=tuple(replace(d, **changes) if d is c else d for d in plan.channels))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ one call
def _of_call(plan: Plan) -> Iterator[Mutation]:
    for h in plan.host:
        without = replace(plan, host=tuple(g for g in plan.host if g is not h))
        if isinstance(h, CallEntry):
            yield Mutation("epoch not advanced (call entry)", "the call", without)
        elif isinstance(h, (Stage, CallExit)):
            yield Mutation(f"drop {type(h).__name__.lower()}", "the call", without)
        elif isinstance(h, (Fork, Join)):
            yield Mutation(f"drop a {type(h).__name__.lower()}", f"stream {h.stream}", without)
    shared = [b for b in plan.buffers if b.slots > 1 and b.shared]
    for b in shared:
        yield Mutation("double buffer removed", f"buffer {b.name}", _slots(plan, [b]))
    if shared and plan.schedule.slots > 1:
        turns = replace(plan.schedule, slots=1)
        yield Mutation("double buffer removed (all)", "the call", replace(_slots(plan, shared), schedule=turns))
        yield Mutation("slots do not take turns", "the call", replace(plan, schedule=turns))
    if plan.takes_credits:
        yield Mutation("credits not taken", "the call", replace(plan, credits_implied_by="all"))


def _slots(plan: Plan, single: list[Buffer]) -> Plan:
    return replace(plan, buffers=tuple(replace(b, slots=1) if b in single else b for b in plan.buffers))
