"""Waits and notifies become flags, or disappear where something else implies them."""

from __future__ import annotations

from tilelink.errors import TilelinkError
from tilelink.ir.partition import Channel
from tilelink.ir.plan import KernelPlan, Plan, Signal, StepPlan
from tilelink.ir.program import At, Notify, OfTile, Wait, walk
from tilelink.ir.wiring import indexed
from tilelink.mapping.channels import channel as channel_of
from tilelink.mapping.signal_matching import Match, Matching, crosses, reads_remote


def matched(plan: Plan) -> tuple[tuple[Signal, ...], tuple[Channel, ...]]:
    """Every wait and notify of every step, and the channels they need.

    Raises:
        TilelinkError: TL301 a wait for what nobody notifies, TL302 a mode that does not hold, and those of `channel`.
    """
    wiring, signals = plan.wiring, list[Signal]()
    ops = [(s, op) for s in plan.steps for op in walk(s.step.program.body)]
    notifies = [(s, op) for s, op in ops if isinstance(op, Notify)]
    matches: dict[str, list[Match]] = {}
    for s, op in ops:
        if isinstance(op, Wait):
            signal, served = _wait(plan, s, op, notifies)
            signals.append(signal)
            if signal.channel is not None:
                matches.setdefault(signal.channel, []).extend(served)
    found = {name: Matching(wiring, wiring.tensor(name), tuple(each)) for name, each in sorted(matches.items())}
    least = plan.env(plan.topology.ranks - 1)  # parts get no longer with the rank's coordinates
    channels = {name: channel_of(each, plan.schedule, least) for name, each in found.items()}
    for s, op in notifies:
        matching = found.get(s.step.binding(op.param).tensor)
        heard = [m for m in matching.matches if m.producer.path == s.path and m.notify == op] if matching else []
        if matching is None or not heard:
            signals.append(Signal(s.path, op, "elided", reason="nobody waits"))
            continue
        channel = channels[matching.tensor.name]
        to = _addressee(matching, s, op, heard, channel)
        if op.mode is not None and (op.mode == "broadcast") != (to == "all"):
            told = "every rank" if to == "all" else "one rank"
            raise TilelinkError(
                "TL302",
                f'mode="{op.mode}" is asserted, and this notify is heard by {told}',
                loc=op.loc,
                why=f"as scheduled, the tiles of `{op.param}` that `{s.path}` completes are waited for by {told}",
                hint="take the mode out, or place the step so that it holds",
            )
        signals.append(Signal(s.path, op, "notify", channel=channel.tensor, to=to))
    return tuple(signals), tuple(channels.values())


# ------------------------------------------------------------------------------------------------------------------ waits
def _wait(plan: Plan, s: StepPlan, op: Wait, notifies: list[tuple[StepPlan, Notify]]) -> tuple[Signal, list[Match]]:
    """What becomes of a wait, and what the flags serve that it needs."""
    tensor = plan.wiring.tensor(s.step.binding(op.param).tensor)
    pulled = reads_remote(s, op.param, tensor)
    if tensor.origin == "argument":
        return Signal(s.path, op, "ready") if pulled else Signal(s.path, op, "elided", reason="argument"), []
    producing = [(p, n) for p, n in notifies if p.step.binding(n.param).tensor == tensor.name]
    if not producing:
        raise TilelinkError(
            "TL301",
            f"`{s.path}` waits for `{op.param}`, which no tile program notifies",
            loc=op.loc,
            why="a wait ends when every producer tile that intersects it is complete, and here there is none",
            hint="let the program that writes it call producer_tile_notify, or take the wait out",
        )
    implied = [None if pulled or crosses(p, n.param) else _implied(s, p, plan.kernels) for p, n in producing]
    # One notify that needs flags is enough: the wait then counts all of them.
    if None not in implied:
        return Signal(s.path, op, "elided", reason=implied[0]), []
    return Signal(s.path, op, "await", channel=tensor.name), [Match(s, op, p, n) for p, n in producing]


def _implied(consumer: StepPlan, producer: StepPlan, kernels: tuple[KernelPlan, ...]) -> str | None:
    """What keeps a local dependence without a signal."""
    if consumer.into is not None and consumer.executor == producer.executor:
        return "worker"
    if "stream" in (consumer.engine.by, producer.engine.by):
        return None
    # In launch order.
    at, before = (next(i for i, k in enumerate(kernels) if s.executor in dict(k.roles)) for s in (consumer, producer))
    return "stream" if before < at and kernels[before].stream == kernels[at].stream else None


# --------------------------------------------------------------------------------------------------------------- notifies
def _addressee(found: Matching, s: StepPlan, op: Notify, heard: list[Match], channel: Channel) -> str:
    if op.peer is not None:
        return "peer"
    if any(found.pulls(m) for m in heard):
        return "owner" if channel.whose(s.axis) is not None else "all"
    if not crosses(s, op.param):
        return "self"
    # Whether the tile says which rank has it; all of a split tensor, and vectors of its positions, are of all ranks.
    if s.copies:
        named = found.tensor.owned is not None or found.tensor.split_over(s.axis)
    else:
        index = indexed(s.step, op.param, op.index)
        named = any(found.tensor.names_holder(v) and isinstance(e, (OfTile, At)) for v, e in index)
    return "owner" if named else "all"
