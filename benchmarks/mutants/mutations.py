"""Every single change of a plan's signals, as data: the changed plan, and what the emitted text is to do of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.mutants.bodies import elsewhere, turned_around, with_body, with_op
from tilelink.frontend.values import shifted
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.host import Enter, Fork, Join, Leave, Stage
from tilelink.ir.plan import Buffer, Plan, Signal
from tilelink.ir.program import Notify, Wait
from tilelink.mapping.verify.geometry import World
from tilelink.mapping.verify.reach import lay
from tilelink.mapping.verify.words import delivery, signals_on

LIVE = ("notify", "await", "ready")


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the emitted calls of one signal, and of what streams do instead.

    `what`: word (the next one), rank (the next one), turn (the access and the signal change places), weaken (no release,
    no acquire), count (a wait for `by` more than due). `path`, `op`: the signal; no op: all waits of the channel.
    """

    what: str
    channel: str
    path: str = ""
    op: Wait | Notify | None = None
    by: int = 0


@dataclass(frozen=True, slots=True)
class Mutation:
    """`name`: what was done; `signal`: to which signal, for people. `edit`: for what codegen does not take from the
    part of the plan that was changed (it is applied if the text is the same), or for what no plan says (`always`).

    `without`: the plan without what was changed, where the mutant keeps at least the orders that there are without it;
    `elsewhere`: it waits for something else, and else for no more than the plan does.
    """

    name: str
    signal: str
    plan: Plan
    edit: Edit | None = None
    always: bool = False
    without: Plan | None = None
    elsewhere: bool = False


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
    if s.action != "ready" and plan.step(s.path).engine != "stream":
        # What a stream waits for and sets is ordered by the driver: no text says how.
        name = "release weakened" if isinstance(s.op, Notify) else "acquire weakened"
        edit = Edit("weaken", _channel_name(s), s.path, s.op)
        yield Mutation(name, said(plan, s), plan, edit, always=True, without=_without(plan, s))


def _dropped(plan: Plan, s: Signal) -> Iterator[Mutation]:
    """Left out, and said to be implied by something else: whatever that is, it is not there."""
    reasons = {"notify": ["nobody waits"], "await": ["stream", "worker"], "ready": ["argument"]}[s.action]
    for reason in reasons:
        name = "drop a notify" if s.action == "notify" else f"drop a wait ({reason})"
        changed = _with(plan, s, _elided(s, reason))
        # Without a notify its word stays behind, and whoever waits for it waits for ever.
        yield Mutation(name, said(plan, s), changed, without=None if s.action == "notify" else changed)


def _elided(s: Signal, reason: str) -> Signal:
    return replace(s, action="elided", channel=None, to="self", reason=reason)


def _without(plan: Plan, s: Signal) -> Plan:
    return _with(plan, s, _elided(s, "nobody waits" if s.action == "notify" else "worker"))


def _on_another_channel(plan: Plan, s: Signal) -> Iterator[Mutation]:
    other = next((c for c in plan.channels if c.name != s.channel), None)
    if s.channel is not None and other is not None:
        changed, waits = _with(plan, s, replace(s, channel=other.name)), isinstance(s.op, Wait)
        if other.counted:  # it has words where others than streams wait
            changed = _channel(changed, other, counted=False)
        yield Mutation(
            "wrong channel", said(plan, s), changed, without=_without(plan, s) if waits else None, elsewhere=True
        )


def _at_another_tile(plan: Plan, s: Signal) -> Iterator[Mutation]:
    changed = elsewhere(plan, s.path, s.op)
    if changed is not None:
        edit = Edit("word", _channel_name(s), s.path, s.op)
        without = _without(plan, s) if isinstance(s.op, Wait) else None
        yield Mutation("wrong tile", said(plan, s), with_op(plan, s, changed), edit, without=without, elsewhere=True)


def _to_another_rank(plan: Plan, s: Signal) -> Iterator[Mutation]:
    edit = Edit("rank", _channel_name(s), s.path, s.op)
    if s.to == "peer" and s.op.peer is not None and s.op.peer.ring is not None:
        var, shift = s.op.peer.ring
        other = replace(s.op, peer=replace(s.op.peer, expr=shifted(var, shift + 1).expr()))
        yield Mutation("wrong rank", said(plan, s), with_op(plan, s, other), edit)
        return
    for to in ("self", "all"):
        if to != s.to and not (to == "self" and _goes_to_oneself(plan, s)):
            yield Mutation(f"wrong rank ({to})", said(plan, s), _with(plan, s, replace(s, to=to)), edit)


def _goes_to_oneself(plan: Plan, s: Signal) -> bool:
    """Whether the owner that is told is always the rank itself: then it is the same signal by another name."""
    world = World(plan)
    laid = {step.path: lay(world, step) for step in plan.steps}
    told = signals_on(plan, laid, plan.channel(s.channel or ""), "notify")
    return delivery(next(t for t in told if t.signal is s)).stays


def _turned(plan: Plan, s: Signal) -> Iterator[Mutation]:
    body = turned_around(plan, s.path, s.op)
    if body is not None:
        name = "notify before the store" if isinstance(s.op, Notify) else "wait after the load"
        edit = Edit("turn", _channel_name(s), s.path, s.op)
        yield Mutation(name, said(plan, s), with_body(plan, s.path, body), edit, without=_without(plan, s))


def said(plan: Plan, s: Signal) -> str:
    """The step and what it does; which of them in the order of its program, where it does so several times."""
    verb = "notifies" if isinstance(s.op, Notify) else "waits for"
    alike = [g for g in plan.signals if (g.path, type(g.op), g.op.param) == (s.path, type(s.op), s.op.param)]
    which = f" ({alike.index(s) + 1} of {len(alike)})" if len(alike) > 1 else ""
    return f"{s.path} {verb} {s.op.param}{which}"


def _channel_name(s: Signal) -> str:
    return s.channel or "ready"


def _with(plan: Plan, old: Signal, new: Signal) -> Plan:
    return replace(plan, signals=tuple(new if s is old else s for s in plan.signals))


# --------------------------------------------------------------------------------------------------------- one channel
def _of_channel(plan: Plan, c: Channel) -> Iterator[Mutation]:
    signal = f"words of {c.tensor}"
    for by in (1, -1):
        name = f"count off by one ({by:+d})"
        less = _unheard(plan, c) if by < 0 else None
        changed = _channel(plan, c, target=c.target + by)
        yield Mutation(name, signal, changed, Edit("count", c.name, by=by), without=less)
    if c.writers == "workers":
        changed = _channel(plan, c, target=F.of(0))
        yield Mutation("epoch not advanced (due)", signal, changed, without=_unheard(plan, c))
    if c.guard is not None and c.writers == "workers":
        yield Mutation("count without its guard", signal, _channel(plan, c, guard=None))
    if c.scope == "sys":
        changed = _channel(plan, c, scope="gpu")
        yield Mutation("scope weakened", signal, changed, without=changed)


def _unheard(plan: Plan, c: Channel) -> Plan:
    """Nobody waits for these words."""
    waits = [s for s in plan.signals if s.channel == c.name and s.action == "await"]
    return replace(plan, signals=tuple(_elided(s, "worker") if s in waits else s for s in plan.signals))


def _channel(plan: Plan, c: Channel, **changes: object) -> Plan:
    return replace(plan, channels=tuple(replace(d, **changes) if d is c else d for d in plan.channels))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ one call
def _of_call(plan: Plan) -> Iterator[Mutation]:
    for h in plan.host:
        without = replace(plan, host=tuple(g for g in plan.host if g is not h))
        if isinstance(h, Enter):
            yield Mutation("epoch not advanced (enter)", "the call", without)
        elif isinstance(h, (Stage, Leave)):
            yield Mutation(f"drop {type(h).__name__.lower()}", "the call", without)
        elif isinstance(h, (Fork, Join)):
            yield Mutation(f"drop a {type(h).__name__.lower()}", f"stream {h.stream}", without)
    shared = [b for b in plan.buffers if b.slots > 1 and b.shared]
    for b in shared:
        yield Mutation("double buffer removed", f"buffer {b.tensor}", _slots(plan, [b]))
    if shared and plan.schedule.slots > 1:
        turns = replace(plan.schedule, slots=1)
        yield Mutation("double buffer removed (all)", "the call", replace(_slots(plan, shared), schedule=turns))
        yield Mutation("slots do not take turns", "the call", replace(plan, schedule=turns))
    taken = [c for c in plan.credits if c.implied_by is None]
    if taken:
        free = tuple(replace(c, implied_by=c.tensor) for c in plan.credits)
        yield Mutation("credits not taken", "the call", replace(plan, credits=free))


def _slots(plan: Plan, single: list[Buffer]) -> Plan:
    return replace(plan, buffers=tuple(replace(b, slots=1) if b in single else b for b in plan.buffers))
