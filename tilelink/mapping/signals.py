"""Waits and notifies become words, or disappear where something else implies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.channel import Channel
from tilelink.ir.plan import Link, Signal, StepPlan
from tilelink.ir.program import At, Notify, OfTile, Wait
from tilelink.ir.schedule import Schedule
from tilelink.ir.wiring import TensorDecl, Wiring, indexed
from tilelink.mapping.channels import channel
from tilelink.mapping.remote import crosses, reads_remote
from tilelink.mapping.kernels import Assignment
from tilelink.mapping.matching import Use


@dataclass(frozen=True, slots=True)
class Signals:
    signals: tuple[Signal, ...]
    channels: tuple[Channel, ...]
    links: tuple[Link, ...]


def lower(
    wiring: Wiring,
    schedule: Schedule,
    steps: tuple[StepPlan, ...],
    where: Assignment,
    least: Mapping[str, F.Number],
) -> Signals:
    """Every wait and notify of every step, and the channels they need. `least`: sizes, on the rank that has least.

    Raises:
        TilelinkError: TL301 a wait for what nobody notifies, TL302 a mode that does not hold, and those of `channel`.
    """
    by_path = {s.path: s for s in steps}
    signals: list[Signal] = []
    links: list[Link] = []
    uses: dict[str, list[Use]] = {}
    for s in steps:
        for op in signal_ops(s.step.program):
            if isinstance(op, Wait):
                signal, kept, served = _wait(wiring, s, op, by_path, where)
                signals.append(signal)
                links += kept
                if signal.channel is not None:
                    uses.setdefault(signal.channel, []).extend(served)
    channels = tuple(channel(wiring, schedule, tensor, found, least) for tensor, found in sorted(uses.items()))
    named = {c.tensor: c for c in channels}
    for s in steps:
        for op in signal_ops(s.step.program):
            if isinstance(op, Notify):
                signals.append(_notify(wiring, s, op, named, uses))
    return Signals(tuple(signals), channels, tuple(links))


# ------------------------------------------------------------------------------------------------------------------ waits
def _wait(
    wiring: Wiring, s: StepPlan, op: Wait, steps: dict[str, StepPlan], where: Assignment
) -> tuple[Signal, list[Link], list[Use]]:
    """What becomes of a wait, how the dependences it stands for are kept, and what the words serve that it needs."""
    tensor = wiring.tensor(s.step.binding(op.param).tensor)
    pulled = reads_remote(s, op.param, tensor)
    if tensor.origin == "argument":
        link = Link(tensor.name, "", s.path, "channel" if pulled else "argument", pulled)
        signal = Signal(s.path, op, "ready") if pulled else Signal(s.path, op, "elided", reason="argument")
        return signal, [link], []
    producing = _notifies(wiring, tensor.name, steps)
    if not producing:
        raise TilelinkError(
            "TL301",
            f"`{s.path}` waits for `{op.param}`, which no tile program notifies",
            loc=op.loc,
            why="a wait ends when every producer tile that intersects it is complete, and here there is none",
            hint="let the program that writes it call producer_tile_notify, or take the wait out",
        )
    remote = [pulled or crosses(producer, notify.param) for producer, notify in producing]
    implied = [None if far else _implied(s, p, where) for (p, _), far in zip(producing, remote, strict=True)]
    # One notify that needs words is enough: the wait then counts all of them.
    reason = implied[0] if None not in implied else None
    makers = zip(producing, remote, strict=True)
    links = [Link(tensor.name, producer.path, s.path, reason or "channel", far) for (producer, _), far in makers]
    if reason is not None:
        return Signal(s.path, op, "elided", reason=reason), links, []
    return Signal(s.path, op, "await", channel=tensor.name), links, [Use(s, op, p, n) for p, n in producing]


def _notifies(wiring: Wiring, tensor: str, steps: dict[str, StepPlan]) -> list[tuple[StepPlan, Notify]]:
    out: list[tuple[StepPlan, Notify]] = []
    for step in wiring.steps:
        for op in signal_ops(step.program):
            if isinstance(op, Notify) and step.binding(op.param).tensor == tensor:
                out.append((steps[step.path], op))
    return out


def _implied(consumer: StepPlan, producer: StepPlan, where: Assignment) -> str | None:
    """What keeps a local dependence without a signal."""
    if consumer.into is not None and consumer.executor == producer.executor:
        return "worker"
    if consumer.engine == "stream" or producer.engine == "stream":
        return None
    if where.kernel_of[consumer.executor] == where.kernel_of[producer.executor]:
        return None
    same_stream = where.stream(consumer.executor) == where.stream(producer.executor)
    return "stream" if same_stream and where.position(producer.executor) < where.position(consumer.executor) else None


# --------------------------------------------------------------------------------------------------------------- notifies
def _notify(
    wiring: Wiring, s: StepPlan, op: Notify, channels: dict[str, Channel], uses: dict[str, list[Use]]
) -> Signal:
    tensor = wiring.tensor(s.step.binding(op.param).tensor)
    channel = channels.get(tensor.name)
    heard = [u for u in uses.get(tensor.name, []) if u.producer.path == s.path and u.notify == op]
    if channel is None or not heard:
        return Signal(s.path, op, "elided", reason="nobody waits")
    to = _addressee(tensor, s, op, heard, channel)
    _check_mode(op, to, s)
    return Signal(s.path, op, "notify", channel=channel.name, to=to)


def _addressee(tensor: TensorDecl, s: StepPlan, op: Notify, heard: list[Use], channel: Channel) -> str:
    if op.peer is not None:
        return "peer"
    if any(reads_remote(u.consumer, u.wait.param, tensor) for u in heard):
        return "owner" if channel.whose(s.axis) is not None else "all"
    if not crosses(s, op.param):
        return "self"
    return "owner" if _names_holder(tensor, s, op) else "all"


def _names_holder(tensor: TensorDecl, s: StepPlan, op: Notify) -> bool:
    """Whether the tile says which rank has it; all of a split tensor, and vectors of its positions, are of all ranks."""
    if s.step.program.movement is not None:
        return tensor.owned is not None or tensor.split_over(s.axis)
    found = indexed(s.step, op.param, op.index)
    return any(tensor.names_holder(v) and isinstance(e, (OfTile, At)) for v, e in found)


def _check_mode(op: Notify, to: str, s: StepPlan) -> None:
    if op.mode is None:
        return
    broadcast = to == "all"
    if (op.mode == "broadcast") != broadcast:
        heard = "every rank" if broadcast else "one rank"
        raise TilelinkError(
            "TL302",
            f'mode="{op.mode}" is asserted, and this notify is heard by {heard}',
            loc=op.loc,
            why=f"as scheduled, the tiles of `{op.param}` that `{s.path}` completes are waited for by {heard}",
            hint="take the mode out, or place the step so that it holds",
        )
