"""Waits and notifies become flags, or disappear where something else implies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from tilelink.errors import TilelinkError
from tilelink.ir import formula as F
from tilelink.ir.partition import Channel
from tilelink.ir.plan import Signal, StepPlan
from tilelink.ir.program import At, Notify, OfTile, Wait, walk
from tilelink.ir.schedule import Schedule
from tilelink.ir.wiring import TensorDecl, Wiring, indexed
from tilelink.mapping.channels import channel as channel_of
from tilelink.mapping.kernels import Assignment
from tilelink.mapping.remote import crosses, reads_remote
from tilelink.mapping.signal_matching import Match, Matching


@dataclass(frozen=True, slots=True)
class Signals:
    signals: tuple[Signal, ...]
    channels: tuple[Channel, ...]


def matched(
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
    signals: list[Signal] = []
    waits, notifies = _ops(steps, Wait), _ops(steps, Notify)
    matches: dict[str, list[Match]] = {}
    for s, op in waits:
        signal, served = _wait(wiring, s, op, notifies, where)
        signals.append(signal)
        if signal.channel is not None:
            matches.setdefault(signal.channel, []).extend(served)
    found = {name: Matching(wiring, wiring.tensor(name), tuple(each)) for name, each in sorted(matches.items())}
    channels = {name: channel_of(each, schedule, least) for name, each in found.items()}
    signals += [_notify(s, op, found, channels) for s, op in notifies]
    return Signals(tuple(signals), tuple(channels.values()))


_Kind = TypeVar("_Kind", Wait, Notify)


def _ops(steps: tuple[StepPlan, ...], kind: type[_Kind]) -> list[tuple[StepPlan, _Kind]]:
    return [(s, op) for s in steps for op in walk(s.step.program.body) if isinstance(op, kind)]


# ------------------------------------------------------------------------------------------------------------------ waits
def _wait(
    wiring: Wiring, s: StepPlan, op: Wait, notifies: list[tuple[StepPlan, Notify]], where: Assignment
) -> tuple[Signal, list[Match]]:
    """What becomes of a wait, and what the flags serve that it needs."""
    tensor = wiring.tensor(s.step.binding(op.param).tensor)
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
    implied = [None if pulled or crosses(p, n.param) else _implied(s, p, where) for p, n in producing]
    # One notify that needs flags is enough: the wait then counts all of them.
    if None not in implied:
        return Signal(s.path, op, "elided", reason=implied[0]), []
    return Signal(s.path, op, "await", channel=tensor.name), [Match(s, op, p, n) for p, n in producing]


def _implied(consumer: StepPlan, producer: StepPlan, where: Assignment) -> str | None:
    """What keeps a local dependence without a signal."""
    if consumer.into is not None and consumer.executor == producer.executor:
        return "worker"
    if "stream" in (consumer.engine.by, producer.engine.by):
        return None
    if where.kernel_of[consumer.executor] == where.kernel_of[producer.executor]:
        return None
    same_stream = where.stream(consumer.executor) == where.stream(producer.executor)
    return "stream" if same_stream and where.position(producer.executor) < where.position(consumer.executor) else None


# --------------------------------------------------------------------------------------------------------------- notifies
def _notify(s: StepPlan, op: Notify, matchings: dict[str, Matching], channels: dict[str, Channel]) -> Signal:
    found = matchings.get(s.step.binding(op.param).tensor)
    heard = [] if found is None else [m for m in found.matches if m.producer.path == s.path and m.notify == op]
    if found is None or not heard:
        return Signal(s.path, op, "elided", reason="nobody waits")
    channel = channels[found.tensor.name]
    to = _addressee(found, s, op, heard, channel)
    _check_mode(op, to, s)
    return Signal(s.path, op, "notify", channel=channel.name, to=to)


def _addressee(found: Matching, s: StepPlan, op: Notify, heard: list[Match], channel: Channel) -> str:
    if op.peer is not None:
        return "peer"
    if any(found.pulls(m) for m in heard):
        return "owner" if channel.whose(s.axis) is not None else "all"
    if not crosses(s, op.param):
        return "self"
    return "owner" if _names_holder(found.tensor, s, op) else "all"


def _names_holder(tensor: TensorDecl, s: StepPlan, op: Notify) -> bool:
    """Whether the tile says which rank has it; all of a split tensor, and vectors of its positions, are of all ranks."""
    if s.step.program.copy_program is not None:
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
