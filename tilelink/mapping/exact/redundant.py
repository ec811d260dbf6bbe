"""Signals that a plan could do without: the same accesses, in an order that everything else keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilelink.ir.plan import Plan, Signal
from tilelink.ir.verdict import Proof
from tilelink.mapping.exact.findings import Exact, examine


@dataclass(frozen=True, slots=True)
class Redundant:
    """`what`: wait | channel | credit. `path`: of the waiting step. `proof`: why nothing goes wrong without it."""

    what: str
    tensor: str
    path: str | None
    proof: Proof


def equivalent(plan: Plan, mutant: Plan) -> Proof | None:
    """Show that a plan whose signals were changed computes what the plan does, in every order of events; None: it may not.

    For the world and the sizes of the two plans, which must be small.

    Raises:
        NotExact: data decides what happens, or the world is too large.
    """
    changed = examine(mutant)
    if changed.finding is not None or _accesses(changed) != _accesses(examine(plan)):
        return None
    return Proof("equivalent", _said(changed), 0.0)


def redundant(plan: Plan) -> tuple[Redundant, ...]:
    """Waits, channels and credits each of which, and it alone, could be left out in this world of these sizes.

    Raises:
        NotExact: data decides what happens, or the world is too large.
    """
    out: list[Redundant] = []
    for what, tensor, path, without in _without(plan):
        proof = equivalent(plan, without)
        if proof is not None:
            out.append(Redundant(what, tensor, path, proof))
    return tuple(out)


def _without(plan: Plan) -> Iterator[tuple[str, str, str | None, Plan]]:
    for s in plan.signals:
        if s.action in ("await", "ready"):
            tensor = plan.step(s.path).step.binding(s.op.param).tensor
            yield (
                "wait",
                tensor,
                s.path,
                replace(plan, signals=tuple(_elided(t) if t is s else t for t in plan.signals)),
            )
    for c in plan.channels:
        signals = tuple(_elided(s) if s.channel == c.name else s for s in plan.signals)
        left = tuple(d for d in plan.channels if d is not c)
        yield "channel", c.tensor, None, replace(plan, signals=signals, channels=left)
    for credit in plan.credits:
        if credit.implied_by is None:
            freed = tuple(replace(d, implied_by=d.tensor) for d in plan.credits)
            yield "credit", credit.tensor, None, replace(plan, credits=freed)


def _elided(signal: Signal) -> Signal:
    return replace(signal, action="elided", channel=None, reason="redundant")


def _said(exact: Exact) -> str:
    return (
        f"all accesses of {exact.calls} calls on {exact.sizes.ranks} ranks are ordered, "
        f"by the exact graph of {exact.events} events a call"
    )


def _accesses(exact: Exact) -> Counter[object]:
    """What is read and written where, by which tile of which step."""
    return Counter(
        (kind, e.rank, e.path, e.tile, a.instance, a.box)
        for e in exact.call.events
        for kind, found in (("read", e.reads), ("write", e.writes))
        for a in found
    )
