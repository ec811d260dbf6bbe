"""Rule 2, continued: what stands around the steps of a call: its beginning, its side streams, its end, and how far each
signal reaches.
"""

from __future__ import annotations

from tilelink.errors import Loc, TilelinkError
from tilelink.ir.channel import Channel
from tilelink.ir.host import MAIN, Enter, Fork, Keep, Launch, Leave, Stage, Transfer
from tilelink.ir.plan import Plan
from tilelink.mapping.verify.mistakes import REPORT


def check_frame(plan: Plan) -> str:
    """A call begins by advancing its epoch, side streams begin behind that, and nobody leaves an argument that peers still
    read; a signal of another rank or of a copy engine is heard across the system.

    Raises:
        TilelinkError: TL609, TL612.
    """
    said: list[str] = []
    if plan.channels or any(s.action == "ready" for s in plan.signals):
        _check_enter(plan)
        said.append("the epoch is advanced first")
    _check_once(plan)
    streams = _check_forks(plan)
    if streams:
        said.append(f"{streams} side stream{'s' if streams > 1 else ''} begin behind it")
    if _check_leave(plan):
        said.append("nobody returns before its peers have read its arguments")
    for channel in plan.channels:
        _check_scope(plan, channel)
    reach = [c.scope for c in plan.channels]
    said.append(f"{reach.count('sys')} channels reach other ranks or engines, {reach.count('gpu')} stay on one GPU")
    return "; ".join(said)


def _check_enter(plan: Plan) -> None:
    enter = plan.host[0] if plan.host else None
    if isinstance(enter, Enter) and enter.kernels and plan.host[1:] != tuple(Launch(k, MAIN) for k in enter.kernels):
        raise _refused(
            plan.wiring.loc,
            "the kernels that begin and end the call are not all that there is of it",
            "the last of them raises the totals that all waits of the call count from",
        )
    if sum(isinstance(h, Enter) for h in plan.host) != 1 or not isinstance(plan.host[0], Enter):
        raise _refused(
            plan.wiring.loc,
            "the epoch of a call is not advanced before everything else",
            "words are never reset: without a new epoch and new targets every wait ends at once, by the last call's signals",
        )


def _check_once(plan: Plan) -> None:
    """What is copied before kernels is copied once, and told once; and a rank leaves once."""
    copied = [("staged", t) for h in plan.host if isinstance(h, Stage) for t in h.tensors]
    copied += [("kept", h.path) for h in plan.host if isinstance(h, Keep)]
    for what, name in copied:
        if copied.count((what, name)) > 1:
            raise _refused(plan.wiring.loc, f"`{name}` is {what} twice in a call", "others read it meanwhile")
    if sum(isinstance(h, Leave) for h in plan.host) > 1:
        raise _refused(plan.wiring.loc, "a rank leaves a call twice", "peers take the first for the end of all it does")


def _check_forks(plan: Plan) -> int:
    """A side stream goes on from the main one, and so behind what this call has begun with."""
    forked: set[int] = set()
    for h in plan.host:
        if isinstance(h, Fork):
            forked.add(h.stream)
        used = {h.stream} if isinstance(h, Launch) else _streams(plan, h) if isinstance(h, Transfer) else set[int]()
        loose = sorted(used - forked - {MAIN})
        if loose:
            raise _refused(
                plan.wiring.loc,
                f"side stream {loose[0]} runs ahead of the call",
                "it does not go on from the main stream, and so may use slots and targets of the call before",
            )
    return len(forked)


def _streams(plan: Plan, h: Transfer) -> set[int]:
    return {h.stream + k for k in range(plan.step(h.path).streams)}


def _check_leave(plan: Plan) -> bool:
    """Arguments that peers read where they lie belong to the caller again once the call has ended."""
    for s in plan.signals:
        if s.action == "ready" and not plan.buffer(plan.step(s.path).step.binding(s.op.param).tensor).staged:
            if not isinstance(plan.host[-1], Leave):
                raise _refused(
                    s.op.loc,
                    f"peers may still read the argument `{s.op.param}` of `{s.path}` when the call ends",
                    "it is read where it lies, and its owner may write it as soon as the call has ended",
                )
            return True
    return False


def _check_scope(plan: Plan, channel: Channel) -> None:
    told = [s for s in plan.signals if s.channel == channel.name and s.action == "notify"]
    far = channel.writers == "stream" or any(s.to != "self" for s in told)
    if far and channel.scope != "sys":
        raise TilelinkError(
            "TL612",
            f"the signals of `{channel.tensor}` reach no further than one GPU",
            loc=told[0].op.loc if told else plan.wiring.loc,
            why="another rank or a copy engine gives them: an acquire of GPU scope does not make its data readable",
            hint=REPORT,
        )


def _refused(loc: Loc, message: str, why: str) -> TilelinkError:
    return TilelinkError("TL609", message, loc=loc, why=why, hint=REPORT)
